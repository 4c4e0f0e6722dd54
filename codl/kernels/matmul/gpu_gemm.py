"""Products with a constant matrix on GPUs: the tiles of convolutions' products, over plain rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import MatMul
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg, Choice, ConstantArg, KernelLaunch, KernelPlan, ScratchArg
from codl.kernels.conv2d.gpu_gemm import MOST_CHOICES, GemmCut, Product, cuts, refuse_width
from codl.kernels.matmul.problem import OUT, A, Problem
from codl.kernels.tiling import GROUP, base_defines, ceil_div, round_up
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc


class GpuGemm(ForPlanar):
    """Rows as they lie; columns and k come in fours."""

    base_name: ClassVar[str] = "gpu_gemm"
    op_kind: ClassVar[str] = "matmul"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})

    def refusal(self, op: MatMul, soc: Soc) -> str | None:
        if not op.matrix or op.trans_a:
            return "b must be a constant, and a stored by rows"
        if op.k % 4 or op.n % 4:
            return f"k and columns must be multiples of 4, got {op.k} and {op.n}"
        if reason := refuse_width(soc):
            return reason
        if not cuts(_product(op), soc.gpu):
            return f"no tile fits {soc.gpu.local_mem_bytes} bytes of local memory"
        return None

    def choices(self, op: MatMul, soc: Soc) -> tuple[Choice, ...]:
        return tuple(asdict(cut) for cut in cuts(_product(op), soc.gpu)[:MOST_CHOICES])

    def features(self, op: MatMul, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        product, cut = _cut(op, soc, choice)
        tiles_m, tiles_n, others = cut.groups(product)
        groups = tiles_m * tiles_n * others
        padded = tiles_m * cut.tile_m * tiles_n * cut.tile_n * 4 * cut.padded_depth(product)
        return {
            "padded_macs": float(padded),
            "work_groups": float(groups),
            "work_items": float(groups * cut.items),
            "waves": float(ceil_div(groups, soc.gpu.compute_units)),
            "steps": float(cut.steps(product)),
            "partial_bytes": 4.0 * cut.splits * product.pixels * op.n * (cut.splits > 1),
            "launches": 1.0 + (cut.splits > 1),
            "flops": float(op.flops),
            "input_bytes": self.stored_bytes(op.bytes - op.output.bytes),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: MatMul, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        product, cut = _cut(op, soc, choice)
        in_one = cut.splits == 1
        buffers: tuple[Arg, ...] = (OUT,) if in_one else (ScratchArg("parts"), 0, 0)
        buffers = (A, *buffers, ConstantArg("weight"), ConstantArg("bias"))
        # A row is a pixel, and one is so many blocks of four behind the other.
        window = (1, product.pixels, product.pixels, 1, 1, product.in_blocks, 0, 0, 1, 1)
        first = cut.launch(product, buffers, window, (0, 0))

        def pack(weights: Weights) -> dict[str, ConstantArray]:
            matrix = weights["weight"].T if op.trans_b else weights["weight"]
            scaled = np.float32(op.alpha) * matrix
            return {
                "weight": cut.pack(scaled[None, None], product).astype(self.storage.element),
                "bias": np.ascontiguousarray(weights["bias"]),
            }

        parts = {"parts": 4 * cut.splits * product.pixels * op.n}
        return KernelPlan(
            source="conv2d/gpu_gemm.cl",
            launches=(first,) if in_one else (first, _sum(product, cut.splits)),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **cut.defines,
                "POINTWISE": 1,
                "ROWS": 1,
                **({} if in_one else {"RAW": 1}),
            },
            pack=pack,
            scratch={} if in_one else parts,
            storages=dict.fromkeys((A, OUT), self.storage),
            whole_batch=True,
        )


def _product(op: MatMul) -> Product:
    """Rows of all batches are pixels."""
    return Product(Problem.of(op).m, op.k // 4, op.n // 4)


def _cut(op: MatMul, soc: Soc, choice: Choice | None) -> tuple[Product, GemmCut]:
    product = _product(op)
    return product, GemmCut(**choice) if choice else cuts(product, soc.gpu)[0]


def _sum(product: Product, splits: int) -> KernelLaunch:
    """Adds the sums of all splits."""
    sizes = (splits, product.out_blocks, product.pixels, 0)
    return KernelLaunch(
        kernel="conv2d_gemm_sum",
        global_size=(round_up(product.pixels * product.out_blocks, GROUP), 1, 1),
        local_size=(GROUP, 1, 1),
        args=(ScratchArg("parts"), OUT, ConstantArg("bias"), *sizes),
    )
