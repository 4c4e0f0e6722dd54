"""Tables for the terminal, HTML and Markdown: numbers become text here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal, TypeAlias, TypeVar

import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

#: Letters between two columns, and those beside the outer ones that are none of theirs.
BETWEEN, OUTER = 3, 1
#: Cells are measured as in a terminal of this width in letters.
ENDLESS = 10_000


class Table(rich.table.Table):
    """A table with columns that go, the first of them first, where not all words have room.

    `spare` are the headers of those columns; the caption says which are gone. Only where even that
    is not enough are words broken, the longest first and none of the header, and nothing is lost.
    """

    def __init__(self, *headers: str, spare: Sequence[str] = (), **how: Any) -> None:
        super().__init__(*headers, **how)
        self.spare = tuple(spare)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=ENDLESS)
        columns, gone = list(self.columns), []
        for header in self.spare:
            least = sum(_measured(console, wide, column).minimum for column in columns)
            if least <= _room(columns, options):
                break
            gone += [header for column in columns if str(column.header) == header]
            columns = [column for column in columns if str(column.header) != header]
        shown = copy(self)
        widths = _widths(console, wide, columns, _room(columns, options))
        shown.columns = [
            replace(column, _index=at, width=width, overflow="fold")
            for at, (column, width) in enumerate(zip(columns, widths, strict=True))
        ]
        if gone:
            shown.caption = _caption(self.caption, gone)
        yield from rich.table.Table.__rich_console__(shown, console, options)


def _caption(caption: Any, gone: Sequence[str]) -> str:
    names = ", ".join(" ".join(header.split()) for header in gone)
    line = f"Hidden columns: {names} (widen the terminal or use --json)."
    return f"{caption}\n{line}" if caption else line


def _room(columns: Sequence[rich.table.Column], options: ConsoleOptions) -> int:
    return options.max_width - BETWEEN * len(columns) - OUTER


def _measured(console: Console, options: ConsoleOptions, column: rich.table.Column) -> Measurement:
    sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
    longest = max(size.maximum for size in sizes)
    return Measurement(longest if column.no_wrap else max(s.minimum for s in sizes), longest)


def _widths(
    console: Console, options: ConsoleOptions, columns: Sequence[rich.table.Column], room: int
) -> list[int]:
    """What columns get: their longest lines, else words, else headers, as far as there is room."""
    sizes = [_measured(console, options, column) for column in columns]
    headers = [Measurement.get(console, options, column.header).minimum for column in columns]
    widths = [max(1, width) for width in headers]
    for wanted in ([s.minimum for s in sizes], [s.maximum for s in sizes]):
        limit = max(wanted, default=0)
        while limit and sum(_up_to(limit, widths, wanted)) > room:
            limit -= 1
        widths = _up_to(limit, widths, wanted)
    return widths


def _up_to(limit: int, widths: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """What is wanted but no more than a limit, and no less than what it has."""
    return [max(width, min(most, limit)) for width, most in zip(widths, wanted, strict=True)]


NONE = "\N{EN DASH}"
#: Tables of more rows are folded on a page.
FOLDED = 40
T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """A header with its unit. Neighbours of one `group` stand under a common header.

    A terminal too narrow for all has none of the column of the lowest `spare`, but for 0.
    """

    header: str
    group: str = ""
    numeric: bool = True
    spare: int = 0


#: A column of words, not of numbers.
words = partial(Column, numeric=False)
#: A column, and what stands in it for a value that has a row.
Cell: TypeAlias = tuple[Column, Callable[[T], str]]


@dataclass(frozen=True)
class TextRow:
    """Cells, the first of which names the row; a failed row has nothing but that and a reason.

    `mark` is the source of numbers that were not measured for this report, else empty.
    """

    cells: tuple[str, ...]
    failure: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TextSection:
    """Rows that belong together; the heading may be empty."""

    heading: str
    rows: tuple[TextRow, ...]


@dataclass(frozen=True)
class TextTable:
    """A table; `caption` holds the sentences that must be read with it.

    `by` is what headings of sections are of: the header that they have in documents.
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
        """A row for every value, in sections where values are by heading.

        `failure` says why a value has no more than its first cell.
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

    @property
    def is_long(self) -> bool:
        """Whether a page folds it."""
        return sum(len(section.rows) for section in self.sections) > FOLDED

    def groups(self) -> list[tuple[str, tuple[Column, ...]]]:
        """Runs of columns under a common header, and those under none one by one."""
        groups: list[tuple[str, tuple[Column, ...]]] = []
        for group, run in groupby(self.columns, key=lambda column: column.group):
            columns = tuple(run)
            groups += [(group, columns)] if group else [("", (column,)) for column in columns]
        return groups

    def failures(self) -> Iterator[str]:
        """A sentence for every failed row: a terminal's columns are too narrow for a reason."""
        for section in self.sections:
            for row in section.rows:
                if row.failure:
                    of = f" on {section.heading}" if section.heading else ""
                    yield f"{row.cells[0]}{of} failed: {row.failure}"

    def to_rich(self) -> Table:
        """For the terminal. Text is never read as markup."""
        lines = "\n".join([*self.failures(), *self.caption])
        spare = sorted((c for c in self.columns if c.spare), key=lambda column: column.spare)
        table = Table(
            spare=[_with_group(column, "\n") for column in spare],
            title=Text(self.title),
            caption=Text(lines),
            title_justify="left",
            caption_justify="left",
        )
        for column in self.columns:
            justify: Literal["right", "left"] = "right" if column.numeric else "left"
            header = Text(_with_group(column, "\n"))
            table.add_column(header, justify=justify)
        for section in self.sections:
            if section.heading:
                table.add_row(Text(section.heading, style="bold"))
            for row in section.rows:
                table.add_row(*_rich_cells(row))
            table.add_section()
        return table

    def to_markdown(self) -> str:
        """For documents: a pipe table, and under it what must be read with it.

        The heading of a section, where there are any, is a first column.
        """
        has_headings = any(section.heading for section in self.sections)
        headers = [_with_group(column, " ") for column in self.columns]
        rules = ["---:" if column.numeric else "---" for column in self.columns]
        lines = [headers, rules]
        lines += [_plain_cells(row, len(headers)) for s in self.sections for row in s.rows]
        if has_headings:
            # Once for its rows, as people write tables.
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


def _with_group(column: Column, between: str) -> str:
    return f"{column.group}{between}{column.header}" if column.group else column.header


def _plain_cells(row: TextRow, count: int) -> list[str]:
    cells = [row.cells[0], "failed"] if row.failure else list(row.cells)
    return cells + [""] * (count - len(cells))


def _in_markdown(cell: str) -> str:
    """A cell in which no character ends the cell or the row."""
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
    """A cosine to six decimals: three digits would show most wrong results as 1.00."""
    return NONE if cosine is None else f"{cosine:.6f}"


def count(value: int | None) -> str:
    """A whole number, exact, with its thousands apart."""
    return NONE if value is None else f"{value:,}"


def spread(low: float | None, high: float | None) -> str:
    """A range, such as p20 to p80."""
    return NONE if low is None or high is None else f"{digits(low)}{NONE}{digits(high)}"


def stem(model: str) -> str:
    """A model's name: without the folder and the ending of its file."""
    return Path(model).stem if model.endswith(".onnx") else model


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, each once."""
    return ", ".join(dict.fromkeys(names))


def listed_in_short(names: Sequence[str], most: int = 6) -> str:
    """The first names in a sentence, and how many others there are."""
    others = len(names) - most
    return listed(names if others <= 1 else [*names[:most], f"and {others} others"])
