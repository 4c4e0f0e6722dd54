"""Tables in a terminal: whole words, and fewer columns where there is room for fewer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column

#: Letters between two columns, and those beside the outer ones that are none of theirs.
BETWEEN, OUTER = 3, 1
#: Cells are measured as in a terminal of so many letters.
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
            if sum(_least(console, wide, column) for column in columns) <= _room(columns, options):
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
    line = f"No room for: {names}. A wider terminal has them, and --json."
    return f"{caption}\n{line}" if caption else line


def _room(columns: Sequence[Column], options: ConsoleOptions) -> int:
    return options.max_width - BETWEEN * len(columns) - OUTER


def _least(console: Console, options: ConsoleOptions, column: Column) -> int:
    """Letters of the longest word, or of the longest line where lines are not to be broken."""
    return _measured(console, options, column).minimum


def _measured(console: Console, options: ConsoleOptions, column: Column) -> Measurement:
    sizes = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
    longest = max(size.maximum for size in sizes)
    return Measurement(longest if column.no_wrap else max(s.minimum for s in sizes), longest)


def _widths(
    console: Console, options: ConsoleOptions, columns: Sequence[Column], room: int
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
