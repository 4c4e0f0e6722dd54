"""Fully connected layers on the CPU: ncnn's inner product, a matrix-vector product."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import Processor
from codl.kernels.ncnn import NcnnLayer, fused_activation, left_over, one_image, round_up
from codl.ops.fully_connected import FullyConnected
from codl.soc import Soc


class CpuGemv:
    name: ClassVar[str] = "cpu_gemv"
    op_kind: ClassVar[str] = "fc"
    processor: ClassVar[Processor] = "cpu"

    def refusal(self, op: FullyConnected, soc: Soc) -> str | None:
        if op.input.n != 1:
            return one_image(op)
        return None

    def plan(self, op: FullyConnected, soc: Soc) -> NcnnLayer:
        size = op.out_channels * op.in_features
        parameters = {0: op.out_channels, 1: 1, 2: size, **fused_activation(op.activation)}
        return NcnnLayer("InnerProduct", parameters, ("weight", "bias"), left_over(op.activation))

    def features(self, op: FullyConnected, soc: Soc) -> dict[str, float]:
        """M rows of K columns; what does not fit the cache streams from memory."""
        m, k = round_up(op.out_channels, soc.cpu.simd_floats), op.in_features
        return {
            "padded_macs": float(m * k),
            "weight_bytes": 4.0 * op.out_channels * k,
            "uncached_bytes": max(4.0 * op.out_channels * k - soc.cpu.l2_cache_bytes, 0.0),
            "input_bytes": float(op.input.bytes),
            "output_bytes": float(op.output.bytes),
        }
