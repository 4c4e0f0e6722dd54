"""The tables that the original CoDL writes: `lat_datasets/<soc>/t_<name>_<date>.csv`.

Its public collecting scripts say the columns of each table, that latencies are in milliseconds, and
that IH and IW are of the padded input of the part that ran, so the ops have no padding. PDIM is 1
for the height and 4 for output channels, PRATIO the GPU's share. Lines of some tables have more
values than the first line has names: deviations and the partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from codl.errors import CodlError, InvalidFileError
from codl.ir import Dim, Op, Shape, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.matmul import FullyConnected
from codl.ir.ops.window import Pool2d, Size2
from codl.ir.types import PROCESSORS, Processor
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

UNIT = "ms"
#: Output columns that one work-item of the original's GPU kernels computes, by kernel size.
WIDTH_BLOCK = {1: 4, 3: 5}
CHANNELS_BLOCK = 4
#: PDIM by value; the parts of other dimensions are no parts of ours.
DIMS: Mapping[int, Dim] = {1: "H", 4: "OC"}
SHARING = ("T_DT_IN", "T_MAP_IN", "T_SYNC", "T_UNMAP_IN", "T_MAP_OUT", "T_UNMAP_OUT", "T_DT_OUT")
#: The columns of the lines of `t_data_sharing.csv`; its first line names neither deviations nor the
#: partition.
_TERMS = ("DT_IN", "MAP_IN", "MAP_OUT", "SYNC", "UNMAP_IN", "UNMAP_OUT", "DT_OUT", "SYNC_2")
SHARING_WRITTEN = (
    *(f"T_{term}" for term in _TERMS),
    *(f"SD_{term}" for term in _TERMS),
    *("PDIM", "PRATIO", "IH", "IW", "IC", "OH", "OW", "OC", "DATA_IN", "DATA_OUT"),
)


@dataclass(frozen=True)
class Original:
    """How to read one of the tables: whose latencies, the sum of which columns, of which op.

    `written` are the columns of lines that have more values than the first line has names. `times`
    says how often a column counts, where not once.
    """

    processor: Processor
    latency: tuple[str, ...]
    columns: tuple[str, ...]
    make: Callable[[CellRecord], Op]
    written: tuple[str, ...] = ()
    times: Callable[[CellRecord, str], int] = lambda record, column: 1


def _input(record: CellRecord) -> Shape:
    return Shape(1, record.size("IC"), record.size("IH"), record.size("IW"))


def _window(record: CellRecord) -> dict[str, Any]:
    size = record.size
    kernel, stride = Size2(size("KH"), size("KW")), Size2(size("SH"), size("SW"))
    return {"inputs": (_input(record),), "kernel": kernel, "stride": stride}


def _conv(record: CellRecord) -> Op:
    return checked(Conv2d(**_window(record), out_channels=record.size("OC")))


def _conv_of_winograd(record: CellRecord) -> Op:
    """The original has Winograd for 3x3 windows of stride 1."""
    channels = record.size("OC")
    return checked(Conv2d(inputs=(_input(record),), out_channels=channels, kernel=Size2(3, 3)))


def _winograd_times(record: CellRecord, column: str) -> int:
    """COMP is the product of one point of a tile, which has (OT + 2)^2 of them."""
    return (record.size("OT") + 2) ** 2 if column == "COMP" else 1


def _conv_of_blocks(record: CellRecord) -> Op:
    """A convolution that fills the blocks of the table."""
    size = record.size
    kernel, stride, rows = size("KS"), size("S"), size("OH")
    width = size("OWB") * WIDTH_BLOCK.get(kernel, 4)
    h, w = ((out - 1) * stride + kernel for out in (rows, width))
    return Conv2d(
        inputs=(Shape(1, CHANNELS_BLOCK * size("ICB"), h, w),),
        out_channels=CHANNELS_BLOCK * size("OCB"),
        kernel=Size2(kernel, kernel),
        stride=Size2(stride, stride),
    )


def _conv_of_gemm(record: CellRecord) -> Op:
    """Only 1x1 convolutions are matrix products there: M output channels, N pixels."""
    shape = Shape(1, record.size("K"), 1, record.size("N"))
    return Conv2d(inputs=(shape,), out_channels=record.size("M"), kernel=Size2(1, 1))


def _pooling(mode: Literal["avg", "max"]) -> Callable[[CellRecord], Op]:
    return lambda record: checked(Pool2d(**_window(record), mode=mode))


def _fc(record: CellRecord) -> Op:
    return FullyConnected(inputs=(_input(record),), out_channels=record.size("OC"))


def _fc_of_gemv(record: CellRecord) -> Op:
    shape = Shape(1, record.size("K"), 1, 1)
    return FullyConnected(inputs=(shape,), out_channels=record.size("M"))


_CONV = ("IH", "IW", "IC", "OC", "KH", "KW", "SH", "SW")
_FC = ("IH", "IW", "IC", "OC")
_OP_WRITTEN = ("CNN", "T_OP", "SD_T_OP", "PDIM", "PRATIO", *_CONV, "DH", "DW", "FLOPS", "PARAMS")
TABLES: dict[str, Original] = {
    **{f"conv2d_op_{p}": Original(p, ("T_OP",), _CONV, _conv) for p in PROCESSORS},
    **{
        f"op_cpu_{name}": Original("cpu", ("T_OP",), _CONV, _conv, _OP_WRITTEN)
        for name in ("direct", "gemm", "winograd")
    },
    "op_gpu_direct": Original("gpu", ("T_OP",), _CONV, _conv, _OP_WRITTEN),
    "conv2d_cpu_direct": Original("cpu", ("COMP",), _CONV, _conv),
    "conv2d_cpu_gemm": Original(
        "cpu", ("PACK_LB", "PACK_RB", "COMP"), ("M", "K", "N"), _conv_of_gemm
    ),
    "conv2d_cpu_winograd_combined": Original(
        "cpu",
        ("PAD", "TR_IN", "COMP", "TR_OUT", "UNPAD"),
        ("IH", "IW", "IC", "OC", "OT"),
        _conv_of_winograd,
        times=_winograd_times,
    ),
    "conv2d_gpu_direct": Original(
        "gpu", ("COMP",), ("OH", "OWB", "ICB", "OCB", "KS", "S"), _conv_of_blocks
    ),
    **{
        f"pooling_{p}_direct_{mode}": Original(p, ("COST",), _CONV, _pooling(mode))
        for p in PROCESSORS
        for mode in ("avg", "max")
    },
    **{f"fc_op_{p}": Original(p, ("T_OP",), _FC, _fc) for p in PROCESSORS},
    "fc_cpu_gemv": Original("cpu", ("COMP",), ("M", "K"), _fc_of_gemv),
    "fc_gpu_direct": Original("gpu", ("COMP",), _FC, _fc),
}


def read_original(path: Path, rows: ImportedRows, *, run: str, layout: str) -> None:
    """Add the rows of one table; raises `InvalidFileError` with the line and what is wrong."""
    name = name_of(path)
    if name == DATA_SHARING:
        columns, records = read_table(path, SHARING_WRITTEN)
        check_columns(path, columns, [*SHARING, "IH", "IW", "IC", "OH", "OW", "OC"], "")
        for record in records:
            with record.located():
                for shared in _sharing(record, run, layout):
                    rows.add(DATA_SHARING, shared)
        return
    if name not in TABLES:
        names = ", ".join(f"t_{n}" for n in (*TABLES, DATA_SHARING))
        raise InvalidFileError(
            path,
            f"not a table that ops can be made of; the original CoDL has {names}.",
            fix="Any other table needs a mapping: --mapping M.yaml.",
        )
    table, parts = TABLES[name], []
    columns, records = read_table(path, table.written)
    check_columns(path, columns, [*table.latency, *table.columns], "")
    for record in records:
        with record.located():
            parts.append(_part(record, table, _sum(record, table), run))
    for part in parts:
        whole = next((p.op for p in parts if p.share == 1 and part.may_be_of(p)), part.op)
        row = op_row(part.op, part.latency_ms, part.run)
        row = replace(row, op=to_text(whole), dim=part.dim, share=part.share)
        rows.add_op(f"{table.processor}_replayed", row, part.op)


def name_of(path: Path) -> str:
    """`t_conv2d_op_cpu_20220110.csv` is `conv2d_op_cpu`; "" for other names."""
    return re.sub(r"[\d_-]*$", "", path.stem[2:]) if path.stem.startswith("t_") else ""


@dataclass(frozen=True)
class _TablePart:
    """What one line measured: a processor's share of a convolution along a dimension."""

    op: Op
    dim: Dim
    share: float
    network: str
    latency_ms: float | None
    run: str

    def may_be_of(self, whole: _TablePart) -> bool:
        """Whether `whole` cut at this share gives this part, up to rounding."""
        ours, theirs = self.op, whole.op
        if self.network != whole.network or type(ours) is not type(theirs):
            return False
        if isinstance(ours, Conv2d | Pool2d) and isinstance(theirs, Conv2d | Pool2d):
            same = (ours.kernel, ours.stride) == (theirs.kernel, theirs.stride)
            if not same or ours.input.c != theirs.input.c:
                return False
        (_, c, h, w), (_, all_c, all_h, all_w) = ours.output, theirs.output
        if w != all_w:
            return False
        cut, full, kept = (h, all_h, c == all_c) if self.dim == "H" else (c, all_c, h == all_h)
        return kept and abs(cut - self.share * full) <= CHANNELS_BLOCK


def _part(record: CellRecord, table: Original, latency: float | None, run: str) -> _TablePart:
    network = record.text("CNN") if "CNN" in record.cells else ""
    dim: Dim = "H"
    share = 1.0
    if {"PDIM", "PRATIO"} <= record.cells.keys():
        value, text = record.size("PDIM"), record.text("PRATIO")
        if value not in DIMS:
            raise CodlError(f"PDIM must be 1 (height) or 4 (output channels), got {value}.")
        dim = DIMS[value]
        try:
            ratio = float(text)
        except ValueError:
            ratio = -1.0
        if not 0 <= ratio <= 1:
            raise CodlError(f"PRATIO must be 0 ... 1, got {text!r}.")
        share = round(ratio if table.processor == "gpu" else 1 - ratio, 6)
    if not share:
        raise CodlError(f"PRATIO {record.text('PRATIO')} leaves the {table.processor} nothing.")
    op = table.make(record)
    if share == 1 or dim not in op.dims:
        dim = (op.dims or ("H",))[0]
    label = f"{run}/{network}" if network else run
    return _TablePart(op, dim, share, network, latency, label)


def _sum(record: CellRecord, table: Original) -> float | None:
    """The sum of some latencies; a term may be 0, and None where one of them failed."""
    total = 0.0
    for column in table.latency:
        value = record.latency_ms(column, UNIT)
        if value is None:
            text = record.text(column)
            if len(table.latency) == 1 or not text or text.strip("0."):
                return None
            value = 0.0
        total += value * table.times(record, column)
    return total or None


def _sharing(record: CellRecord, run: str, layout: str) -> Iterator[SharingRow]:
    """The input becomes visible to the CPU, and its output to the GPU."""
    for direction, side, names in (
        ("to_cpu", "I", ("T_DT_IN", "T_MAP_IN", "T_SYNC", "T_UNMAP_IN")),
        ("to_gpu", "O", ("T_DT_OUT", "T_MAP_OUT", "", "T_UNMAP_OUT")),
    ):
        sizes = (record.size(f"{side}{axis}") for axis in ("C", "H", "W"))
        terms = [(record.latency_ms(name, UNIT) or 0.0) if name else 0.0 for name in names]
        transform, mapping, sync, unmap = terms
        yield SharingRow(
            direction=direction,
            shape=str(Shape(1, *sizes)),
            layout=layout,
            transform_ms=transform,
            map_ms=mapping,
            sync_ms=sync,
            unmap_ms=unmap,
            **common_fields(sum(terms) or None, run),
        )
