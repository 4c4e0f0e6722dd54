"""Products of matrices: what all kernels see of an op, and the GPU's tiles in local memory.

Kernels for a device that is a CPU are in `codl.kernels.cpu_device.matmul`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import BatchAxis, MatMul, MatMulColumns, merged
from codl.ir.types import ConstantArray
from codl.kernels.base import (
    ENDS,
    Arg,
    Choice,
    ConstantArg,
    KernelPlan,
    TensorArg,
    no_constants,
)
from codl.kernels.conv2d.gpu_gemm import GemmCut, GemmProblem, Products, row_window
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import ANY_DEVICE, REAL_GPU, ColumnKernel, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up, waves
from codl.records.soc import Soc

#: Batch axes that remain at most where neighbours are merged; kernels take this many apart.
MOST_AXES = 3
#: The operands and the product.
A, B, OUT = ENDS[0], TensorArg("input", 1), ENDS[1]
#: Rows and columns of the output that a work-item of `GpuTiled` has.
PER_ITEM = 4
#: k of a slice of `GpuTiled`.
DEPTH = 16
#: With more rows, tiles that read a matrix once for many rows are faster.
MOST_ROWS = 4
#: Work-items of a work-group, and vectors of columns that it has; the default first.
SHAPES = ((128, 1), (64, 1), (64, 2), (128, 2), (256, 1), (32, 2), (32, 1))


@dataclass(frozen=True)
class Problem:
    """`batches` products of (m, k) and (k, n).

    `axes` are the batch axes with neighbours merged, ones in front (`m` may have taken one in);
    `a` and `b` say for each how many matrices one index moves on by, 0 where it is stretched.
    """

    m: int
    n: int
    k: int
    axes: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]

    @classmethod
    def of(cls, op: MatMul) -> Problem:
        """Batches that lie alike are one axis, or more rows."""
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
        """Kernels' arguments: batches of an index of the outer axes, and steps of each operand.

        A step is in elements, from one index of an axis to the next; a matrix of `a` has `a_matrix`
        of them, one of `b` `b_matrix`.
        """
        a_steps = {f"a_step{axis}": a_matrix * step for axis, step in enumerate(self.a)}
        b_steps = {f"b_step{axis}": b_matrix * step for axis, step in enumerate(self.b)}
        inner = {"inner2": prod(self.axes[1:]), "inner1": prod(self.axes[2:])}
        return {**inner, **a_steps, **b_steps}


def refuse_axes(op: MatMul) -> str | None:
    """Why no kernel can take the batches of `op` apart."""
    axes = len(Problem.of(op).axes)
    if axes > MOST_AXES:
        return f"batch axes must merge to {MOST_AXES} at most, got {axes}"
    return None


def _steps(axes: tuple[int, ...], present: list[bool]) -> tuple[int, ...]:
    """Matrices of an operand from one index of each axis to the next."""
    steps, matrices = [], 1
    for size, is_present in zip(reversed(axes), reversed(present), strict=True):
        steps.append(matrices if is_present else 0)
        matrices *= size if is_present else 1
    return tuple(reversed(steps))


class GpuGemm(Products):
    """A constant matrix by the tiles of convolutions: rows as they lie, columns and k in fours."""

    op_kind = "matmul"
    multiplies_halves = True

    def product(self, op: MatMul) -> GemmProblem:
        """Rows of all batches are pixels."""
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

        # A row is a pixel; rows lie `in_blocks` blocks of four apart.
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
    """Any batches, transposed operands or not, read as they lie."""

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
        """Large tiles where there are enough of them for every compute unit."""
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
        right: tuple[Arg, ...] = constants if op.matrix else (B,)
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
        """A constant matrix, as it is stored, and its bias."""
        matrix = weights["weight"].astype(self.storage.element, order="C")
        return {"weight": matrix, "bias": np.ascontiguousarray(weights["bias"])}


class GpuRows(ColumnKernel):
    """A few rows at the speed of the memory: a work-group has a few vectors of columns."""

    op_kind = "matmul"
    base_name = "gpu_rows"
    source = "matmul/gpu_rows.cl"
    meant_for = REAL_GPU
    adds_on = ANY_DEVICE
    op_columns: ClassVar[Any] = MatMulColumns

    def refuse(self, op: Any, soc: Soc) -> str | None:
        if not op.matrix or op.trans_a:
            return "b must be a constant, and a stored by rows"
        most = soc.gpu.max_work_group_size
        too_small = most < 32 and f"work-groups of 32 are needed, got at most {most}"
        return refuse_rows(op) or too_small or None

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        most = soc.gpu.max_work_group_size
        return tuple({"items": items, "panels": n} for items, n in SHAPES if items <= most)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        return self.choices(None, soc)[0]

    def counts(self, ops: Any, soc: Soc, choice: Any) -> dict[str, Column]:
        wide = choice["panels"] * soc.gpu.vector_width
        groups = ceil_div(ops.n, wide)
        return {
            "padded_macs": groups * wide * ops.k * ops.m,
            "loop_length": ceil_div(ops.k, choice["items"]),
            "work_groups": groups,
            "waves": ceil_div(groups, soc.gpu.compute_units),
            "weight_bytes": self.stored(ops.weight_elements),
            "input_bytes": self.stored(ops.input_elements),
            "output_bytes": self.stored(ops.output_elements),
        }

    def build(self, op: Any, soc: Soc, choice: Choice) -> KernelPlan:
        items, panels, width = choice["items"], choice["panels"], soc.gpu.vector_width
        product = launch(
            "matmul_rows",
            ((ceil_div(op.n, width * panels) * items, 1, 1), (items, 1, 1)),
            *(A, OUT, ConstantArg("weight"), ConstantArg("bias")),
            n=op.n,
            k=op.k,
        )
        macros = {"ROWS": merged(op)[0], "ITEMS": items, "PANELS": panels}
        return self.assemble(
            op,
            soc,
            product,
            macros=macros,
            pack=partial(self.pack, op, soc),
        )

    def pack(self, op: Any, soc: Soc, weights: Weights) -> dict[str, ConstantArray]:
        """Every V columns apart, zeros beyond the last."""
        columns = weights["weight"] if op.trans_b else weights["weight"].T
        width, panels = soc.gpu.vector_width, ceil_div(op.n, soc.gpu.vector_width)
        packed = np.zeros((panels * width, op.k), self.storage.element)
        packed[: op.n] = columns if op.alpha == 1 else np.float32(op.alpha) * columns
        turned = np.ascontiguousarray(packed.reshape(panels, width, op.k).swapaxes(1, 2))
        return {"weight": turned.reshape(-1), "bias": np.ascontiguousarray(weights["bias"])}


def refuse_rows(op: MatMul) -> str | None:
    """Why kernels that go through a matrix once cannot take an op."""
    rows, axes = merged(op)
    if axes:
        return f"batch axes must be rows of one matrix, got {[axis.size for axis in axes]}"
    return f"rows must be {MOST_ROWS} at most, got {rows}" if rows > MOST_ROWS else None


register(*of_every_storage(GpuRows, GpuGemm, GpuTiled))
