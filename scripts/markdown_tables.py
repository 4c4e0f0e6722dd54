"""Tables of documents: pipe tables in Markdown."""

from __future__ import annotations

from textwrap import wrap

from codl.report.text_table import TextTable


def markdown(table: TextTable, *, by: str = "part") -> str:
    """A pipe table with its caption.

    Headings of sections, if any, are the first column, whose header is `by`.
    """
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [[by, *(column.header for column in table.columns)], ["---", *rules]]
    for section in table.sections:
        # A heading appears once for its rows.
        headings = [section.heading, *("" for _ in section.rows)]
        for heading, row in zip(headings, section.rows, strict=False):
            missing = [""] * (len(table.columns) - len(row.shown))
            lines.append([heading, *row.shown, *missing])
    if not any(section.heading for section in table.sections):
        lines = [line[1:] for line in lines]
    piped = [f"| {' | '.join(map(_in_cell, line))} |" for line in lines]
    notes = " ".join([*table.failures(), *table.caption])
    wrapped = wrap(notes, 100, break_on_hyphens=False)
    return "\n".join([*piped, *(["", *wrapped] if notes else [])])


def _in_cell(cell: str) -> str:
    """A cell with the characters escaped that would end the cell or the row."""
    return cell.replace("|", "\\|").replace("\n", "<br>")
