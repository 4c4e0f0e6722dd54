"""Fully connected layers on the CPU: ncnn's inner product, a matrix-vector product."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.fully_connected import (
    FcColumns,
    FullyConnected,
)
from codl.kernels.feature_columns import (
    by_level,
    halvings,
)
from codl.kernels.ncnn import NcnnLayer, fused_activation, left_over
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc


class CpuGemv(ByColumns):
    name: ClassVar[str] = "cpu_gemv"
    op_kind: ClassVar[str] = "fc"
    op_columns: ClassVar[type[FcColumns]] = FcColumns

    def plan(self, op: FullyConnected, soc: Soc) -> NcnnLayer:
        size = op.out_channels * op.in_features
        parameters = {0: op.out_channels, 1: 1, 2: size, **fused_activation(op.activation)}
        return NcnnLayer("InnerProduct", parameters, ("weight", "bias"), left_over(op.activation))

    def feature_columns(self, ops: FcColumns, soc: Soc) -> FeatureColumns:
        """M rows of K columns, a vector of rows at a time; weights stream from where they are."""
        m, k = halvings(ops.oc, soc.cpu.simd_floats), ops.in_features
        return {
            "kernel_steps": m * k,
            "output_vectors": m,
            "planar_bytes": 4.0 * ops.images * k * (ops.ih * ops.iw > 1),
            **by_level("weight", 4.0 * ops.oc * k, soc.cpu.l2_cache_bytes),
        }
