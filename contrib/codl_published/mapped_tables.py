"""Any table, by a mapping that says what its columns mean (docs/howto/collecting.md).

Sizes in tables become ops whose output has exactly the size that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from codl.errors import CodlError, InvalidFileError
from codl.ir import Op, Shape, yaml_file
from codl.ir.ops.base import Pad
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.matmul import FullyConnected
from codl.ir.ops.window import Pool2d, Size2
from codl.ir.region import as_nchw
from codl.ir.types import Processor
from codl.measure.dataset import SharingRow
from codl_published.tables import (
    DATA_SHARING,
    CellRecord,
    ImportedRows,
    check_columns,
    checked,
    common_fields,
    op_row,
    read_table,
)
from codl_published.variants import THREADS

#: Mappings that come with codl.
SHIPPED = Path(__file__).parent / "mappings"
Column: TypeAlias = Annotated[str, Meta(min_length=1)]
#: A column's name, or the number that holds in every row.
Cell: TypeAlias = Column | int
Cells: TypeAlias = tuple[Cell, Cell, Cell]
#: Of rows and columns; a single one stands for both.
Pair: TypeAlias = Cell | Annotated[tuple[Cell, ...], Meta(min_length=1, max_length=2)]


@dataclass(frozen=True)
class DeviceColumn:
    """The column with the device's name."""

    column: Column = ""


@dataclass(frozen=True)
class OpColumns:
    """What the columns say of one kind of op; `input` and `output` are `in` and `out` in files."""

    kind: Literal["conv2d", "pooling", "fc", "eltwise"]
    input: Cells
    output: Cells | None = None
    kernel: Pair | None = None
    stride: Pair = 1
    pad: Pair | None = None
    groups: Cell = 1
    mode: Literal["", "avg", "max"] = ""
    where: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind == "pooling" and not self.mode:
            raise ValueError("mode must be avg or max")
        if self.kind in ("conv2d", "pooling"):
            if self.kernel is None:
                raise ValueError("kernel is missing")
            if self.output is None and (self.kind == "conv2d" or self.pad is None):
                raise ValueError("give out (padding follows from it), or for pooling pad")

    @property
    def columns(self) -> Iterator[str]:
        pairs = (_pair(pair) for pair in (self.kernel or 1, self.stride, self.pad or 0))
        cells = [*self.input, *(self.output or ()), *(cell for pair in pairs for cell in pair)]
        yield from (cell for cell in (*cells, self.groups) if isinstance(cell, str))
        yield from self.where


@dataclass(frozen=True)
class LatencyColumn:
    """A column of latencies of one processor; `threads` where they are not the SoC's own number."""

    column: Column
    processor: Processor
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and (self.processor, self.threads) not in [
            ("cpu", number) for number in THREADS
        ]:
            raise ValueError(
                f"threads must be of {', '.join(map(str, THREADS))}, on the cpu; leave it out "
                "where it is the SoC's usual number"
            )

    @property
    def variant(self) -> str:
        return f"{self.processor}_replayed" + (f"_threads{self.threads}" if self.threads else "")


@dataclass(frozen=True)
class Transfers:
    """A column with a tensor's sizes as n, c, h, w, and the columns of both transfers."""

    shape: Column
    to_gpu: Column
    to_cpu: Column


@dataclass(frozen=True)
class TableMapping:
    """A whole mapping."""

    unit: Literal["us", "ms", "s"]
    device: DeviceColumn = DeviceColumn()
    run: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    ops: tuple[OpColumns, ...] = ()
    latencies: tuple[LatencyColumn, ...] = ()
    transfers: Transfers | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    socs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.ops) != bool(self.latencies):
            raise ValueError("ops and latencies belong together: give both, or only transfers")
        if not self.ops and self.transfers is None:
            raise ValueError("it maps nothing: give ops and latencies, or transfers")

    @property
    def columns(self) -> list[str]:
        """Every column that is read, each once."""
        names = [self.device.column, self.run, *self.where, *(c.column for c in self.latencies)]
        names += [column for op in self.ops for column in op.columns]
        if self.transfers:
            names += [self.transfers.shape, self.transfers.to_gpu, self.transfers.to_cpu]
        return [column for column in dict.fromkeys(names) if column]


def shipped(path: Path) -> Path:
    """The file, or where there is none the mapping of this name that comes with codl."""
    ours = SHIPPED / f"{path.stem}.yaml"
    return ours if ours.is_file() and not path.exists() else path


def load_mapping(path: Path, device: str) -> TableMapping:
    """Read a mapping for one device; raises `InvalidFileError` with the key that is wrong."""
    content = yaml_file.read_content(path)
    if isinstance(content, dict) and isinstance(content.get("ops"), list):
        names = {"in": "input", "out": "output"}
        ops = [
            {names.get(k, k): v for k, v in op.items()} if isinstance(op, dict) else op
            for op in content["ops"]
        ]
        content = {**content, "ops": ops}
    mapping = yaml_file.convert(content, TableMapping, path)
    latencies = (
        replace(latency, column=latency.column.replace("{device}", device))
        for latency in mapping.latencies
    )
    return replace(mapping, latencies=tuple(latencies))


def read_mapped(
    path: Path,
    mapping_file: Path,
    mapping: TableMapping,
    rows: ImportedRows,
    *,
    device: str,
    run: str,
    layout: str,
) -> None:
    """Add the rows of one table; raises `InvalidFileError` with the line and what is wrong.

    `layout` is how the SoC's GPU stores tensors, which transfers are taken to be of.
    """
    columns, records = read_table(path)
    fix, by = f"The mapping is {mapping_file}.", mapping.device.column
    check_columns(path, columns, mapping.columns, fix)
    of_device = [record for record in records if not by or record.text(by) == device]
    if not of_device and by:
        devices = ", ".join(sorted({record.text(by) for record in records})) or "none"
        raise InvalidFileError(
            path,
            f"no line has {by} = {device!r}; there are {devices}.",
            fix="Name one by --device, or by the SoC's name.",
        )
    for record in of_device:
        with record.located(fix):
            _read(record, mapping, rows, run, layout)


def _read(
    record: CellRecord, mapping: TableMapping, rows: ImportedRows, run: str, layout: str
) -> None:
    label = f"{run}/{record.text(mapping.run)}" if mapping.run else run
    if not _matches(record, mapping.where):
        rows.skip("the mapping's `where` leaves it out")
        return
    if mapping.transfers is not None:
        for row in _transfers(record, mapping.transfers, mapping.unit, label, layout):
            rows.add(DATA_SHARING, row)
    kinds = [columns for columns in mapping.ops if _matches(record, columns.where)]
    if mapping.ops and not kinds:
        rows.skip("no op of the mapping is like it")
        return
    for op in (make_op(columns, record) for columns in kinds[:1]):
        for column in mapping.latencies:
            latency = record.latency_ms(column.column, mapping.unit)
            rows.add_op(column.variant, op_row(op, latency, label), op)


def _matches(record: CellRecord, where: Mapping[str, Any]) -> bool:
    wanted = {
        column: value if isinstance(value, list) else [value] for column, value in where.items()
    }
    return all(record.text(column) in map(str, values) for column, values in wanted.items())


def _transfers(
    record: CellRecord, transfers: Transfers, unit: str, run: str, layout: str
) -> Iterator[SharingRow]:
    text = record.text(transfers.shape)
    try:
        shape = as_nchw(tuple(int(size) for size in text.replace("x", ",").split(",")))
    except ValueError as error:
        raise CodlError(
            f"{transfers.shape} must be sizes like 1,64,56,56, got {text!r}."
        ) from error
    if min(shape) < 1:
        raise CodlError(f"{transfers.shape} must have sizes of at least 1, got {text!r}.")
    for direction, column in (("to_gpu", transfers.to_gpu), ("to_cpu", transfers.to_cpu)):
        common = common_fields(record.latency_ms(column, unit), run)
        yield SharingRow(direction=direction, shape=str(shape), layout=layout, **common)


def make_op(columns: OpColumns, record: CellRecord) -> Op:
    """The op of one line; its output has the size that the line gives."""

    def number(cell: Cell, *, least: int = 1) -> int:
        if isinstance(cell, int):
            return cell
        return 0 if not least and record.text(cell) == "0" else record.size(cell)

    shape = Shape(1, *map(number, columns.input))
    out = Shape(1, *map(number, columns.output)) if columns.output else shape
    if columns.kind == "fc":
        return FullyConnected(inputs=(shape,), out_channels=out.c)
    if columns.kind == "eltwise":
        return Eltwise(inputs=(shape, shape))
    kernel, stride = (
        Size2(*map(number, _pair(column))) for column in (columns.kernel or 1, columns.stride)
    )
    if columns.pad is None:
        shape, pad = fitted(shape, Size2(out.h, out.w), kernel=kernel, stride=stride)
    else:
        h, w = (number(cell, least=0) for cell in _pair(columns.pad))
        pad = Pad(h, w, h, w)
    common: dict[str, Any] = {"inputs": (shape,), "kernel": kernel, "stride": stride, "pad": pad}
    if columns.kind == "pooling":
        op = checked(Pool2d(**common, mode="avg" if columns.mode == "avg" else "max"))
    else:
        groups = number(columns.groups)
        if shape.c % groups or out.c % groups:
            raise CodlError(
                f"groups must divide the {shape.c} input and {out.c} output channels, got {groups}."
            )
        op = checked(Conv2d(**common, out_channels=out.c, groups=groups))
    if columns.pad is not None and columns.output and op.output != out:
        raise CodlError(f"pad gives an output of {op.output}, the columns say {out}.")
    return op


def _pair(cells: Pair) -> tuple[Cell, Cell]:
    both = cells if isinstance(cells, tuple) else (cells,)
    return both[0], both[-1]


def fit(size: int, out: int, *, kernel: int, stride: int) -> tuple[int, int, int]:
    """Input size, and the padding before and behind, that make an output of `out`.

    No padding where the window fits without (VALID); else as little as it takes, an odd element
    behind (SAME). Input that no window reaches, and that would make one more output, is cut off.
    """
    missing = (out - 1) * stride + kernel - size
    if missing <= 0:
        return min(size, size + missing + stride - 1), 0, 0
    before, behind = missing // 2, missing - missing // 2
    if behind > max(kernel - 1, 1):  # a window would only see padding
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
