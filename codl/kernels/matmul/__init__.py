"""Matrix products on the GPU: batch axes, and tiles in local memory or in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.matmul import BatchAxis, MatMul, MatMulColumns, merged
from codl.ir.ops.nd import Sizes
from codl.ir.records.soc import GpuSide, Soc
from codl.ir.types import ConstantArray
from codl.kernels import base, tiling
from codl.kernels.base import ENDS, Choice, ConstantArg, KernelPlan, TensorArg, no_constants
from codl.kernels.conv2d.gpu_gemm import GemmCut, GemmProblem, Products, row_window
from codl.kernels.cpu import NamedArrays, OrtPlan, node, number, of_onnx
from codl.kernels.kernel import CPU_DEVICE, REAL_GPU, ColumnKernel, Kernel, launch, of_every_storage
from codl.kernels.tiling import (
    ITEMS_PER_UNIT,
    ChoiceColumns,
    by_level,
    gpu_cache_bytes,
    strip,
    waves,
)

#: The most merged batch axes; kernels support this many.
MOST_AXES = 3
#: The operands and the product.
A, B, OUT = ENDS[0], TensorArg("input", 1), ENDS[1]
#: Rows, and columns, of the output per work-item of `GpuTiled`.
PER_ITEM = 4
#: Values of k per slice of `GpuTiled`.
DEPTH = 16


@dataclass(frozen=True)
class Problem:
    """`batches` products of (m, k) and (k, n).

    `axes` are the merged batch axes, padded with ones in front; `m` may include one. `a` and `b`
    are the matrices between indices of each axis, 0 where the operand is broadcast.
    """

    m: int
    n: int
    k: int
    axes: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]

    @classmethod
    def of(cls, op: MatMul) -> Problem:
        """Merge batch axes with equal layout, or into the rows."""
        m, batch_axes = merged(op)
        front = [BatchAxis(1, in_a=False, in_b=False)] * (MOST_AXES - len(batch_axes))
        merged_axes = [*front, *batch_axes]
        axes = tuple(axis.size for axis in merged_axes)
        a = _steps(axes, [axis.in_a for axis in merged_axes])
        b = _steps(axes, [axis.in_b for axis in merged_axes])
        return cls(m, op.n, op.k, axes, a, b)

    @property
    def batches(self) -> int:
        return prod(self.axes)

    def numbers(self, a_matrix: int, b_matrix: int) -> dict[str, int]:
        """Kernel arguments: batches per index of the outer axes, and steps of each operand.

        A step is the distance in elements between indices of an axis; `a_matrix` and `b_matrix` are
        the elements of a matrix.
        """
        a_steps = {f"a_step{axis}": a_matrix * step for axis, step in enumerate(self.a)}
        b_steps = {f"b_step{axis}": b_matrix * step for axis, step in enumerate(self.b)}
        inner = {"inner2": prod(self.axes[1:]), "inner1": prod(self.axes[2:])}
        return {**inner, **a_steps, **b_steps}


def refuse_axes(op: MatMul) -> str | None:
    """The reason why kernels cannot separate the batches of `op`; None if they can."""
    axes = len(Problem.of(op).axes)
    if axes > MOST_AXES:
        return f"batch axes must merge to {MOST_AXES} at most, got {axes}"
    return None


def _steps(axes: tuple[int, ...], present: list[bool]) -> tuple[int, ...]:
    """Matrices of an operand between indices of each axis."""
    steps, matrices = [], 1
    for size, is_present in zip(reversed(axes), reversed(present), strict=True):
        steps.append(matrices if is_present else 0)
        matrices *= size if is_present else 1
    return tuple(reversed(steps))


class GpuGemm(Products):
    """A constant matrix by the tiles of convolutions; columns and k must be multiples of 4."""

    op_kind = "matmul"
    multiplies_halves = True

    def product(self, op: MatMul) -> GemmProblem:
        """The product, with the rows of all batches as pixels."""
        halves = self.arithmetic == "float16"
        return GemmProblem(Problem.of(op).m, op.k // 4, op.n // 4, halves=halves)

    def refuse(self, op: MatMul, soc: Soc) -> str | None:
        if not op.matrix or op.trans_a:
            return "b must be a constant, and a stored by rows"
        if op.k % 4 or op.n % 4:
            return f"k and columns must be multiples of 4, got {op.k} and {op.n}"
        return super().refuse(op, soc)

    def counts(self, op: MatMul, soc: Soc, choice: Choice) -> dict[str, float]:
        return {
            **self.product_counts(op, soc, choice),
            "input_bytes": self.stored((op.bytes - op.output.bytes) / 4),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: MatMul, soc: Soc, choice: Choice) -> KernelPlan:
        product, cut = self.product(op), GemmCut(**choice)

        def pack(weights: Weights) -> dict[str, ConstantArray]:
            matrix = weights["weight"].T if op.trans_b else weights["weight"]
            scaled = np.float32(op.alpha) * matrix
            return {
                "weight": cut.pack(scaled[None, None], product).astype(self.storage.element),
                "bias": np.ascontiguousarray(weights["bias"]),
            }

        # A row is a pixel; rows are `in_blocks` blocks of four apart.
        window = row_window(product.pixels, product.in_blocks)
        return self.assemble(
            op,
            soc,
            *cut.launches(product, (A, OUT), window, (0, 0)),
            macros={**cut.macros, "POINTWISE": True, "ROWS": True},
            pack=pack,
            scratch=cut.scratch(product),
        )


class GpuTiled(Kernel):
    """Any batches and transposed operands, read unpacked."""

    op_kind = "matmul"
    base_name = "gpu_tiled"
    source = "matmul/gpu_tiled.cl"
    meant_for = REAL_GPU

    def refuse(self, op: Any, soc: Soc) -> str | None:
        least = (32 // PER_ITEM) ** 2
        if soc.gpu.max_work_group_size < least:
            return f"work-groups must hold {least} work-items, not {soc.gpu.max_work_group_size}"
        return refuse_axes(op)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Choices of tiles; large ones come first where every compute unit gets some."""
        problem = Problem.of(op)
        large = ceil_div(problem.m, 64) * ceil_div(problem.n, 64) * problem.batches
        fits = soc.gpu.max_work_group_size >= (64 // PER_ITEM) ** 2
        tiles = (64, 32) if large >= 2 * soc.gpu.compute_units else (32, 64)
        return tuple({"tile": tile, "depth": DEPTH} for tile in tiles if tile == 32 or fits)

    def counts(self, op: Any, soc: Soc, choice: Choice) -> dict[str, float]:
        problem, tile = Problem.of(op), choice["tile"]
        groups = ceil_div(problem.m, tile) * ceil_div(problem.n, tile) * problem.batches
        depth = round_up(problem.k, choice["depth"])
        items = groups * (tile // PER_ITEM) ** 2
        return {
            "padded_macs": groups * tile * tile * depth,
            "tiles": groups,
            "loop_length": depth,
            "copied_bytes": 8 * groups * tile * depth,
            "work_items": items,
            "waves": waves(items, soc),
            "flops": op.flops,
            "input_bytes": self.stored((op.bytes - op.output.bytes) / 4),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        problem, tile = Problem.of(op), choice["tile"]
        m, n, k, side = problem.m, problem.n, problem.k, tile // PER_ITEM
        constants = ConstantArg("weight"), ConstantArg("bias")
        right: tuple[base.Arg, ...] = constants if op.matrix else (B,)
        product = launch(
            "matmul_tiled",
            (
                (ceil_div(n, tile) * side, ceil_div(m, tile) * side, problem.batches),
                (side, side, 1),
            ),
            *(A, OUT, *right),
            m=m,
            n=n,
            k=k,
            **problem.numbers(m * k, k * n),
            alpha=float(op.alpha),
        )
        return self.assemble(
            op,
            soc,
            product,
            macros={
                "TILE": tile,
                "DEPTH": choice["depth"],
                "TRANS_A": op.trans_a,
                "TRANS_B": op.trans_b,
                "BIAS": bool(op.matrix),
            },
            pack=partial(self.pack, soc) if op.matrix else no_constants,
        )

    def pack(self, soc: Soc, weights: Weights) -> dict[str, ConstantArray]:
        """A constant matrix in its stored order, and its bias."""
        matrix = weights["weight"].astype(self.storage.element, order="C")
        return {"weight": matrix, "bias": np.ascontiguousarray(weights["bias"])}


# A CPU as OpenCL device: register tiles over packed columns.


#: Share of the second-level cache for a strip's rows; panels and output use the rest.
CACHE_SHARE = 0.4
#: Shares of the second-level cache and of local memory for the panels that a work-item reuses over
#: its rows; the cache's bytes where unknown; and the least rows of a panel.
BLOCK_SHARE, LOCAL_SHARE, USUAL_CACHE, LEAST_ROWS = 1 / 8, 1 / 2, 1 << 18, 8
#: Rows of a tile to choose from. Two vectors of each must fit the registers; if their number is
#: unknown, up to the maximum by vector width. A cache set must hold as many lines, as rows may be a
#: multiple of its size apart.
ROWS, MOST_ROWS = (8, 6, 4, 3, 2, 1), {16: 8, 8: 6, 4: 8}
#: A tile of at most NARROW_ROWS rows has WIDE vectors of columns, others have USUAL.
NARROW_ROWS, WIDE, USUAL = 2, 4, 2


@dataclass(frozen=True)
class _Tiling:
    #: Columns of a panel, and panels of b.
    panel: Column
    panels: Column
    row_tiles: Column
    #: Values of k that a work-item computes at a time; limited if it packs b.
    depth: Column
    #: Panels of a work-item, and the number of such groups.
    group: Column
    groups: Column
    #: Tiles of rows of a work-item, and the number of such strips.
    strip: Column
    strips: Column
    items: Column

    @classmethod
    def of(cls, ops: MatMulColumns, soc: Soc, choice: Mapping[str, Column]) -> _Tiling:
        panel, units = choice["columns"] * soc.gpu.vector_width, soc.gpu.compute_units
        panels, row_tiles = ceil_div(ops.n, panel), ceil_div(ops.m, choice["rows"])
        most = np.maximum(1, np.floor(block_elements(soc) / panel))
        depth = ceil_div(ops.k, np.where(ops.is_constant > 0, 1.0, ceil_div(ops.k, most)))
        # As many panels as fit a block and leave work for every unit.
        group = np.floor(block_elements(soc) / (depth * panel))
        if units > 1:
            group = np.minimum(group, np.floor(panels * ops.products / (ITEMS_PER_UNIT * units)))
        group = np.clip(group, 1, panels)
        groups = ceil_div(panels, group)
        # Rows stay in the cache unless a work-item packs panels.
        row_bytes = 4 * choice["rows"] * ops.k
        near = np.maximum(1, np.floor(CACHE_SHARE * soc.cpu.l2_cache_bytes / row_bytes))
        longest = np.where(ops.is_constant > 0, near, row_tiles)
        tiles: Column = strip(row_tiles, groups * ops.products, longest, soc)
        strips = ceil_div(row_tiles, tiles)
        items = strips * groups * ops.products
        return cls(panel, panels, row_tiles, depth, group, groups, tiles, strips, items)


class GpuDirect(ColumnKernel):
    """Any batches and transposed operands; work-items pack blocks of b unless it is constant."""

    op_kind = "matmul"
    source = "matmul/gpu_direct.cl"
    meant_for = CPU_DEVICE
    op_columns: ClassVar[Any] = MatMulColumns

    def refuse(self, op: Any, soc: Soc) -> str | None:
        return refuse_axes(op)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        first, fitting = self._chosen(op, soc, None), fitting_rows(soc.gpu)
        if Problem.of(op).m <= fitting[0]:
            return (first,)
        wider = tiling.most_pixels(WIDE, soc.gpu) if soc.gpu.vector_registers else 0
        wide = [{**first, "rows": wider, "columns": WIDE}] if wider > NARROW_ROWS else []
        return tiling.unique([first, *({**first, "rows": rows} for rows in fitting[:2]), *wide])

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        rows = usual_rows(ops.m, soc.gpu)
        wide = np.where(rows <= NARROW_ROWS, WIDE, USUAL)
        return {"rows": rows, "columns": np.minimum(wide, ceil_div(ops.n, soc.gpu.vector_width))}

    def counts(self, ops: Any, soc: Soc, choice: Any) -> dict[str, Column]:
        t, width = _Tiling.of(ops, soc, choice), soc.gpu.vector_width
        rows = t.row_tiles * choice["rows"] * ops.products
        sums = rows * (2 * ceil_div(ops.k, t.depth) - 1)
        tiles = t.row_tiles * t.panels * ops.products
        # The last panel computes one vector if that is enough.
        left = rest(ops.n, t.panel)
        is_one = (left > 0) & (left <= width)
        computed = np.where(is_one, ops.n - left + width, t.panels * t.panel)
        packed = t.strips * ops.products * (1 - ops.is_constant) * t.panels * t.panel * ops.k
        return {
            "padded_macs": rows * computed * ops.k,
            "steps": tiles * ops.k,
            "tiles": tiles,
            "stores": sums * (np.floor(ops.n / width) + rest(ops.n, width)),
            "packed_bytes": 4.0 * packed,
            "work_items": t.items,
            "waves": waves(t.items, soc),
            "output_bytes": self.stored(ops.output_elements),
            "input_bytes": self.stored(ops.input_elements),
            **by_level("weight", self.stored(ops.weight_elements), gpu_cache_bytes(soc)),
        }

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        t = _Tiling.of(*self.alone(op, soc, choice))
        problem, panel = Problem.of(op), int(t.panel[0])
        m, n, k, is_constant = problem.m, problem.n, problem.k, bool(op.matrix)
        scratch = {}
        if self.storage.element != "float32" and t.depth[0] < k:
            # Float32 sums between blocks, in whole panels.
            scratch["sums"] = 4 * problem.batches * m * int(t.panels[0]) * panel
        multiply = launch(
            "matmul_direct",
            ((int(t.groups[0]), int(t.strips[0]), problem.batches), (1, 1, 1)),
            *(A, OUT),
            *((ConstantArg("panels"), ConstantArg("bias")) if is_constant else (B,)),
            *map(base.ScratchArg, scratch),
            strip=t.strip,
            group=t.group,
            m=m,
            n=n,
            k=k,
            depth=t.depth,
            a_rows=m if op.trans_a else k,
            b_own_rows=k if op.trans_b else n,
            **problem.numbers(m * k, k * (int(t.panels[0]) * panel if is_constant else n)),
            alpha=float(op.alpha),
        )
        macros = {
            "ROWS": choice["rows"],
            "COLUMNS": choice["columns"],
            "TRANS_A": op.trans_a,
            "TRANS_B": op.trans_b and not is_constant,
            "CONSTANT": is_constant,
            "PARTIAL": bool(scratch),
            "BLOCK_SIZE": not is_constant and block_elements(soc),
        }
        pack = partial(self.pack, op, panel) if is_constant else no_constants
        return self.assemble(op, soc, multiply, macros=macros, pack=pack, scratch=scratch)

    def pack(self, op: Any, panel: int, weights: Weights) -> dict[str, ConstantArray]:
        """A constant matrix and its bias, packed in panels of `panel` columns."""
        packed = pack_panels(weights["weight"], panel, trans=op.trans_b)
        return {
            "panels": packed.astype(self.storage.element, copy=False),
            "bias": np.pad(weights["bias"], (0, -op.n % panel)),
        }


def block_elements(soc: Soc) -> int:
    """Elements of panels that stay in cache for a work-item; at least some rows of a panel."""
    cache = BLOCK_SHARE * (soc.cpu.l2_cache_bytes or USUAL_CACHE)
    elements = int(min(cache, LOCAL_SHARE * soc.gpu.local_mem_bytes)) // 4
    return max(elements, LEAST_ROWS * WIDE * soc.gpu.vector_width)


def fitting_rows(gpu: GpuSide) -> tuple[int, ...]:
    """Rows of tiles of two vectors whose sums fit the registers, in descending order."""
    most = tiling.most_pixels(2, gpu) if gpu.vector_registers else MOST_ROWS[gpu.vector_width]
    return tuple(rows for rows in ROWS if rows <= most)


def usual_rows(m: Column, gpu: GpuSide) -> Column:
    """Rows of a tile: the fewest that cover m; for larger m, the better of the two largest."""
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


# The CPU.


def _count_onnx(ops: MatMulColumns, soc: Soc) -> FeatureColumns:
    """Features of tiles of whole vectors of columns; a computed b is packed per product.

    With more than two axes, a bias is a separate step.
    """
    rows = ops.products * ops.m
    turned = ops.trans_a * ops.a_matrices * ops.m + ops.trans_b * ops.b_matrices * ops.n
    added = ops.is_constant * (ops.rank > 2)
    in_panels = round_up(ops.n, soc.cpu.simd_floats)
    return {
        "padded_macs": rows * in_panels * ops.k,
        "rows": rows,
        "ragged": rows * rest(ops.n, soc.cpu.simd_floats),
        "products": ops.products,
        "turned_bytes": 4.0 * turned * (1 - ops.is_constant) * ops.k,
        "packed_bytes": 4.0 * ops.products * (1 - ops.is_constant) * ops.n * ops.k,
        "added": added,
        "added_bytes": 4.0 * added * ops.output_elements,
        "input_bytes": 4.0 * ops.input_elements,
        "output_bytes": 4.0 * ops.output_elements,
        **by_level("weight", 4.0 * ops.weight_elements, soc.cpu.l2_cache_bytes),
    }


def _onnx(op: MatMul) -> OrtPlan:
    """The op as ONNX nodes; a constant matrix is transposed and scaled when packed."""
    nodes: list[Node] = []
    a = _upright(nodes, "x0", op.shapes[0]) if op.trans_a else "x0"
    if op.matrix:
        nodes += [node("MatMul", (a, "weight"), "product"), node("Add", ("product", "bias"))]
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=partial(_packed, op))
    b = _upright(nodes, "x1", op.shapes[1]) if op.trans_b else "x1"
    if op.alpha == 1:
        nodes.append(node("MatMul", (a, b)))
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes)
    nodes += [node("MatMul", (a, b), "product"), node("Mul", ("product", "alpha"))]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, {"alpha": number(op.alpha)})


def _upright(nodes: list[Node], name: str, sizes: Sizes) -> str:
    """Add a node that swaps the last two axes of a matrix; returns the result's name."""
    rank = len(sizes)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    nodes.append(node("Transpose", (name,), f"{name}_upright", perm=perm))
    return f"{name}_upright"


def _packed(op: MatMul, weights: Weights) -> NamedArrays:
    matrix = weights["weight"].T if op.trans_b else weights["weight"]
    scaled = matrix if op.alpha == 1 else np.float32(op.alpha) * matrix
    return {"weight": np.ascontiguousarray(scaled), "bias": weights["bias"]}


VARIANTS = (
    *of_every_storage(GpuGemm, GpuTiled),
    *of_onnx("matmul", _onnx, _count_onnx, MatMulColumns),
    *of_every_storage(GpuDirect),
)
