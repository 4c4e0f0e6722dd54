"""Products of matrices on CPU runtimes: register tiles over panels of packed columns."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.matmul import MatMul
from codl.ir.soc import GpuSide, Soc
from codl.ir.types import PLANAR, Storage
from codl.kernels import registers
from codl.kernels.base import (
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    no_constants,
)
from codl.kernels.matmul.problem import OUT, A, B, Problem, refusal
from codl.kernels.tiling import base_defines, ceil_div, round_up, strip, waves
from codl.kernels.variant import OnGpu

#: Share of the second-level cache that a strip's rows may take; panels and output share the rest.
CACHE_SHARE = 0.4
#: Rows of b up to this length, in elements, are as fast to read where they lie as packed.
NEAR = 512
#: Rows that a tile may have. Two vectors of each must fit in the registers, as they do up to the
#: most by vector width where their number is not known; and lines of as many in the ways of a cache
#: where rows are a multiple of its size apart.
ROWS, MOST_ROWS = (8, 6, 4, 2, 1), {16: 8, 8: 6, 4: 8}


@dataclass(frozen=True)
class _MatMulTiling:
    """How one product is cut; all that the plan and the features have in common."""

    problem: Problem
    rows: int
    columns: int
    packed: bool
    panel: int
    panels: int
    strip: int
    strips: int

    @classmethod
    def of(cls, op: MatMul, soc: Soc, choice: Choice) -> _MatMulTiling:
        problem = Problem.of(op)
        rows, panel = choice["rows"], choice["columns"] * soc.gpu.vector_width
        panels, tiles = ceil_div(problem.n, panel), ceil_div(problem.m, rows)
        most = max(1, int(CACHE_SHARE * soc.cpu.l2_cache_bytes / (4 * rows * problem.k)))
        length = strip(tiles, panels * problem.batches, most, soc)
        return cls(
            problem=problem,
            rows=rows,
            columns=choice["columns"],
            packed=bool(choice["packed"]),
            panel=panel,
            panels=panels,
            strip=length,
            strips=ceil_div(tiles, length),
        )

    @property
    def items(self) -> int:
        return self.strips * self.panels * self.problem.batches

    @property
    def matrix(self) -> int:
        """Elements from one matrix of b, as the kernel reads it, to the next."""
        return self.problem.k * (self.panels * self.panel if self.packed else self.problem.n)


class GpuDirect(OnGpu):
    """Any batches, transposed operands or not; a constant b is packed once, a tensor each time."""

    name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "matmul"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    storage: ClassVar[Storage] = PLANAR

    def refusal(self, op: MatMul, soc: Soc) -> str | None:
        return refusal(op)

    def choices(self, op: MatMul, soc: Soc) -> tuple[Choice, ...]:
        """Tiles of a size that wastes few rows; b packed before or not."""
        problem, width = Problem.of(op), soc.gpu.vector_width
        found: list[Choice] = []
        for rows in _rows(problem.m, _fitting_rows(soc.gpu)):
            columns = 4 if rows <= 2 else 2
            may_lie = not op.trans_b and not op.matrix and problem.n >= columns * width
            near = problem.n <= NEAR or problem.m <= 4 * rows
            ways = ((0, 1) if near else (1, 0)) if may_lie else (1,)
            found += [{"rows": rows, "columns": columns, "packed": way} for way in ways]
        return tuple(found)

    def features(self, op: MatMul, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        tiling = _MatMulTiling.of(op, soc, choice or self.choices(op, soc)[0])
        problem = tiling.problem
        tiles = ceil_div(problem.m, tiling.rows) * tiling.panels * problem.batches
        packs = tiling.packed and not op.matrix
        return {
            "padded_macs": float(tiles * tiling.rows * tiling.panel * problem.k),
            "tiles": float(tiles),
            "loop_length": float(problem.k),
            "packed_bytes": 4.0 * tiling.matrix * _matrices(op) if packs else 0.0,
            "work_items": float(tiling.items),
            "waves": waves(tiling.items, soc),
            "flops": float(op.flops),
            "input_bytes": float(op.bytes - op.output.bytes),
            "output_bytes": float(op.output.bytes),
        }

    def plan(self, op: MatMul, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _MatMulTiling.of(op, soc, choice or self.choices(op, soc)[0])
        packs = tiling.packed and not op.matrix
        multiply = _multiply_launch(op, tiling)
        defined = {
            "TRANS_A": op.trans_a,
            "TRANS_B": op.trans_b and packs,
            "BIAS": bool(op.matrix),
            "DIRECT": not tiling.packed,
        }

        def pack(weights: Weights) -> dict[str, Array]:
            beyond = tiling.panels * tiling.panel - tiling.problem.n
            return {
                "panels": pack_panels(weights["weight"], tiling.panel, trans=op.trans_b),
                "bias": np.pad(weights["bias"], (0, beyond)),
            }

        return KernelPlan(
            source="matmul/gpu_direct.cl",
            launches=(_pack_launch(op, tiling, soc), multiply) if packs else (multiply,),
            defines={
                **base_defines(op.activation, soc),
                "ROWS": tiling.rows,
                "COLUMNS": tiling.columns,
                **{name: 1 for name, on in defined.items() if on},
            },
            pack=pack if op.matrix else no_constants,
            scratch={"panels": 4 * _matrices(op) * tiling.matrix} if packs else {},
            storages=dict.fromkeys((A, OUT) if op.matrix else (A, B, OUT), PLANAR),
            whole_batch=True,
        )


def _multiply_launch(op: MatMul, tiling: _MatMulTiling) -> KernelLaunch:
    """The product itself: b is a constant, a tensor in panels, or a tensor as it lies."""
    problem = tiling.problem
    constants = (ConstantArg("panels"), ConstantArg("bias"))
    right = constants if op.matrix else (ScratchArg("panels") if tiling.packed else B,)
    sizes = (
        tiling.strip,
        problem.m,
        problem.n,
        problem.k,
        problem.m if op.trans_a else problem.k,
        tiling.panel if tiling.packed else problem.n,
        *problem.inner,
        *problem.steps(problem.m * problem.k, tiling.matrix),
        float(op.alpha),
    )
    return KernelLaunch(
        kernel="matmul_direct",
        global_size=(tiling.panels, tiling.strips, problem.batches),
        local_size=(1, 1, 1),
        args=(A, OUT, *right, *sizes),
    )


def _pack_launch(op: MatMul, tiling: _MatMulTiling, soc: Soc) -> KernelLaunch:
    """The launch that arranges a tensor b in panels."""
    n, k = tiling.problem.n, tiling.problem.k
    return KernelLaunch(
        kernel="matmul_pack",
        global_size=(ceil_div(k, soc.gpu.vector_width), tiling.panels, _matrices(op)),
        local_size=(1, 1, 1),
        args=(B, ScratchArg("panels"), n, k, k if op.trans_b else n),
    )


def _matrices(op: MatMul) -> int:
    """Matrices of b."""
    return prod(op.sizes[1][:-2])


def _fitting_rows(gpu: GpuSide) -> tuple[int, ...]:
    """The rows of a tile of two vectors that the registers hold."""
    known = registers.most_pixels(2, gpu) if gpu.vector_registers else MOST_ROWS[gpu.vector_width]
    return tuple(rows for rows in ROWS if rows <= known)


def _rows(m: int, known: tuple[int, ...]) -> list[int]:
    """Rows of a tile: the smallest for all of m; or the two largest, what wastes least first."""
    if m <= known[0]:
        return [min(rows for rows in known if rows >= m)]
    return sorted(known[:2], key=lambda rows: (round_up(m, rows), -rows))


def pack_panels(matrix: Array, panel: int, *, trans: bool = False) -> Array:
    """(k, n), or (n, k) where `trans` -> [panel of columns][k][panel], flat; zeros beyond n."""
    rows = matrix.T if trans else matrix
    k, n = rows.shape
    packed = np.zeros((ceil_div(n, panel), k, panel), np.float32)
    for index, target in enumerate(packed):
        part = rows[:, index * panel : (index + 1) * panel]
        target[:, : part.shape[1]] = part
    return packed.reshape(-1)
