"""Products of matrices on CPU runtimes: register tiles over panels of packed columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.types import ConstantArray
from codl.kernels import registers, tiling_columns
from codl.kernels.base import (
    Arg,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    no_constants,
)
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    first_choice,
    gpu_cache_bytes,
    unique,
)
from codl.kernels.matmul.problem import OUT, A, B, Problem, refusal
from codl.kernels.tiling import ITEMS_PER_UNIT, base_defines, ceil_div
from codl.kernels.variant import ByChoiceColumns, ForPlanar
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
#: Vectors of columns of a tile of up to so many rows, and of others.
NARROW_ROWS, WIDE, USUAL = 2, 4, 2


@dataclass(frozen=True)
class _Tiling:
    """How products are cut; all that the plan and the features have in common."""

    ops: MatMulColumns
    soc: Soc
    rows: Column
    wide: Column
    packed: Column

    @classmethod
    def of(cls, ops: MatMulColumns, soc: Soc, choice: ChoiceColumns) -> _Tiling:
        names = ("rows", "columns", "packed")
        rows, wide, packed = (np.asarray(choice[n], np.float64) + 0 * ops.m for n in names)
        return cls(ops, soc, rows, wide, packed)

    @cached_property
    def panel(self) -> Column:
        """Columns of a panel."""
        return self.wide * self.soc.gpu.vector_width

    @cached_property
    def panels(self) -> Column:
        return columns.ceil_div(self.ops.n, self.panel)

    @cached_property
    def row_tiles(self) -> Column:
        return columns.ceil_div(self.ops.m, self.rows)

    @cached_property
    def depth(self) -> Column:
        """k of a work-item at a time: all of it, but where it must fit in a block."""
        step, whole = self.ops.depth_step, self.ops.k
        most = np.maximum(1, np.floor(block_elements(self.soc) / (self.panel * step))) * step
        parts = np.where(self.packed == INSIDE, columns.ceil_div(whole, most), 1.0)
        return np.minimum(whole, columns.round_up(columns.ceil_div(whole, parts), step))

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
        return columns.ceil_div(self.panels, self.group)

    @cached_property
    def strip(self) -> Column:
        """Tiles of a work-item: their rows stay in the cache, where panels are not packed anew."""
        row_bytes = 4 * self.rows * self.ops.k
        near = np.maximum(1, np.floor(CACHE_SHARE * self.soc.cpu.l2_cache_bytes / row_bytes))
        most = np.where(self.packed == INSIDE, self.row_tiles, near)
        return tiling_columns.strip(self.row_tiles, self.groups * self.ops.products, most, self.soc)

    @cached_property
    def strips(self) -> Column:
        return columns.ceil_div(self.row_tiles, self.strip)

    @cached_property
    def items(self) -> Column:
        return self.strips * self.groups * self.ops.products

    @cached_property
    def computed(self) -> Column:
        """Columns that tiles compute: of the last panel one vector, if that is enough."""
        width = float(self.soc.gpu.vector_width)
        left = columns.rest(self.ops.n, self.panel)
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


class GpuDirect(ForPlanar, ByChoiceColumns):
    """Any batches, transposed operands or not; a constant b is packed once, a tensor each time."""

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "matmul"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    source: ClassVar[str] = "matmul/gpu_direct.cl"
    op_columns: ClassVar[type[MatMulColumns]] = MatMulColumns

    def refusal(self, op: Any, soc: Soc) -> str | None:
        return refusal(op)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Tiles of a size that wastes few rows, and ways to read b."""
        ops = self.op_columns.of([op])
        default = first_choice(self.default_columns(ops, soc))
        problem, found = Problem.of(op), [default]
        ways = [default["packed"]] if op.matrix else [INSIDE, BEFORE]
        if _may_lie(ops, default["columns"] * soc.gpu.vector_width)[0]:
            ways.append(AS_IT_LIES)
        found += [{**default, "packed": way} for way in ways]
        if problem.m > _most_rows(soc.gpu):
            found += [{**default, "rows": rows} for rows in fitting_rows(soc.gpu)[:2]]
            wider = registers.most_pixels(WIDE, soc.gpu) if soc.gpu.vector_registers else 0
            if wider > NARROW_ROWS and default["packed"] != AS_IT_LIES:
                found.append({**default, "rows": wider, "columns": WIDE})
        return unique(found)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        width = soc.gpu.vector_width
        rows = usual_rows(ops.m, soc.gpu)
        wide = np.where(rows <= NARROW_ROWS, WIDE, USUAL)
        wide = np.minimum(wide, columns.ceil_div(ops.n, width))
        few = columns.ceil_div(ops.m, rows) <= FEW_TILES
        lies = few & _may_lie(ops, wide * width)
        packed = np.where(lies, AS_IT_LIES, np.where(ops.is_constant > 0, BEFORE, INSIDE))
        return {"rows": rows, "columns": wide, "packed": packed.astype(np.float64)}

    def feature_columns(
        self, ops: Any, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        t = _Tiling.of(ops, soc, choice or self.default_columns(ops, soc))
        width, size = soc.gpu.vector_width, float(self.storage.element_bytes)
        rows = t.row_tiles * t.rows * ops.products
        sums = rows * (2 * columns.ceil_div(ops.k, t.depth) - 1)
        tiles = t.row_tiles * t.panels * ops.products
        lies = t.packed == AS_IT_LIES
        stores = np.floor(ops.n / width) + columns.rest(ops.n, width)
        return {
            "padded_macs": rows * t.computed * ops.k,
            "steps": tiles * ops.k,
            "tiles": tiles,
            "stores": sums * np.where(lies, columns.ceil_div(ops.n, width), stores),
            "packed_bytes": 4.0 * t.packed_elements,
            "work_items": t.items,
            "waves": tiling_columns.waves(t.items, soc),
            "output_bytes": size * ops.output_elements,
            "input_bytes": size * ops.input_elements,
            **by_level("weight", self.matrix_bytes(ops), gpu_cache_bytes(soc)),
        }

    def matrix_bytes(self, ops: Any) -> Column:
        """Of a constant matrix and its bias, as they are read."""
        size: Column = self.storage.element_bytes * ops.weight_elements
        return size

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        tiling = _Tiling.of(self.op_columns.of([op]), soc, choice)
        panels = int(tiling.panels[0])
        way = None if op.matrix and choice["packed"] != INSIDE else choice["packed"]
        scratch = self._scratch(tiling, way)
        right = (*self.right(op, way), *([ScratchArg("sums")] if "sums" in scratch else []))
        multiply = _multiply_launch(op, tiling, way, right)
        defined = {
            "TRANS_A": op.trans_a,
            "TRANS_B": op.trans_b and way in (BEFORE, INSIDE),
            "BIAS": bool(op.matrix),
            "DIRECT": way == AS_IT_LIES,
            "INSIDE": way == INSIDE,
            "PARTIAL": "sums" in scratch,
        }
        return KernelPlan(
            source=self.source,
            launches=(_pack_launch(op, panels), multiply) if way == BEFORE else (multiply,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "ROWS": choice["rows"],
                "COLUMNS": choice["columns"],
                **self.more_defines(op),
                **{name: 1 for name, on in defined.items() if on},
                **({"BLOCK_SIZE": block_elements(soc)} if way == INSIDE else {}),
            },
            pack=partial(self.pack, op, soc, int(tiling.panel[0])) if op.matrix else no_constants,
            scratch=scratch,
            storages=dict.fromkeys((A, OUT) if op.matrix else (A, B, OUT), self.storage),
            whole_batch=True,
        )

    def _scratch(self, tiling: _Tiling, way: int | None) -> dict[str, int]:
        """Panels, and sums between blocks that an output of halves would round."""
        found = {}
        if way == BEFORE:
            found["panels"] = self.storage.element_bytes * int(tiling.packed_elements[0])
        if self.storage.element != "float32" and tiling.depth[0] < tiling.ops.k[0]:
            found["sums"] = 4 * int(tiling.sums[0])
        return found

    def more_defines(self, op: Any) -> dict[str, int]:
        """Macros of a kind of matrix."""
        return {}

    def right(self, op: Any, way: int | None) -> tuple[Arg, ...]:
        """What a kernel reads b from, and a bias; `way` is None for a matrix packed before."""
        if way is None:
            return ConstantArg("panels"), ConstantArg("bias")
        return (ScratchArg("panels") if way == BEFORE else B,)

    def pack(self, op: Any, soc: Soc, panel: int, weights: Weights) -> dict[str, ConstantArray]:
        """A constant matrix and its bias, for panels of so many columns."""
        packed = pack_panels(weights["weight"], panel, trans=op.trans_b)
        return {
            "panels": packed.astype(self.storage.element, copy=False),
            "bias": np.pad(weights["bias"], (0, -op.n % panel)),
        }


def _multiply_launch(
    op: MatMul, tiling: _Tiling, way: int | None, right: tuple[Arg, ...]
) -> KernelLaunch:
    """The product itself; `way` says how a tensor b is read, None stands for a constant."""
    problem = Problem.of(op)
    in_panels = int(tiling.panels[0] * tiling.panel[0])
    matrix = problem.k * (in_panels if way in (None, BEFORE) else problem.n)
    sizes = (
        int(tiling.strip[0]),
        int(tiling.group[0]),
        problem.m,
        problem.n,
        problem.k,
        int(tiling.depth[0]),
        problem.m if op.trans_a else problem.k,
        problem.k if op.trans_b else problem.n,
        *problem.inner,
        *problem.steps(problem.m * problem.k, matrix),
        float(op.alpha),
    )
    return KernelLaunch(
        kernel="matmul_direct",
        global_size=(int(tiling.groups[0]), int(tiling.strips[0]), problem.batches),
        local_size=(1, 1, 1),
        args=(A, OUT, *right, *sizes),
    )


def _pack_launch(op: MatMul, panels: int) -> KernelLaunch:
    """The launch that arranges a tensor b in panels."""
    matrices = prod(op.sizes[1][:-2])
    return KernelLaunch(
        kernel="matmul_pack",
        global_size=(ceil_div(op.k, PACKED_DEPTH), panels, matrices),
        local_size=(1, 1, 1),
        args=(B, ScratchArg("panels"), op.n, op.k, PACKED_DEPTH, op.k if op.trans_b else op.n),
    )


def block_elements(soc: Soc) -> int:
    """Elements of the panels that a work-item keeps near: some rows of a panel at least."""
    cache = BLOCK_SHARE * (soc.cpu.l2_cache_bytes or USUAL_CACHE)
    found = int(min(cache, LOCAL_SHARE * soc.gpu.local_mem_bytes)) // 4
    return max(found, LEAST_ROWS * WIDE * soc.gpu.vector_width)


def _may_lie(ops: MatMulColumns, panel: Column | int) -> NDArray[np.bool_]:
    """Whether b is a tensor whose rows can be read as they lie, by whole panels."""
    lies: NDArray[np.bool_] = (ops.is_constant + ops.trans_b == 0) & (ops.n >= panel)
    return lies


def fitting_rows(gpu: GpuSide) -> tuple[int, ...]:
    """The rows of a tile of two vectors that the registers hold."""
    known = registers.most_pixels(2, gpu) if gpu.vector_registers else MOST_ROWS[gpu.vector_width]
    return tuple(rows for rows in ROWS if rows <= known)


def _most_rows(gpu: GpuSide) -> int:
    return fitting_rows(gpu)[0]


def usual_rows(m: Column, gpu: GpuSide) -> Column:
    """Rows of a tile: the smallest for all of m; or what wastes least of the two largest."""
    most, second, *_ = known = fitting_rows(gpu)
    smallest = np.min([np.where(m <= rows, rows, most) for rows in known], axis=0)
    wastes_less = columns.round_up(m, second) < columns.round_up(m, most)
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
