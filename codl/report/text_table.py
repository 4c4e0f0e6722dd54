"""Tables for the terminal and for HTML, and the only conversion of numbers to text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor, log10
from pathlib import Path
from typing import Literal, TypeAlias

import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

NONE = "\N{EN DASH}"
#: Letters between two columns, and the outer border.
BETWEEN, OUTER = 3, 1
#: Pages fold tables with more rows.
FOLDED = 40
#: The value of a cell: words, a whole number, or a number of three digits.
Value: TypeAlias = str | float | None
Rows: TypeAlias = "Iterable[Sequence[Value] | TextRow]"


@dataclass(frozen=True)
class Column:
    """A header with its unit; a narrow terminal drops columns with the lowest `spare` above 0."""

    header: str
    numeric: bool = True
    spare: int = 0


#: A column of words instead of numbers.
words = partial(Column, numeric=False)


@dataclass(frozen=True)
class TextRow:
    """Cells, the first with the row's name; a failed row has only a name and a reason."""

    cells: tuple[str, ...]
    failure: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The cells outside of pages, where columns are too narrow for the reason of a failure."""
        return (self.cells[0], "failed") if self.failure else self.cells


@dataclass(frozen=True)
class TextSection:
    """A group of rows; the heading may be empty."""

    heading: str
    rows: tuple[TextRow, ...]


@dataclass(frozen=True)
class TextTable:
    """A table; `caption` has sentences that qualify its numbers.

    A terminal that is too narrow for
    all words drops `spare` columns, then words break, the longest first, but not those of headers.
    """

    title: str
    columns: tuple[Column, ...]
    sections: tuple[TextSection, ...]
    caption: tuple[str, ...] = ()

    @classmethod
    def plain(
        cls,
        title: str,
        headers: Sequence[str | Column],
        rows: Rows | Mapping[str, Rows],
        caption: Iterable[str] = (),
        *,
        spare: Sequence[str] = (),
        filled: bool = False,
    ) -> TextTable:
        """A table of values, in sections if they are given by heading.

        A header alone is of numbers where its values are. `spare` are the headers of columns that
        a narrow terminal drops, the first one first. A failed row is given as a `TextRow`. A
        `filled` table has no columns without values.
        """
        by_heading = rows if isinstance(rows, Mapping) else {"": rows}
        lines = {heading: list(values) for heading, values in by_heading.items()}
        values = [row for of in lines.values() for row in of if not isinstance(row, TextRow)]
        known = [
            [row[at] for row in values if row[at] not in (None, "")] for at in range(len(headers))
        ]
        kept = [at for at, cells in enumerate(known) if cells or not (filled and values)]

        def column(at: int) -> Column:
            header = headers[at]
            if isinstance(header, Column):
                return header
            is_numeric = bool(known[at]) and not any(isinstance(cell, str) for cell in known[at])
            rank = 1 + spare.index(header) if header in spare else 0
            return Column(header, numeric=is_numeric, spare=rank)

        def text_row(row: Sequence[Value] | TextRow) -> TextRow:
            if isinstance(row, TextRow):
                return row
            return TextRow(tuple(cell_text(row[at]) for at in kept))

        sections = (TextSection(of, tuple(map(text_row, rows))) for of, rows in lines.items())
        return cls(title, tuple(map(column, kept)), tuple(sections), tuple(caption))

    @property
    def is_long(self) -> bool:
        """True where a page folds the table."""
        return sum(len(section.rows) for section in self.sections) > FOLDED

    def failures(self) -> Iterator[str]:
        """A sentence per failed row."""
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
            dropped.append(column.header)
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
            table.add_column(Text(column.header), justify=justify, width=width, overflow="fold")
        for section in self.sections:
            if section.heading:
                table.add_row(Text(section.heading, style="bold"))
            for row in section.rows:
                style = "red" if row.failure else ""
                cells = [Text(cell, style if at else "") for at, cell in enumerate(row.shown)]
                table.add_row(*(cells[at] for at in columns if at < len(cells)))
            table.add_section()
        yield table

    def _cells(self, at: int, *, words: bool) -> list[str]:
        """The words or the lines of a column, with those of its header."""
        texts = [self.columns[at].header]
        for section in self.sections:
            texts += [section.heading] if at == 0 else []
            texts += [row.shown[at] for row in section.rows if at < len(row.shown)]
        return [part for text in texts for part in (text.split() if words else text.splitlines())]

    def _widths(self, columns: Iterable[int], room: int) -> list[int]:
        """Widths of columns: their longest lines, else their words, else their headers, as fit."""
        headers = (self.columns[at].header.split() for at in columns)
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


def _up_to(limit: int, widths: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Wanted widths, capped by a limit, but at least the given widths."""
    return [max(width, min(most, limit)) for width, most in zip(widths, wanted, strict=True)]


def cell_text(value: Value) -> str:
    """A value as a cell: three significant digits, or a whole number as it is."""
    if isinstance(value, str):
        return value or NONE
    return count(value) if isinstance(value, int) else digits(value)


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
