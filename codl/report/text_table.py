"""Tables for the terminal, HTML and Markdown, and the only conversion of numbers to text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Literal, TypeAlias, TypeVar

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

NONE = "\N{EN DASH}"
#: Letters between two columns, and the outer border.
BETWEEN, OUTER = 3, 1
#: Pages fold tables with more rows.
FOLDED = 40
T = TypeVar("T")
#: The value of a cell: words, a whole number, or a number of three digits.
Value: TypeAlias = str | float | None


@dataclass(frozen=True)
class Column:
    """A header with its unit. Neighbours of one `group` share a header above.

    A narrow terminal drops columns with the lowest `spare` first; 0 is never dropped.
    """

    header: str
    group: str = ""
    numeric: bool = True
    spare: int = 0


#: A column of words instead of numbers.
words = partial(Column, numeric=False)
#: A column, and the function that makes its cell of a value.
Cell: TypeAlias = tuple[Column, Callable[[T], str]]


@dataclass(frozen=True)
class TextRow:
    """Cells, the first with the row's name; a failed row has only a name and a reason.

    `mark` is the source of numbers that were not measured for this report, else empty.
    """

    cells: tuple[str, ...]
    failure: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TextSection:
    """A group of rows; the heading may be empty."""

    heading: str
    rows: tuple[TextRow, ...]


@dataclass(frozen=True)
class TextTable:
    """A table; `caption` has sentences that qualify its numbers.

    `by` is the column header of section headings in documents. A terminal that is too narrow for
    all words drops `spare` columns, then words break, the longest first, but not those of headers.
    """

    title: str
    columns: tuple[Column, ...]
    sections: tuple[TextSection, ...]
    caption: tuple[str, ...] = ()
    by: str = "part"

    @classmethod
    def of(
        cls,
        title: str,
        values: Iterable[T] | Mapping[str, Iterable[T]],
        cells: Sequence[Cell[T]],
        caption: Iterable[str] = (),
        *,
        mark: Callable[[T], str] = lambda _: "",
        failure: Callable[[T], str] = lambda _: "",
    ) -> TextTable:
        """A table with a row per value, in sections if values are given by heading.

        `failure` returns why a value's other cells are missing.
        """

        def row(value: T) -> TextRow:
            first, *others = (cell for _, cell in cells)
            if reason := failure(value):
                return TextRow((first(value),), failure=reason)
            return TextRow((first(value), *(cell(value) for cell in others)), mark=mark(value))

        by_heading = values if isinstance(values, Mapping) else {"": values}
        sections = (
            TextSection(heading, tuple(map(row, values))) for heading, values in by_heading.items()
        )
        return cls(title, tuple(column for column, _ in cells), tuple(sections), tuple(caption))

    @classmethod
    def plain(
        cls,
        title: str,
        headers: Sequence[str],
        rows: Iterable[Sequence[Value]] | Mapping[str, Iterable[Sequence[Value]]],
        caption: Iterable[str] = (),
        *,
        spare: Sequence[str] = (),
    ) -> TextTable:
        """A table of values, in sections if they are given by heading.

        `spare` are the headers of columns that a narrow terminal drops, the first one first.
        """
        by_heading = rows if isinstance(rows, Mapping) else {"": rows}
        lines = {heading: list(values) for heading, values in by_heading.items()}

        def column(at: int, header: str) -> Column:
            values = [row[at] for section in lines.values() for row in section]
            known = [value for value in values if value not in (None, "")]
            is_numeric = bool(known) and not any(isinstance(value, str) for value in known)
            rank = 1 + spare.index(header) if header in spare else 0
            return Column(header, numeric=is_numeric, spare=rank)

        sections = (
            TextSection(heading, tuple(TextRow(tuple(map(cell_text, row))) for row in section))
            for heading, section in lines.items()
        )
        columns = tuple(column(at, header) for at, header in enumerate(headers))
        return cls(title, columns, tuple(sections), tuple(caption))

    @property
    def is_long(self) -> bool:
        """True where a page folds the table."""
        return sum(len(section.rows) for section in self.sections) > FOLDED

    def groups(self) -> list[tuple[str, tuple[Column, ...]]]:
        """Neighbouring columns by common header; each column without one is alone."""
        groups: list[tuple[str, tuple[Column, ...]]] = []
        for group, run in groupby(self.columns, key=lambda column: column.group):
            columns = tuple(run)
            groups += [(group, columns)] if group else [("", (column,)) for column in columns]
        return groups

    def failures(self) -> Iterator[str]:
        """A sentence per failed row, because terminal columns are too narrow for reasons."""
        for section in self.sections:
            for row in section.rows:
                if row.failure:
                    of = f" on {section.heading}" if section.heading else ""
                    yield f"{row.cells[0]}{of} failed: {row.failure}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = dict(enumerate(self.columns))
        dropped: list[str] = []
        for column in sorted((c for c in self.columns if c.spare), key=lambda c: c.spare):
            room = options.max_width - BETWEEN * len(columns) - OUTER
            if sum(max(map(cell_len, self._cells(at, words=True))) for at in columns) <= room:
                break
            columns = {at: other for at, other in columns.items() if other is not column}
            dropped.append(" ".join(_with_group(column, " ").split()))
        notes = [*self.failures(), *self.caption]
        if dropped:
            names = ", ".join(dropped)
            notes.append(f"Hidden columns: {names} (widen the terminal or use --json).")
        table = rich.table.Table(
            title=Text(self.title) if self.title else None,
            caption=Text("\n".join(notes)) if notes else None,
            title_justify="left",
            caption_justify="left",
        )
        room = options.max_width - BETWEEN * len(columns) - OUTER
        for (_, column), width in zip(columns.items(), self._widths(columns, room), strict=True):
            justify: Literal["right", "left"] = "right" if column.numeric else "left"
            header = Text(_with_group(column, "\n"))
            table.add_column(header, justify=justify, width=width, overflow="fold")
        for section in self.sections:
            if section.heading:
                table.add_row(Text(section.heading, style="bold"))
            for row in section.rows:
                cells = _rich_cells(row)
                table.add_row(*(cells[at] for at in columns if at < len(cells)))
            table.add_section()
        yield table

    def _cells(self, at: int, *, words: bool) -> list[str]:
        """The words or the lines of a column, with those of its header."""
        texts = [_with_group(self.columns[at], "\n")]
        for section in self.sections:
            texts += [section.heading] if at == 0 else []
            texts += [str(cells[at]) for cells in map(_rich_cells, section.rows) if at < len(cells)]
        return [part for text in texts for part in (text.split() if words else text.splitlines())]

    def _widths(self, columns: Iterable[int], room: int) -> list[int]:
        """Widths of columns: their longest lines, else their words, else their headers, as fit."""
        headers = (_with_group(self.columns[at], "\n").split() for at in columns)
        widths = [max(map(cell_len, words), default=1) for words in headers]
        for is_words in (True, False):
            wanted = [
                max(map(cell_len, self._cells(at, words=is_words)), default=1) for at in columns
            ]
            limit = max(wanted, default=0)
            while limit and sum(_up_to(limit, widths, wanted)) > room:
                limit -= 1
            widths = _up_to(limit, widths, wanted)
        return widths

    def to_markdown(self) -> str:
        """A pipe table with its caption; headings of sections, if any, are the first column."""
        has_headings = any(section.heading for section in self.sections)
        headers = [_with_group(column, " ") for column in self.columns]
        rules = ["---:" if column.numeric else "---" for column in self.columns]
        lines = [headers, rules]
        lines += [_plain_cells(row, len(headers)) for s in self.sections for row in s.rows]
        if has_headings:
            # A heading appears once for its rows.
            headings = [
                "" if at else section.heading
                for section in self.sections
                for at, _ in enumerate(section.rows)
            ]
            lines = [
                [text, *line] for text, line in zip([self.by, "---", *headings], lines, strict=True)
            ]
        table = [f"| {' | '.join(map(_in_markdown, line))} |" for line in lines]
        notes = " ".join([*self.failures(), *self.caption])
        wrapped = wrap(notes, 100, break_on_hyphens=False)
        return "\n".join([*table, *(["", *wrapped] if notes else [])])


def _up_to(limit: int, widths: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Wanted widths, capped by a limit, but at least the given widths."""
    return [max(width, min(most, limit)) for width, most in zip(widths, wanted, strict=True)]


def cell_text(value: Value) -> str:
    """A value as a cell: three significant digits, or a whole number as it is."""
    if isinstance(value, str):
        return value or NONE
    return count(value) if isinstance(value, int) else digits(value)


def _with_group(column: Column, between: str) -> str:
    return f"{column.group}{between}{column.header}" if column.group else column.header


def _plain_cells(row: TextRow, count: int) -> list[str]:
    cells = [row.cells[0], "failed"] if row.failure else list(row.cells)
    return cells + [""] * (count - len(cells))


def _in_markdown(cell: str) -> str:
    """A cell with the characters escaped that would end the cell or the row."""
    return cell.replace("|", "\\|").replace("\n", "<br>")


def _rich_cells(row: TextRow) -> list[Text]:
    if row.failure:
        return [Text(row.cells[0]), Text("failed", style="red")]
    return [Text(cell, style="yellow" if row.mark else "") for cell in row.cells]


def digits(value: float | None, *, percent: bool = False) -> str:
    """Three significant digits: 1234 -> 1230, 1.2 -> 1.20, 3.4e-6 -> 3.40e-06; a dash for None."""
    if value is None:
        return NONE
    value = 100 * value if percent else value
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.2e}"
    rounded = round(value, 2 - floor(log10(abs(value))))
    return f"{rounded:.{max(0, 2 - floor(log10(abs(rounded))))}f}"


def nearness(cosine: float | None) -> str:
    """A cosine to six decimals, because three digits show most wrong results as 1.00."""
    return NONE if cosine is None else f"{cosine:.6f}"


def count(value: int | None) -> str:
    """An exact whole number with separated thousands."""
    return NONE if value is None else f"{value:,}"


def spread(low: float | None, high: float | None) -> str:
    """A range, such as p20 to p80."""
    return NONE if low is None or high is None else f"{digits(low)}{NONE}{digits(high)}"


def stem(model: str) -> str:
    """A model's name: without the folder and the ending of its file."""
    return Path(model).stem if model.endswith(".onnx") else model


def listed(names: Sequence[str]) -> str:
    """The distinct names, as a sentence lists them."""
    return ", ".join(dict.fromkeys(names))


def listed_in_short(names: Sequence[str], most: int = 6) -> str:
    """The first names, and the number of other names, as a sentence lists them."""
    others = len(names) - most
    return listed(names if others <= 1 else [*names[:most], f"and {others} others"])
