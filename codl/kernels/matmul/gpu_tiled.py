"""Products of matrices on GPUs: tiles in local memory."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg, Choice, ConstantArg, KernelLaunch, KernelPlan, no_constants
from codl.kernels.matmul.problem import OUT, A, B, Problem, refusal
from codl.kernels.tiling import base_defines, ceil_div, round_up, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

#: Rows and columns of the output that a work-item has.
PER_ITEM = 4


class GpuTiled(ForPlanar):
    """Any batches, transposed operands or not, read as they lie."""

    base_name: ClassVar[str] = "gpu_tiled"
    op_kind: ClassVar[str] = "matmul"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    source: ClassVar[str] = "matmul/gpu_tiled.cl"
    #: k of a slice.
    depth: ClassVar[int] = 16

    def refusal(self, op: Any, soc: Soc) -> str | None:
        least = (32 // PER_ITEM) ** 2
        if soc.gpu.max_work_group_size < least:
            return f"work-groups must hold {least} work-items, not {soc.gpu.max_work_group_size}"
        return refusal(op)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        """Large tiles where there are enough of them for every compute unit."""
        problem = Problem.of(op)
        large = ceil_div(problem.m, 64) * ceil_div(problem.n, 64) * problem.batches
        fits = soc.gpu.max_work_group_size >= (64 // PER_ITEM) ** 2
        tiles = (64, 32) if large >= 2 * soc.gpu.compute_units else (32, 64)
        return tuple({"tile": tile, "depth": self.depth} for tile in tiles if tile == 32 or fits)

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        choice = choice or self.choices(op, soc)[0]
        problem, tile = Problem.of(op), choice["tile"]
        groups = ceil_div(problem.m, tile) * ceil_div(problem.n, tile) * problem.batches
        depth = round_up(problem.k, choice["depth"])
        items = groups * (tile // PER_ITEM) ** 2
        return {
            "padded_macs": float(groups * tile * tile * depth),
            "tiles": float(groups),
            "loop_length": float(depth),
            "copied_bytes": 8.0 * groups * tile * depth,
            "work_items": float(items),
            "waves": waves(items, soc),
            "flops": float(op.flops),
            "input_bytes": self.stored_bytes(op.bytes - op.output.bytes),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        problem, tile = Problem.of(op), choice["tile"]
        m, n, k, side = problem.m, problem.n, problem.k, tile // PER_ITEM
        sizes = (m, n, k, *problem.inner, *problem.steps(m * k, k * n), float(op.alpha))
        launch = KernelLaunch(
            kernel="matmul_tiled",
            global_size=(ceil_div(n, tile) * side, ceil_div(m, tile) * side, problem.batches),
            local_size=(side, side, 1),
            args=(A, OUT, *self.right(op), *sizes),
        )
        defined = {"TRANS_A": op.trans_a, "TRANS_B": op.trans_b, "BIAS": bool(op.matrix)}
        return KernelPlan(
            source=self.source,
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "TILE": tile,
                "DEPTH": choice["depth"],
                **{name: 1 for name, on in defined.items() if on},
                **self.more_defines(op),
            },
            pack=partial(self.pack, soc) if op.matrix else no_constants,
            storages=dict.fromkeys((A, OUT) if op.matrix else (A, B, OUT), self.storage),
            whole_batch=True,
        )

    def more_defines(self, op: Any) -> dict[str, int]:
        """Macros of a kind of matrix."""
        return {}

    def right(self, op: Any) -> tuple[Arg, ...]:
        """What the kernel reads b from, and a bias."""
        return (ConstantArg("weight"), ConstantArg("bias")) if op.matrix else (B,)

    def pack(self, soc: Soc, weights: Weights) -> dict[str, ConstantArray]:
        """A constant matrix, as it is stored, and its bias."""
        matrix = weights["weight"].astype(self.storage.element, order="C")
        return {"weight": matrix, "bias": np.ascontiguousarray(weights["bias"])}
