"""Products of matrices on a CPU that plays the GPU: register tiles over packed columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, rest
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.types import ConstantArray
from codl.kernels.base import (
    Arg,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    no_constants,
)
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.kernel import CPU_DEVICE, ColumnKernel, Grid, launch, of_every_storage
from codl.kernels.matmul import OUT, A, B, Problem, refuse_axes
from codl.kernels.registry import register
from codl.kernels.tiling import ITEMS_PER_UNIT, ceil_div, round_up, strip, waves
from codl.records.soc import GpuSide, Soc

#: Share of the second-level cache that a strip's rows may take; panels and output share the rest.
CACHE_SHARE = 0.4
#: Share of that cache, and of local memory, for as much of the panels as a work-item goes through
#: before its next rows; and that cache's bytes where they are not known.
BLOCK_SHARE, LOCAL_SHARE, USUAL_CACHE, LEAST_ROWS = 1 / 8, 1 / 2, 1 << 18, 8
#: How a tensor b is read: as it lies, from panels of a launch before, or from those that the
#: work-item packs. A constant is packed beforehand.
AS_IT_LIES, BEFORE, INSIDE = 0, 1, 2
#: Packing is worth it for more tiles of rows.
FEW_TILES = 4
#: k that a work-item of the launch that packs takes.
PACKED_DEPTH = 64
#: Rows that a tile may have. Two vectors of each must fit in the registers, as they do up to the
#: most by vector width where their number is not known; and lines of as many in the ways of a cache
#: where rows are a multiple of its size apart.
ROWS, MOST_ROWS = (8, 6, 4, 3, 2, 1), {16: 8, 8: 6, 4: 8}
#: A tile of at most NARROW_ROWS rows is WIDE vectors of columns wide, others are USUAL.
NARROW_ROWS, WIDE, USUAL = 2, 4, 2
#: With more rows, tiles that read b once for several rows are faster than dot products.
MOST_DOT_ROWS = 4


@dataclass(frozen=True)
class _Tiling:
    """How products are cut; all that the plan and the features have in common."""

    ops: MatMulColumns
    soc: Soc
    rows: Column
    wide: Column
    packed: Column

    @classmethod
    def of(cls, ops: MatMulColumns, soc: Soc, choice: Mapping[str, Column]) -> _Tiling:
        return cls(ops, soc, choice["rows"], choice["columns"], choice["packed"])

    @cached_property
    def panel(self) -> Column:
        """Columns of a panel."""
        return self.wide * self.soc.gpu.vector_width

    @cached_property
    def panels(self) -> Column:
        return ceil_div(self.ops.n, self.panel)

    @cached_property
    def row_tiles(self) -> Column:
        return ceil_div(self.ops.m, self.rows)

    @cached_property
    def depth(self) -> Column:
        """k of a work-item at a time: all of it, but where it must fit in a block."""
        most = np.maximum(1, np.floor(block_elements(self.soc) / self.panel))
        parts = np.where(self.packed == INSIDE, ceil_div(self.ops.k, most), 1.0)
        return ceil_div(self.ops.k, parts)

    @cached_property
    def group(self) -> Column:
        """Panels of a work-item: as many as share a block, and leave work for every unit."""
        fitting = np.floor(block_elements(self.soc) / (self.depth * self.panel))
        units = self.soc.gpu.compute_units
        if units > 1:
            items = np.floor(self.panels * self.ops.products / (ITEMS_PER_UNIT * units))
            fitting = np.minimum(fitting, items)
        return np.clip(fitting, 1, self.panels)

    @cached_property
    def groups(self) -> Column:
        return ceil_div(self.panels, self.group)

    @cached_property
    def strip(self) -> Column:
        """Tiles of a work-item: their rows stay in the cache, where panels are not packed anew."""
        row_bytes = 4 * self.rows * self.ops.k
        near = np.maximum(1, np.floor(CACHE_SHARE * self.soc.cpu.l2_cache_bytes / row_bytes))
        most = np.where(self.packed == INSIDE, self.row_tiles, near)
        return strip(self.row_tiles, self.groups * self.ops.products, most, self.soc)

    @cached_property
    def strips(self) -> Column:
        return ceil_div(self.row_tiles, self.strip)

    @cached_property
    def items(self) -> Column:
        return self.strips * self.groups * self.ops.products

    @cached_property
    def grid_features(self) -> dict[str, Column]:
        return {"work_items": self.items, "waves": waves(self.items, self.soc)}

    @cached_property
    def computed(self) -> Column:
        """Columns that tiles compute: of the last panel one vector, if that is enough."""
        width = float(self.soc.gpu.vector_width)
        left = rest(self.ops.n, self.panel)
        is_one = (left > 0) & (left <= width) & (self.packed != AS_IT_LIES)
        return np.where(is_one, self.ops.n - left + width, self.panels * self.panel)

    @cached_property
    def packed_elements(self) -> Column:
        """Elements of b that are written to panels each time."""
        panels, k = self.panels * self.panel, self.ops.k
        before = (self.packed == BEFORE) * (1 - self.ops.is_constant) * self.ops.b_matrices
        times = np.where(self.packed == INSIDE, self.strips * self.ops.products, before)
        return times * panels * k

    @cached_property
    def sums(self) -> Column:
        """Elements of the output in whole panels."""
        return self.ops.products * self.ops.m * self.panels * self.panel


class GpuDirect(ColumnKernel):
    """Any batches, transposed operands or not; a constant b is packed once, a tensor each time."""

    op_kind = "matmul"
    source = "cpu_device/matmul.cl"
    meant_for = CPU_DEVICE
    op_columns: ClassVar[Any] = MatMulColumns

    def refuse(self, op: Any, soc: Soc) -> str | None:
        return refuse_axes(op)

    def alternatives(self, op: Any, soc: Soc, first: Choice) -> Iterable[Choice]:
        """Tiles of a size that wastes few rows, and ways to read b."""
        ways = [first["packed"]] if op.matrix else [INSIDE, BEFORE]
        if _may_lie(self.op_columns.of([op]), first["columns"] * soc.gpu.vector_width)[0]:
            ways.append(AS_IT_LIES)
        yield from ({**first, "packed": way} for way in ways)
        if Problem.of(op).m > fitting_rows(soc.gpu)[0]:
            yield from ({**first, "rows": rows} for rows in fitting_rows(soc.gpu)[:2])
            wider = registers.most_pixels(WIDE, soc.gpu) if soc.gpu.vector_registers else 0
            if wider > NARROW_ROWS and first["packed"] != AS_IT_LIES:
                yield {**first, "rows": wider, "columns": WIDE}

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        width = soc.gpu.vector_width
        rows = usual_rows(ops.m, soc.gpu)
        wide = np.where(rows <= NARROW_ROWS, WIDE, USUAL)
        wide = np.minimum(wide, ceil_div(ops.n, width))
        few = ceil_div(ops.m, rows) <= FEW_TILES
        lies = few & _may_lie(ops, wide * width)
        packed = np.where(lies, AS_IT_LIES, np.where(ops.is_constant > 0, BEFORE, INSIDE))
        return {"rows": rows, "columns": wide, "packed": packed.astype(np.float64)}

    def counts(self, ops: Any, soc: Soc, choice: Any) -> dict[str, Column]:
        t, width = _Tiling.of(ops, soc, choice), soc.gpu.vector_width
        rows = t.row_tiles * t.rows * ops.products
        sums = rows * (2 * ceil_div(ops.k, t.depth) - 1)
        tiles = t.row_tiles * t.panels * ops.products
        lies = t.packed == AS_IT_LIES
        stores = np.floor(ops.n / width) + rest(ops.n, width)
        return {
            "padded_macs": rows * t.computed * ops.k,
            "steps": tiles * ops.k,
            "tiles": tiles,
            "stores": sums * np.where(lies, ceil_div(ops.n, width), stores),
            "packed_bytes": 4.0 * t.packed_elements,
            **t.grid_features,
            "output_bytes": self.stored(ops.output_elements),
            "input_bytes": self.stored(ops.input_elements),
            **by_level("weight", self.stored(ops.weight_elements), gpu_cache_bytes(soc)),
        }

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        t = _Tiling.of(*self.alone(op, soc, choice))
        way = None if op.matrix and choice["packed"] != INSIDE else choice["packed"]
        scratch = self._scratch(t, way)
        right: tuple[Arg, ...] = (ScratchArg("panels") if way == BEFORE else B,)
        if way is None:
            right = ConstantArg("panels"), ConstantArg("bias")
        if "sums" in scratch:
            right = (*right, ScratchArg("sums"))
        multiply = _multiply_launch(op, t, way, right)
        macros = {
            "ROWS": choice["rows"],
            "COLUMNS": choice["columns"],
            "TRANS_A": op.trans_a,
            "TRANS_B": op.trans_b and way in (BEFORE, INSIDE),
            "BIAS": bool(op.matrix),
            "DIRECT": way == AS_IT_LIES,
            "INSIDE": way == INSIDE,
            "PARTIAL": "sums" in scratch,
            "BLOCK_SIZE": way == INSIDE and block_elements(soc),
        }
        panel, panels = int(t.panel[0]), int(t.panels[0])
        return self.assemble(
            op,
            soc,
            *((_pack_launch(op, panels), multiply) if way == BEFORE else (multiply,)),
            macros=macros,
            pack=partial(self.pack, op, soc, panel) if op.matrix else no_constants,
            scratch=scratch,
        )

    def _scratch(self, tiling: _Tiling, way: int | None) -> dict[str, int]:
        """Panels, and sums between blocks that an output of halves would round."""
        scratch = {}
        if way == BEFORE:
            scratch["panels"] = self.storage.element_bytes * int(tiling.packed_elements[0])
        if self.storage.element != "float32" and tiling.depth[0] < tiling.ops.k[0]:
            scratch["sums"] = 4 * int(tiling.sums[0])
        return scratch

    def pack(self, op: Any, soc: Soc, panel: int, weights: Weights) -> dict[str, ConstantArray]:
        """A constant matrix and its bias, for panels of `panel` columns."""
        packed = pack_panels(weights["weight"], panel, trans=op.trans_b)
        return {
            "panels": packed.astype(self.storage.element, copy=False),
            "bias": np.pad(weights["bias"], (0, -op.n % panel)),
        }


def _multiply_launch(
    op: MatMul, t: _Tiling, way: int | None, right: tuple[Arg, ...]
) -> KernelLaunch:
    """The product itself; `way` says how a tensor b is read, None stands for a constant."""
    problem = Problem.of(op)
    m, n, k = problem.m, problem.n, problem.k
    matrix = k * (int(t.panels[0] * t.panel[0]) if way in (None, BEFORE) else n)
    return launch(
        "matmul_direct",
        ((int(t.groups[0]), int(t.strips[0]), problem.batches), (1, 1, 1)),
        *(A, OUT, *right),
        strip=t.strip,
        group=t.group,
        m=m,
        n=n,
        k=k,
        depth=t.depth,
        a_rows=m if op.trans_a else k,
        b_own_rows=k if op.trans_b else n,
        **problem.numbers(m * k, matrix),
        alpha=float(op.alpha),
    )


def _pack_launch(op: MatMul, panels: int) -> KernelLaunch:
    """The launch that arranges a tensor b in panels."""
    matrices = prod(op.sizes[1][:-2])
    return launch(
        "matmul_pack",
        ((ceil_div(op.k, PACKED_DEPTH), panels, matrices), (1, 1, 1)),
        *(B, ScratchArg("panels")),
        n=op.n,
        k=op.k,
        depth=PACKED_DEPTH,
        b_rows=op.k if op.trans_b else op.n,
    )


def block_elements(soc: Soc) -> int:
    """Elements of the panels that a work-item keeps near: some rows of a panel at least."""
    cache = BLOCK_SHARE * (soc.cpu.l2_cache_bytes or USUAL_CACHE)
    elements = int(min(cache, LOCAL_SHARE * soc.gpu.local_mem_bytes)) // 4
    return max(elements, LEAST_ROWS * WIDE * soc.gpu.vector_width)


def _may_lie(ops: MatMulColumns, panel: Column | int) -> NDArray[np.bool_]:
    """Whether b is a tensor whose rows can be read as they lie, by whole panels."""
    lies: NDArray[np.bool_] = (ops.is_constant + ops.trans_b == 0) & (ops.n >= panel)
    return lies


def fitting_rows(gpu: GpuSide) -> tuple[int, ...]:
    """The rows of a tile of two vectors that the registers hold."""
    most = registers.most_pixels(2, gpu) if gpu.vector_registers else MOST_ROWS[gpu.vector_width]
    return tuple(rows for rows in ROWS if rows <= most)


def usual_rows(m: Column, gpu: GpuSide) -> Column:
    """Rows of a tile: the smallest for all of m; or what wastes least of the two largest."""
    most, second, *_ = fitting = fitting_rows(gpu)
    smallest = np.min([np.where(m <= rows, rows, most) for rows in fitting], axis=0)
    wastes_less = round_up(m, second) < round_up(m, most)
    return np.where(m <= most, smallest, np.where(wastes_less, second, most)).astype(float)


def pack_panels(matrix: Array, panel: int, *, trans: bool = False) -> Array:
    """(k, n), or (n, k) where `trans` -> [panel of columns][k][panel], flat; zeros beyond n."""
    rows = matrix.T if trans else matrix
    k, n = rows.shape
    packed = np.zeros((ceil_div(n, panel), k, panel), np.float32)
    for index, target in enumerate(packed):
        part = rows[:, index * panel : (index + 1) * panel]
        target[:, : part.shape[1]] = part
    return packed.reshape(-1)


class GpuDots(ColumnKernel):
    """A few rows by a transposed tensor b: dot products, for which b is read once.

    So are attention's scores while a text is written word by word. They are bound by the memory
    that b comes from, and packing it would take longer than all the rest.
    """

    op_kind = "matmul"
    base_name = "gpu_dots"
    source = "cpu_device/matmul_dots.cl"
    meant_for = CPU_DEVICE
    op_columns = MatMulColumns

    def refuse(self, op: MatMul, soc: Soc) -> str | None:
        if op.matrix or op.trans_a or not op.trans_b:
            return "b must be a transposed tensor, and a none"
        rows = Problem.of(op).m
        if rows > MOST_DOT_ROWS:
            return f"rows must be {MOST_DOT_ROWS} at most, got {rows}"
        return refuse_axes(op)

    def counts(self, ops: MatMulColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        width, grid = soc.gpu.vector_width, _dots_grid(ops, soc)
        steps, lanes = np.floor(ops.k / width), rest(ops.k, width)
        sums = ceil_div(ops.n, width) * ops.products * ops.m
        return {
            "padded_macs": sums * steps * width * width,
            "sums": sums,
            "rest_steps": sums * lanes,
            "loop_length": steps,
            **grid.features,
            "output_bytes": self.stored(ops.output_elements),
            **by_level("input", self.stored(ops.input_elements), gpu_cache_bytes(soc)),
        }

    def build(self, op: MatMul, soc: Soc, choice: Choice) -> KernelPlan:
        problem = Problem.of(op)
        grid = _dots_grid(MatMulColumns.of([op]), soc)
        dots = launch(
            "matmul_dots",
            ((int(grid.strips[0]), problem.batches, 1), (1, 1, 1)),
            *(A, OUT, B),
            strip=grid.strip,
            n=problem.n,
            k=problem.k,
            **problem.numbers(problem.m * problem.k, problem.n * problem.k),
            alpha=float(op.alpha),
        )
        return self.assemble(op, soc, dots, macros={"ROWS": problem.m})


def _dots_grid(ops: MatMulColumns, soc: Soc) -> Grid:
    """Blocks of columns of a work-item."""
    blocks = ceil_div(ops.n, soc.gpu.vector_width)
    return Grid.of(blocks, ops.products, blocks, soc)


register(*of_every_storage(GpuDirect, GpuDots))
