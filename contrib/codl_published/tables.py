"""A table of other people: cells by column, and the rows that are made of them.

Errors name the line, the column, the value and the expected value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codl import files
from codl.errors import CodlError, InvalidFileError
from codl.ir import Op, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.window import Pool2d
from codl.kernels import registry
from codl.measure.dataset import OpRow, Row

#: Milliseconds in a unit.
UNITS: Mapping[str, float] = {"us": 1e-3, "ms": 1.0, "s": 1e3}
#: What a table says where a measurement failed; numbers that are not positive say it too.
NOTHING = frozenset({"", "-", "na", "n/a", "nan", "none", "null", "inf"})
DATA_SHARING = "data_sharing"


@dataclass(frozen=True)
class CellRecord:
    """One line of a table, its cells by column."""

    path: Path
    line: int
    cells: Mapping[str, str]

    @contextmanager
    def located(self, fix: str = "") -> Iterator[None]:
        """Turn a `CodlError` inside into an `InvalidFileError` with this line."""
        try:
            yield
        except CodlError as error:
            where = f"line {self.line}"
            raise InvalidFileError(self.path, str(error), where=where, fix=fix) from error

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
        reader = files.csv_reader(files.decoded(path.read_bytes()))
        columns = tuple(reader.fieldnames or ())
        if len(set(columns)) != len(columns):
            raise InvalidFileError(path, f"columns repeat: {', '.join(columns)}.", where="line 1")
        return columns, list(_records(path, reader, columns, written))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidFileError(path, f"not a CSV file: {error}.") from error


def _records(
    path: Path, reader: csv.DictReader[str], columns: Sequence[str], written: Sequence[str]
) -> Iterator[CellRecord]:
    for cells in reader:
        if files.is_blank(cells):
            continue
        more: Any = cells.pop(None, [])  # the values of a line beyond its columns
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


@dataclass(frozen=True)
class ImportedRows:
    """Rows by the name of the dataset's table, and how many lines were `skipped`, by the reason."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)

    def add_op(self, variant: str, row: OpRow, part: Op) -> None:
        """A row of a part that ran in a variant."""
        self.add(registry.target(registry.find(part, variant), part), row)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def common_fields(latency_ms: float | None, run: str) -> dict[str, Any]:
    """The fields that all rows have; p20 and p80 are unknown, and stand at the latency itself."""
    common = {"source": "replayed", "run": run}
    if latency_ms is None:
        return {**common, "status": "failed", "reason": "the table has no latency here"}
    return {**common, "latency_ms": latency_ms, "p20_ms": latency_ms, "p80_ms": latency_ms}


def op_row(op: Op, latency_ms: float | None, run: str) -> OpRow:
    """A row of a whole op."""
    text, dim = to_text(op), (op.dims or ("H",))[0]
    return OpRow(op=text, part=text, dim=dim, share=1.0, **common_fields(latency_ms, run))


def checked(op: Conv2d | Pool2d) -> Conv2d | Pool2d:
    """The op; raises `CodlError` where it has no output."""
    if min(op.output) < 1:
        raise CodlError(f"the op {to_text(op)!r} has an empty output ({op.output}).")
    return op
