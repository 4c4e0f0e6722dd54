"""Products with a constant matrix on GPUs: the tiles of convolutions' products, over plain rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import MatMul
from codl.ir.types import ConstantArray
from codl.kernels.base import Choice, KernelPlan
from codl.kernels.conv2d.gpu_gemm import (
    MOST_CHOICES,
    Product,
    chosen,
    cuts,
    refuse_width,
    row_window,
)
from codl.kernels.matmul.problem import OUT, A, Problem
from codl.kernels.tiling import base_defines
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
        product, cut = chosen(_product(op), soc, choice)
        return {
            **cut.features(product, soc.gpu),
            "partial_bytes": float(sum(cut.scratch(product).values())),
            "launches": 1.0 + (cut.splits > 1),
            "flops": float(op.flops),
            "input_bytes": self.stored_bytes(op.bytes - op.output.bytes),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: MatMul, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        product, cut = chosen(_product(op), soc, choice)

        def pack(weights: Weights) -> dict[str, ConstantArray]:
            matrix = weights["weight"].T if op.trans_b else weights["weight"]
            scaled = np.float32(op.alpha) * matrix
            return {
                "weight": cut.pack(scaled[None, None], product).astype(self.storage.element),
                "bias": np.ascontiguousarray(weights["bias"]),
            }

        # A row is a pixel, and one is so many blocks of four behind the other.
        window = row_window(product.pixels, product.in_blocks)
        return KernelPlan(
            source="conv2d/gpu_gemm.cl",
            launches=cut.launches(product, (A, OUT), window, (0, 0)),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **cut.defines,
                "POINTWISE": 1,
                "ROWS": 1,
                **({"RAW": 1} if cut.splits > 1 else {}),
            },
            pack=pack,
            scratch=cut.scratch(product),
            storages=dict.fromkeys((A, OUT), self.storage),
            whole_batch=True,
        )


def _product(op: MatMul) -> Product:
    """Rows of all batches are pixels."""
    return Product(Problem.of(op).m, op.k // 4, op.n // 4)
