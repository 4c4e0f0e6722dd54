"""Ops that only move elements, of any rank: copies of rows, and transposes of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import prod

import numpy as np

from codl.ir.columns import ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.movement import (
    ConcatNd,
    Gather,
    Movement,
    Offsets,
    PadNd,
    Reshape,
    SliceNd,
    TileNd,
    Transpose,
)
from codl.ir.records.soc import Soc
from codl.kernels.base import ENDS, Choice, ConstantArg, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.cpu import (
    TYPES,
    CpuKernel,
    NcnnLayer,
    OrtPlan,
    ints,
    nd_plan,
    node,
    number,
    of_onnx,
)
from codl.kernels.kernel import Grid, Kernel, Sizes, launch, of_every_storage
from codl.kernels.tiling import strip, waves

#: The most elements of a piece of a row, and roughly of a work-item, on a CPU: a few us.
LONGEST_PIECE = 4096
LONGEST_STRIP = 16384
#: The side of a tile on a real GPU, and its rows of work-items.
TILE, TILE_ITEMS = 16, 4
#: The most addressable elements of a tensor on a real GPU.
MOST_ELEMENTS = 2**31 - 1

# Copies as rows or as tiled matrices. Tables of output axes are as in `codl.ir.ops.movement`: the
# source is the sum of entries, and a negative entry means none.


#: The shortest run of consecutive elements that is copied as vectors, without a table.
SHORTEST_RUN = 16
#: The least length of rows with a table, to keep tables of rows small beside the data,
SHORTEST_ROW = 64
#: and the most where axes can be split, to keep a row's table in cache.
LONGEST_ROW = 1024

#: Addressing of the elements of a row, as the kernel numbers it.
RUN, STEPS, TABLE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class CopiedRows:
    """Rows of `size` elements; `starts` has the source of each row (see gpu_copy.cl)."""

    starts: Offsets
    size: int
    kind: int
    first: int = 0
    step: int = 0
    low: int = 0
    high: int = 0
    inner: Offsets = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(frozen=True, eq=False)
class Tiles:
    """Matrices of the output, `rows` x `columns`, whose columns are contiguous in the input."""

    inputs: Offsets
    outputs: Offsets
    rows: int
    columns: int
    in_step: int
    out_step: int


def collapse(tables: Sequence[Offsets]) -> tuple[Offsets, ...]:
    """Merge the tables of axes that continue each other."""
    merged: list[Offsets] = []
    for table in tables:
        if merged and _continues(merged[-1], table):
            table = merge(merged.pop(), table)
        merged.append(table)
    return tuple(merged) or (np.zeros(1, np.int64),)


def _continues(outer: Offsets, inner: Offsets) -> bool:
    if outer.size == 1 or inner.size == 1:
        return True
    far, near = step_of(outer), step_of(inner)
    return far is not None and near is not None and far == near * inner.size


def merge(outer: Offsets, inner: Offsets) -> Offsets:
    """The table of two axes merged to one."""
    either = (outer[:, None] < 0) | (inner < 0)
    return np.where(either, -1, outer[:, None] + inner).reshape(-1)


def step_of(table: Offsets) -> int | None:
    """The constant difference of successive entries, or None."""
    if table.size == 1:
        return 1 if table[0] >= 0 else None
    step = int(table[1] - table[0])
    same = table.min() >= 0 and bool((np.diff(table) == step).all())
    return step if same else None


def _run(table: Offsets) -> tuple[int, int] | None:
    """The range of nonnegative entries if they ascend by 1, else None."""
    inside = np.flatnonzero(table >= 0)
    if not inside.size:
        return 0, 0
    low, high = int(inside[0]), int(inside[-1]) + 1
    return (low, high) if step_of(table[low:high]) == 1 else None


def as_rows(tables: Sequence[Offsets]) -> CopiedRows:
    """Split the output into rows; `tables` must be collapsed."""
    *outer, row = tables
    while outer and (_run(row) is None or row.size < SHORTEST_RUN) and row.size < SHORTEST_ROW:
        taken, rest = _cut(outer.pop(), LONGEST_ROW // row.size)
        outer += [rest] if rest is not None else []
        row = merge(taken, row)
    starts = reduce(merge, outer, np.zeros(1, np.int64))
    step, run = step_of(row), _run(row)
    if run is not None:
        low, high = run
        return CopiedRows(starts, row.size, RUN, int(row[low]) - low, low=low, high=high)
    if step is not None:
        return CopiedRows(starts, row.size, STEPS, int(row[0]), step)
    return CopiedRows(starts, row.size, TABLE, inner=row)


def _cut(table: Offsets, most: int) -> tuple[Offsets, Offsets | None]:
    """Split an axis of even steps in two, the inner with at most `most` entries, if possible."""
    if table.size <= most or step_of(table) is None:
        return table, None
    inner = max(n for n in range(1, max(most, 1) + 1) if table.size % n == 0)
    if inner == 1:
        return table, None
    near = table[:inner] - table[:inner].min()  # entries stay positive with negative steps
    return near, table[::inner] - near[0]


def as_tiles(tables: Sequence[Offsets], least: int) -> Tiles | None:
    """The output as matrices to transpose, with at least `least` rows and columns, if any."""
    *outer, columns = tables
    in_step = step_of(columns)
    if in_step is None or in_step == 1 or columns.size < least:
        return None
    dense = [i for i, t in enumerate(outer) if step_of(t) == 1 and t.size >= least]
    if not dense:
        return None
    axis = dense[-1]
    sizes = [table.size for table in tables]
    places = [np.arange(n) * prod(sizes[i + 1 :]) for i, n in enumerate(sizes)]
    first = np.array([outer[axis][0] + columns[0]])
    others = [i for i in range(len(outer)) if i != axis]
    return Tiles(
        inputs=reduce(merge, [outer[i] for i in others], first),
        outputs=reduce(merge, [places[i] for i in others], np.zeros(1, np.int64)),
        rows=sizes[axis],
        columns=columns.size,
        in_step=in_step,
        out_step=prod(sizes[axis + 1 :]),
    )


class GpuTranspose(Kernel):
    """Transpose of any axes, by tiles where rows of the output are columns of the input."""

    op_kind = "transpose"
    base_name = "gpu_copy"
    source = "strided/gpu_copy.cl"

    def refuse(self, op: Movement, soc: Soc) -> str | None:
        if isinstance(op, SliceNd) and op.exact and self.storage.element == "float16":
            return "halves count to 2048 alone, and the op is exact"
        most = max(op.input.elements, op.output.elements)
        if most > MOST_ELEMENTS:
            return f"a tensor must have at most {MOST_ELEMENTS} elements, got {most}"
        return None

    def choices(self, op: Movement, soc: Soc) -> tuple[Choice, ...]:
        rows: Choice = {"tiles": 0}
        has_room = soc.gpu.is_cpu or soc.gpu.max_work_group_size >= TILE * TILE_ITEMS
        return ({"tiles": 1}, rows) if has_room and _tiles(op, soc) is not None else (rows,)

    def counts(self, op: Movement, soc: Soc, choice: Choice) -> dict[str, float]:
        order, elements = _order(op, soc, choice), op.output.elements
        if isinstance(order, Tiles):
            _, (global_size, local_size, *_) = _tile_grid(order, soc)
            items = int(np.prod(global_size))
            pieces = items // int(np.prod(local_size or (1,)))
        else:
            pieces, items = row_pieces(order, soc)[1], _row_grid(order, soc).items
        return {
            "output_bytes": self.stored(elements),
            "tiled_elements": elements if isinstance(order, Tiles) else 0,
            "gathered_elements": elements if isinstance(order, CopiedRows) and order.kind else 0,
            "pieces": pieces,
            "work_items": items,
            "waves": waves(items, soc),
        }

    def build(self, op: Movement, soc: Soc, choice: Choice) -> KernelPlan:
        order = _order(op, soc, choice)
        if isinstance(order, Tiles):
            kind, copy = RUN, _tile_launch(order, op.fill, soc)
            tables = {"inputs": order.inputs, "outputs": order.outputs}
        else:
            kind, copy = order.kind, row_launch(order, op.fill, soc)
            tables = {"rows": order.starts, "inner": order.inner}
        return self.assemble(
            op,
            soc,
            copy,
            macros={"KIND": kind},
            pack=lambda weights: {name: as_ints(table) for name, table in tables.items()},
        )


class GpuSlice(GpuTranspose):
    op_kind = "slice"


class GpuTile(GpuTranspose):
    op_kind = "tile"


class GpuPad(GpuTranspose):
    op_kind = "pad"


def as_ints(table: Offsets) -> Array:
    """A table as 32-bit integers in the type of constants."""
    return table.astype(np.int32).view(np.float32)


@lru_cache(maxsize=64)
def _tables(op: Movement) -> tuple[Offsets, ...]:
    return collapse(op.offsets)


def _tiles(op: Movement, soc: Soc) -> Tiles | None:
    return as_tiles(_tables(op), soc.gpu.vector_width if soc.gpu.is_cpu else TILE // 2)


def _order(op: Movement, soc: Soc, choice: Choice) -> CopiedRows | Tiles:
    tiles = _tiles(op, soc) if choice["tiles"] else None
    return as_rows(_tables(op)) if tiles is None else tiles


def row_pieces(rows: CopiedRows, soc: Soc) -> tuple[int, int]:
    """Elements of a piece, and the number of pieces."""
    length = min(rows.size, LONGEST_PIECE) if soc.gpu.is_cpu else soc.gpu.vector_width
    return length, rows.starts.size * ceil_div(rows.size, length)


def _row_grid(rows: CopiedRows, soc: Soc) -> Grid:
    length, pieces = row_pieces(rows, soc)
    return Grid.of(pieces, 1, ceil_div(LONGEST_STRIP, length), soc)


def row_launch(
    rows: CopiedRows,
    fill: float,
    soc: Soc,
    *,
    source: TensorArg = ENDS[0],
    names: tuple[str, str] = ("rows", "inner"),
    base: int = 0,
    pitch: int = 0,
) -> KernelLaunch:
    """A launch of copy_rows; rows of the output begin at `base`, `pitch` elements apart.

    `names` are the constants with the tables of rows and of elements.
    """
    length, pieces = row_pieces(rows, soc)
    grid = _row_grid(rows, soc)
    return launch(
        "copy_rows",
        grid.sizes,
        *(source, ENDS[1], ConstantArg(names[0]), ConstantArg(names[1])),
        fill=float(fill),
        strip=grid.strip,
        pieces=pieces,
        length=length,
        row_size=rows.size,
        first=rows.first,
        step=rows.step,
        low=rows.low,
        high=rows.high,
        base=base,
        pitch=pitch or rows.size,
    )


def _tile_grid(tiles: Tiles, soc: Soc) -> tuple[tuple[int, int], Sizes]:
    """Tiles of a work-item down and across, and the launch sizes."""
    batches = tiles.inputs.size
    if not soc.gpu.is_cpu:
        side = (ceil_div(tiles.columns, TILE) * TILE, ceil_div(tiles.rows, TILE) * TILE_ITEMS)
        return (1, 1), ((*side, batches), (TILE, TILE_ITEMS, 1))
    width = soc.gpu.vector_width
    down, across = tiles.rows // width, tiles.columns // width
    most = ceil_div(LONGEST_STRIP, width * width)
    if tiles.in_step > tiles.out_step:
        each = strip(down, across * batches, most, soc)
        return (each, 1), ((ceil_div(down, each), across, batches), (1, 1, 1))
    each = strip(across, down * batches, most, soc)
    return (1, each), ((down, ceil_div(across, each), batches), (1, 1, 1))


def _tile_launch(tiles: Tiles, fill: float, soc: Soc) -> KernelLaunch:
    (down, across), sizes = _tile_grid(tiles, soc)
    return launch(
        "transpose_tiles",
        sizes,
        *ENDS,
        ConstantArg("inputs"),
        ConstantArg("outputs"),
        fill=float(fill),
        down=down,
        across=across,
        rows=tiles.rows,
        columns=tiles.columns,
        in_step=tiles.in_step,
        out_step=tiles.out_step,
    )


# Reshape with any number of axes, and concatenation along any axis.


#: The most chunks of V elements of a work-item on a CPU.
LONGEST_COPY = 1024


class GpuCopy(Kernel):
    """Reshape with any number of axes."""

    op_kind = "reshape"
    base_name = "gpu_copy"
    source = "layout/transform.cl"

    def counts(self, op: Reshape, soc: Soc, choice: Choice) -> dict[str, float]:
        return {"output_bytes": self.stored(op.output.elements), **_chunks(op, soc).features}

    def build(self, op: Reshape, soc: Soc, choice: Choice) -> KernelPlan:
        grid = _chunks(op, soc)
        copy = grid.launch("copy_planar", *ENDS, pixels=op.output.elements).of_images(1, ENDS)
        halves = self.storage.element == "float16"
        return self.assemble(op, soc, copy, macros={"PLANAR_HALF": halves})


def _chunks(op: Reshape, soc: Soc) -> Grid:
    return Grid.of(ceil_div(op.output.elements, soc.gpu.vector_width), 1, LONGEST_COPY, soc)


class GpuConcatNd(Kernel):
    """Concatenation along any axis: copies rows of each input to rows of the output."""

    op_kind = "concat_nd"
    base_name = "gpu_rows"
    source = "strided/gpu_copy.cl"

    def counts(self, op: ConcatNd, soc: Soc, choice: Choice) -> dict[str, float]:
        pieces = [row_pieces(_rows(op, index), soc)[1] for index in range(len(op.inputs))]
        return {
            "launches": len(op.inputs),
            "pieces": sum(pieces),
            "waves": sum(waves(count, soc) for count in pieces),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: ConcatNd, soc: Soc, choice: Choice) -> KernelPlan:
        rows = [_rows(op, index) for index in range(len(op.inputs))]
        pitch = sum(row.size for row in rows)
        launches, base = [], 0
        for index, row in enumerate(rows):
            names = (f"rows_{index}", f"rows_{index}")  # contiguous runs need no second table
            source = TensorArg("input", index)
            launches.append(
                row_launch(row, 0.0, soc, source=source, names=names, base=base, pitch=pitch)
            )
            base += row.size
        return self.assemble(
            op,
            soc,
            *launches,
            macros={"KIND": RUN},
            pack=lambda weights: {f"rows_{i}": as_ints(row.starts) for i, row in enumerate(rows)},
        )


def _rows(op: ConcatNd, index: int) -> CopiedRows:
    size = op.row_size(index)
    return CopiedRows(np.arange(op.rows) * size, size, RUN, high=size)


# Gather with indices from a tensor: slices are copied as rows.


#: Shorter slices are gathered element by element.
SHORTEST_SLICE = 16
#: Approximate most elements of a work-item on a CPU.
GATHERED_STRIP = 8192


class GpuGather(Kernel):
    op_kind = "gather"
    base_name = "gpu_rows"
    source = "gather/gpu_rows.cl"

    def counts(self, op: Gather, soc: Soc, choice: Choice) -> dict[str, float]:
        _, pieces, grid = _pieces(op, soc)
        return {
            "pieces": pieces,
            "single_elements": 0 if _by_rows(op) else op.output.elements,
            **grid.features,
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Gather, soc: Soc, choice: Choice) -> KernelPlan:
        length, pieces, grid = _pieces(op, soc)
        indices = TensorArg("input", 1)
        gather = grid.launch(
            "gather_rows" if _by_rows(op) else "gather_elements",
            *(ENDS[0], indices, ENDS[1]),
            pieces=pieces,
            length=length,
            size=op.shapes[0][op.axis],
            count=prod(op.shapes[1]),
            slice=_slice(op),
        )
        # float16 indices would count only to 2048.
        return self.assemble(op, soc, gather, floats=[indices])


def _slice(op: Gather) -> int:
    """Contiguous elements of a slice."""
    return prod(op.shapes[0][op.axis + 1 :])


def _by_rows(op: Gather) -> bool:
    return _slice(op) >= SHORTEST_SLICE


def _pieces(op: Gather, soc: Soc) -> tuple[int, int, Grid]:
    """Elements of a piece, the number of pieces, and their grid."""
    size = _slice(op) if _by_rows(op) else prod(op.shapes[1]) * _slice(op)
    length = min(size, LONGEST_PIECE) if soc.gpu.is_cpu else soc.gpu.vector_width
    pieces = op.output.elements // size * ceil_div(size, length)
    return length, pieces, Grid.of(pieces, 1, ceil_div(GATHERED_STRIP, length), soc)


# The CPU.


def _refuse_ncnn(op: Reshape) -> str | None:
    if op.input.n != op.output.n:
        return f"the batch must stay, got {op.input.n} and {op.output.n}"
    return None


def _ncnn(op: Reshape) -> NcnnLayer:
    sizes = {0: op.output.w, 1: op.output.h, 2: op.output.c}
    return NcnnLayer("Reshape", sizes, after=op.activation, copies_input=True)


def _onnx_reshape(op: Reshape) -> OrtPlan:
    to = ints(*op.to)
    return OrtPlan((node("Reshape", ("x0", "to")),), op.shapes, op.to, {"to": to})


def _onnx_concat_nd(op: ConcatNd) -> OrtPlan:
    names = [f"x{index}" for index in range(len(op.shapes))]
    return nd_plan(op, [node("Concat", names, axis=op.axis)])


#: An end before any first element, for slices with negative steps.
BEFORE_ALL = -(1 << 31)


def _onnx_transpose(op: Transpose) -> OrtPlan:
    transpose = node("Transpose", perm=list(op.perm))
    out = tuple(op.seen[axis] for axis in op.perm)
    return OrtPlan((transpose,), (op.seen,), out)


def _onnx_slice(op: SliceNd) -> OrtPlan:
    ends = [
        start + step * count if start + step * count >= 0 else BEFORE_ALL
        for start, step, count in zip(op.starts, op.steps, op.to, strict=True)
    ]
    constants = {
        "starts": ints(*op.starts),
        "ends": ints(*ends),
        "axes": ints(*range(len(op.to))),
        "steps": ints(*op.steps),
    }
    return nd_plan(op, [node("Slice", ("x0", *constants))], constants)


def _onnx_gather(op: Gather) -> OrtPlan:
    """The op as ONNX nodes, with float indices; those out of range are clipped."""
    size = op.shapes[0][op.axis]
    nodes = [
        node("Cast", ("x1",), "whole", to=TYPES["int64"]),
        node("Clip", ("whole", "first", "last"), "inside"),
        node("Gather", ("x0", "inside"), axis=op.axis),
    ]
    ends = {"first": np.array(-size, np.int64), "last": np.array(size - 1, np.int64)}
    return nd_plan(op, nodes, ends)


def _onnx_tile(op: TileNd) -> OrtPlan:
    return nd_plan(op, [node("Tile", ("x0", "repeats"))], {"repeats": ints(*op.repeats)})


def _onnx_pad(op: PadNd) -> OrtPlan:
    """The op as ONNX nodes; it crops first, because ONNX Runtime mirrors the remaining elements."""
    sizes, nodes, source = op.shapes[0], [], "x0"
    constants: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    if min(*op.before, *op.after) < 0:
        sides = zip(sizes, op.before, op.after, strict=True)
        constants["starts"] = ints(*(max(-before, 0) for before in op.before))
        constants["ends"] = ints(*(size - max(-after, 0) for size, _, after in sides))
        nodes.append(node("Slice", ("x0", "starts", "ends"), "kept"))
        source = "kept"
    constants["pads"] = ints(*(max(pad, 0) for pad in (*op.before, *op.after)))
    inputs = [source, "pads"]
    if op.mode == "constant":
        constants["value"] = number(op.value)
        inputs.append("value")
    nodes.append(node("Pad", inputs, mode=op.mode))
    return nd_plan(op, nodes, constants)


VARIANTS = (
    CpuKernel(
        "reshape",
        _ncnn,
        lambda op, soc: {"output_bytes": op.output.bytes},
        refuse=_refuse_ncnn,
        name="cpu_copy",
    ),
    *of_every_storage(GpuCopy),
    *of_onnx("reshape", _onnx_reshape),
    *of_every_storage(GpuConcatNd),
    *of_onnx("concat_nd", _onnx_concat_nd),
    *of_every_storage(GpuGather),
    *of_onnx("gather", _onnx_gather),
    *of_every_storage(GpuTranspose, GpuSlice, GpuTile, GpuPad),
    *of_onnx("transpose", _onnx_transpose),
    *of_onnx("slice", _onnx_slice),
    *of_onnx("tile", _onnx_tile),
    *of_onnx("pad", _onnx_pad),
)
