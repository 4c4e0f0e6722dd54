"""Reading the cells of somebody's table; errors name the column, the value and what is wanted."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codl.errors import CodlError, InvalidFileError

#: Milliseconds in a unit.
UNITS: Mapping[str, float] = {"us": 1e-3, "ms": 1.0, "s": 1e3}
#: What a table says where a measurement failed; numbers that are not positive say it too.
NOTHING = frozenset({"", "-", "na", "n/a", "nan", "none", "null", "inf"})


@dataclass(frozen=True)
class CellRecord:
    """One line of a table, its cells by column."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def size(self, column: str) -> int:
        """A positive whole number, also where it is written like 3.0."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if value < 1 or value != int(value):
            raise CodlError(f"{column} must be a whole number of at least 1, got {text!r}.")
        return int(value)

    def latency_ms(self, column: str, unit: str) -> float | None:
        """Milliseconds; None where the measurement failed."""
        text = self.text(column)
        if text.lower() in NOTHING:
            return None
        try:
            value = float(text)
        except ValueError as error:
            raise CodlError(f"{column} must be a latency in {unit}, got {text!r}.") from error
        return value * UNITS[unit] if 0 < value < float("inf") else None


def read_table(path: Path, written: Sequence[str] = ()) -> tuple[tuple[str, ...], list[CellRecord]]:
    """The columns and the records of a CSV; raises `InvalidFileError` with the line at fault.

    `written` are the columns of lines that have more values than the first line has names.
    """
    if not path.is_file():
        raise InvalidFileError(path, "there is no such file.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            columns = tuple(reader.fieldnames or ())
            if len(set(columns)) != len(columns):
                raise InvalidFileError(
                    path, f"columns repeat: {', '.join(columns)}.", where="line 1"
                )
            return columns, list(_records(path, reader, columns, written))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidFileError(path, f"not a CSV file: {error}.") from error


def _records(
    path: Path, reader: csv.DictReader[str], columns: Sequence[str], written: Sequence[str]
) -> Iterator[CellRecord]:
    for cells in reader:
        more: Any = cells.pop(None, [])  # what csv keeps of a line that is too long
        values = [*cells.values(), *more]
        if None in values or (more and len(values) != len(written)):
            raise InvalidFileError(
                path, f"expected {len(columns)} values.", where=f"line {reader.line_num}"
            )
        names = written if more else columns
        yield CellRecord(path, reader.line_num, dict(zip(names, values, strict=True)))


def check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str], fix: str) -> None:
    """Raises `InvalidFileError` with the first of the `wanted` columns that is missing."""
    for column in wanted:
        if column not in columns:
            raise InvalidFileError(
                path,
                f"there is no column {column!r}; there are {', '.join(columns) or 'none'}.",
                where="line 1",
                fix=fix,
            )
