"""Ops that only move elements, on the GPU: copies of rows, and transposes of tiles."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from codl.ir.ops.base import Array
from codl.ir.ops.movement import Movement, Offsets, SliceNd
from codl.kernels.base import ENDS, Choice, ConstantArg, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.kernel import Grid, Kernel, Sizes, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.strided.order import RUN, CopiedRows, Tiles, as_rows, as_tiles, collapse
from codl.kernels.tiling import ceil_div, strip, waves
from codl.records.soc import Soc

#: Elements of a piece of a row, and about as many of a work-item, on a CPU at most: a few us.
LONGEST_PIECE = 4096
LONGEST_STRIP = 16384
#: The side of a tile of a device that runs work-items in lockstep (TILE), and its items.
TILE, TILE_ITEMS = 16, 4
#: Elements that such a device can address in one tensor.
MOST_ELEMENTS = 2**31 - 1


class GpuTranspose(Kernel):
    """Any axes; by tiles where rows of the output are columns of the input."""

    op_kind = "transpose"
    base_name = "gpu_copy"
    source = "strided/gpu_copy.cl"

    def refuse(self, op: Movement, soc: Soc) -> str | None:
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

    def refuse(self, op: Movement, soc: Soc) -> str | None:
        if isinstance(op, SliceNd) and op.exact and self.storage.element == "float16":
            return "halves count to 2048 alone, and the op is exact"
        return super().refuse(op, soc)


class GpuTile(GpuTranspose):
    op_kind = "tile"


class GpuPad(GpuTranspose):
    op_kind = "pad"


class GpuWindows(GpuTranspose):
    op_kind = "windows"


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

    `names` are those of the constants with the tables of rows and of elements.
    """
    length, pieces = row_pieces(rows, soc)
    grid = _row_grid(rows, soc)
    return launch(
        "copy_rows",
        grid.sizes,
        source,
        ENDS[1],
        *map(ConstantArg, names),
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
    """Tiles of a work-item down and across, and the sizes."""
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


register(*of_every_storage(GpuTranspose, GpuSlice, GpuTile, GpuPad, GpuWindows))
