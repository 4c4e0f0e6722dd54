"""Ops that only move elements, on the GPU: copies of rows, and transposes of tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array
from codl.ir.ops.movement import Movement, Offsets, SliceNd
from codl.kernels.base import ENDS, Arg, Choice, ConstantArg, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.strided.order import RUN, CopiedRows, Tiles, as_rows, as_tiles, collapse
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

#: Elements of a piece of a row, and about as many of a work-item, on a CPU at most: a few us.
LONGEST_PIECE = 4096
LONGEST_STRIP = 16384
#: The side of a tile of a device that runs work-items in lockstep (TILE), and its items.
TILE, TILE_ITEMS = 16, 4
#: Elements that such a device can address in one tensor.
MOST_ELEMENTS = 2**31 - 1


class _GpuCopy(ForPlanar):
    """Any axes; by tiles where rows of the output are columns of the input."""

    base_name: ClassVar[str] = "gpu_copy"

    def refusal(self, op: Movement, soc: Soc) -> str | None:
        most = max(op.input.elements, op.output.elements)
        if most > MOST_ELEMENTS:
            return f"a tensor must have at most {MOST_ELEMENTS} elements, got {most}"
        return None

    def choices(self, op: Movement, soc: Soc) -> tuple[Choice, ...]:
        rows: Choice = {"tiles": 0}
        return ({"tiles": 1}, rows) if _tiles(op, soc) is not None else (rows,)

    def features(self, op: Movement, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        order = _order(op, soc, choice or self.choices(op, soc)[0])
        elements = float(op.output.elements)
        tiled = isinstance(order, Tiles)
        pieces = items = 0
        if isinstance(order, Tiles):
            grid, local = _tile_grid(order, soc)[1:]
            items = int(np.prod(grid))
            pieces = items // int(np.prod(local))
        else:
            length, pieces = row_pieces(order, soc)
            items = ceil_div(pieces, _strip(length, pieces, soc))
        return {
            "output_bytes": self.stored_bytes(op.output.bytes),
            "tiled_elements": elements if tiled else 0.0,
            "gathered_elements": elements if isinstance(order, CopiedRows) and order.kind else 0.0,
            "pieces": float(pieces),
            "work_items": float(items),
            "waves": waves(items, soc),
        }

    def plan(self, op: Movement, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        order = _order(op, soc, choice or self.choices(op, soc)[0])
        if isinstance(order, Tiles):
            kind, launch = RUN, _tile_launch(order, op.fill, soc)
            tables = {"inputs": order.inputs, "outputs": order.outputs}
        else:
            kind, launch = order.kind, row_launch(order, op.fill, soc)
            tables = {"rows": order.starts, "inner": order.inner}
        return KernelPlan(
            source="strided/gpu_copy.cl",
            launches=(launch,),
            defines={**base_defines(op.activation, soc, self.storage), "KIND": kind},
            pack=lambda weights: {name: as_ints(table) for name, table in tables.items()},
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )


class TransposeCopy(_GpuCopy):
    op_kind: ClassVar[str] = "transpose"


class SliceCopy(_GpuCopy):
    op_kind: ClassVar[str] = "slice"

    def refusal(self, op: Movement, soc: Soc) -> str | None:
        if isinstance(op, SliceNd) and op.exact and self.storage.element == "float16":
            return "halves count to 2048 alone, and the op is exact"
        return super().refusal(op, soc)


class TileCopy(_GpuCopy):
    op_kind: ClassVar[str] = "tile"


class PadCopy(_GpuCopy):
    op_kind: ClassVar[str] = "pad"


class WindowsCopy(_GpuCopy):
    op_kind: ClassVar[str] = "windows"


def as_ints(table: Offsets) -> Array:
    """A table of 32-bit integers, as the constant that a kernel reads it from."""
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
    """Elements of a piece, and pieces."""
    length = min(rows.size, LONGEST_PIECE) if soc.gpu.is_cpu else soc.gpu.vector_width
    return length, rows.starts.size * ceil_div(rows.size, length)


def _strip(length: int, pieces: int, soc: Soc) -> int:
    """Pieces of a work-item."""
    return strip(pieces, 1, ceil_div(LONGEST_STRIP, length), soc)


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

    `names` are those of the constants with the tables of rows and of elements.
    """
    length, pieces = row_pieces(rows, soc)
    each = _strip(length, pieces, soc)
    global_size, local_size = item_grid(ceil_div(pieces, each), 1, soc)
    inner = ConstantArg(names[1])
    sizes: tuple[Arg, ...] = (float(fill), each, pieces, length, rows.size)
    where: tuple[Arg, ...] = (rows.first, rows.step, rows.low, rows.high, base, pitch or rows.size)
    args = (source, ENDS[1], ConstantArg(names[0]), inner, *sizes, *where)
    return KernelLaunch("copy_rows", global_size, args, local_size)


def _tile_grid(tiles: Tiles, soc: Soc) -> tuple[tuple[int, int], tuple[int, ...], tuple[int, ...]]:
    """Tiles of a work-item down and across, global and local size."""
    batches = tiles.inputs.size
    if not soc.gpu.is_cpu:
        side = (ceil_div(tiles.columns, TILE) * TILE, ceil_div(tiles.rows, TILE) * TILE_ITEMS)
        return (1, 1), (*side, batches), (TILE, TILE_ITEMS, 1)
    width = soc.gpu.vector_width
    down, across = tiles.rows // width, tiles.columns // width
    most = ceil_div(LONGEST_STRIP, width * width)
    if tiles.in_step > tiles.out_step:
        each = strip(down, across * batches, most, soc)
        return (each, 1), (ceil_div(down, each), across, batches), (1, 1, 1)
    each = strip(across, down * batches, most, soc)
    return (1, each), (down, ceil_div(across, each), batches), (1, 1, 1)


def _tile_launch(tiles: Tiles, fill: float, soc: Soc) -> KernelLaunch:
    each, global_size, local_size = _tile_grid(tiles, soc)
    sizes = (*each, tiles.rows, tiles.columns, tiles.in_step, tiles.out_step)
    tables = (ConstantArg("inputs"), ConstantArg("outputs"))
    args = (*ENDS, *tables, float(fill), *sizes)
    return KernelLaunch("transpose_tiles", global_size, args, local_size)
