"""From a table and its mapping to rows of a dataset.

Sizes in tables become ops whose output has exactly the size that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codl.errors import CodlError, InvalidFileError
from codl.ir import Op, Shape, to_text
from codl.ir.ops.base import Pad
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.window import Size2
from codl.ir.region import as_nchw
from codl.kernels import registry
from codl.measure.dataset import OpRow, Row, SharingRow
from codl.measure.importers.cells import CellRecord, check_columns, read_table
from codl.measure.importers.mapping import Cell, OpColumns, TableMapping, Where


def fit(size: int, out: int, *, kernel: int, stride: int) -> tuple[int, int, int]:
    """Input size, and the padding before and behind, that make an output of `out`.

    No padding where the window fits without (VALID); else as little as it takes, an odd element
    behind (SAME). Input that no window reaches, and that would make one more output, is cut off.
    """
    missing = (out - 1) * stride + kernel - size
    if missing <= 0:
        return min(size, size + missing + stride - 1), 0, 0
    before, behind = missing // 2, missing - missing // 2
    if behind > max(kernel - 1, 1):  # windows would see padding alone
        raise CodlError(
            f"an output of {out} cannot be reached from an input of {size} with a window of "
            f"{kernel} and a stride of {stride}."
        )
    return size, before, behind


def fitted(shape: Shape, out: Size2, *, kernel: Size2, stride: Size2) -> tuple[Shape, Pad]:
    """The input and the padding that give an output of `out` rows and columns."""
    h, top, bottom = fit(shape.h, out.h, kernel=kernel.h, stride=stride.h)
    w, left, right = fit(shape.w, out.w, kernel=kernel.w, stride=stride.w)
    return shape._replace(h=h, w=w), Pad(top, left, bottom, right)


DATA_SHARING = "data_sharing"


@dataclass(frozen=True)
class Found:
    """What some tables hold: rows by the name of the dataset's table, and lines left out.

    `skipped` counts lines by why they are no rows.
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def blank(latency_ms: float | None, run: str) -> dict[str, Any]:
    """The fields that all rows have; p20 and p80 are unknown, and stand at the latency itself."""
    common = {"source": "replayed", "run": run}
    if latency_ms is None:
        return {**common, "status": "failed", "reason": "the table has no latency here"}
    return {**common, "latency_ms": latency_ms, "p20_ms": latency_ms, "p80_ms": latency_ms}


def op_row(op: Op, latency_ms: float | None, run: str) -> OpRow:
    """A row of a whole op."""
    text = to_text(op)
    return OpRow(
        op=text, part=text, dim=(op.dims or ("H",))[0], share=1.0, **blank(latency_ms, run)
    )


def table_of(op: Op, variant: str) -> str:
    return registry.target(registry.find(op, variant), op)


def read_mapped(
    path: Path, mapping: TableMapping, found: Found, *, device: str, run: str, layout: str
) -> None:
    """Add the rows of one table; raises `InvalidFileError` with the line and what is wrong.

    `layout` is how the SoC's GPU stores tensors, which transfers are taken to be of.
    """
    columns, records = read_table(path)
    fix = f"The mapping is {mapping.path}."
    check_columns(path, columns, mapping.columns, fix)
    own = [r for r in records if not mapping.device or r.text(mapping.device) == device]
    if not own and mapping.device:
        known = ", ".join(sorted({r.text(mapping.device) for r in records})) or "none"
        raise InvalidFileError(
            path,
            f"no line has {mapping.device} = {device!r}; there are {known}.",
            fix="Name one by --device, or by the SoC's name.",
        )
    for record in own:
        try:
            _read(record, mapping, found, run, layout)
        except CodlError as error:
            raise InvalidFileError(
                path, str(error), where=f"line {record.line}", fix=fix
            ) from error


def _read(record: CellRecord, mapping: TableMapping, found: Found, run: str, layout: str) -> None:
    label = f"{run}/{record.text(mapping.run)}" if mapping.run else run
    if not _matches(record, mapping.where):
        found.skip("the mapping's `where` leaves it out")
        return
    for row in _transfers(record, mapping, label, layout):
        found.add(DATA_SHARING, row)
    kinds = [columns for columns in mapping.ops if _matches(record, columns.where)]
    if mapping.ops and not kinds:
        found.skip("no op of the mapping is like it")
        return
    for op in (make_op(columns, record) for columns in kinds[:1]):
        for column in mapping.latencies:
            latency = record.latency_ms(column.column, mapping.unit)
            found.add(table_of(op, column.variant), op_row(op, latency, label))


def _matches(record: CellRecord, where: Where) -> bool:
    return all(record.text(column) in values for column, values in where.items())


def _transfers(
    record: CellRecord, mapping: TableMapping, run: str, layout: str
) -> Iterator[SharingRow]:
    if mapping.transfers is None:
        return
    text = record.text(mapping.transfers.shape)
    try:
        shape = as_nchw(tuple(int(size) for size in text.replace("x", ",").split(",")))
    except ValueError as error:
        raise CodlError(
            f"{mapping.transfers.shape} must be sizes like 1,64,56,56, got {text!r}."
        ) from error
    if min(shape) < 1:
        raise CodlError(f"{mapping.transfers.shape} must have sizes of at least 1, got {text!r}.")
    for direction in ("to_gpu", "to_cpu"):
        latency = record.latency_ms(getattr(mapping.transfers, direction), mapping.unit)
        common = blank(latency, run)
        yield SharingRow(direction=direction, shape=str(shape), layout=layout, **common)


def make_op(columns: OpColumns, record: CellRecord) -> Op:
    """The op of one line; its output has the size that the line gives."""

    def number(cell: Cell) -> int:
        return record.size(cell) if isinstance(cell, str) else cell

    shape = Shape(1, *(number(cell) for cell in columns.input))
    out = Shape(1, *(number(cell) for cell in columns.output)) if columns.output else shape
    if columns.kind == "fc":
        return FullyConnected(inputs=(shape,), out_channels=out.c)
    if columns.kind == "eltwise":
        return Eltwise(inputs=(shape, shape))
    kernel = Size2(*(number(cell) for cell in columns.kernel))
    stride = Size2(*(number(cell) for cell in columns.stride))
    if columns.pad is not None:
        h, w = (_padding(record, cell) for cell in columns.pad)
        op = _window(columns, shape, Pad(h, w, h, w), kernel, stride, out.c, number)
        if columns.output and op.output != out:
            raise CodlError(f"pad gives an output of {op.output}, the columns say {out}.")
        return op
    fitting, pad = fitted(shape, Size2(out.h, out.w), kernel=kernel, stride=stride)
    return _window(columns, fitting, pad, kernel, stride, out.c, number)


def _padding(record: CellRecord, cell: Cell) -> int:
    """Padding may be none, unlike every other size."""
    return (
        0
        if isinstance(cell, str) and record.text(cell) == "0"
        else (record.size(cell) if isinstance(cell, str) else cell)
    )


def _window(
    columns: OpColumns,
    shape: Shape,
    pad: Pad,
    kernel: Size2,
    stride: Size2,
    out_channels: int,
    number: Any,
) -> Conv2d | Pool2d:
    common: dict[str, Any] = {"inputs": (shape,), "kernel": kernel, "stride": stride, "pad": pad}
    if columns.kind == "pooling":
        return checked(Pool2d(**common, mode="avg" if columns.mode == "avg" else "max"))
    groups = number(columns.groups)
    if shape.c % groups or out_channels % groups:
        raise CodlError(
            f"groups must divide the {shape.c} input and {out_channels} output channels, "
            f"got {groups}."
        )
    return checked(Conv2d(**common, out_channels=out_channels, groups=groups))


def checked(op: Conv2d | Pool2d) -> Conv2d | Pool2d:
    """The op; raises `CodlError` where it has no output."""
    if min(op.output) < 1:
        raise CodlError(f"the op {to_text(op)!r} has an empty output ({op.output}).")
    return op
