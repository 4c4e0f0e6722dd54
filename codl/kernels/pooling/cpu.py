"""Pooling on the CPU: ncnn's sliding window."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import Processor
from codl.kernels.columns import FeatureColumns, PoolColumns, ceil_div, single
from codl.kernels.ncnn import NcnnLayer, one_image
from codl.ops.pool2d import Pool2d
from codl.soc import Soc


class CpuDirect:
    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "pooling"
    processor: ClassVar[Processor] = "cpu"
    op_columns: ClassVar[type[PoolColumns]] = PoolColumns

    def refusal(self, op: Pool2d, soc: Soc) -> str | None:
        if op.input.n != 1:
            return one_image(op)
        if op.dilation != (1, 1):
            return f"ncnn's pooling has no dilation, got dilation={op.dilation}"
        return None

    def plan(self, op: Pool2d, soc: Soc) -> NcnnLayer:
        parameters = {
            0: 0 if op.mode == "max" else 1,
            1: op.kernel.w,
            11: op.kernel.h,
            2: op.stride.w,
            12: op.stride.h,
            3: op.pad.left,
            14: op.pad.right,
            13: op.pad.top,
            15: op.pad.bottom,
            5: 1,
            6: int(op.count_pad),
        }
        return NcnnLayer("Pooling", parameters, after=op.activation)

    def features(self, op: Pool2d, soc: Soc) -> dict[str, float]:
        return single(self.feature_columns(PoolColumns.of([op]), soc))

    def feature_columns(self, ops: PoolColumns, soc: Soc) -> FeatureColumns:
        lanes, channels = soc.cpu.simd_floats, ops.images * ops.ic
        return {
            "window_reads": ops.flops,
            "input_bytes": 4.0 * channels * ops.ih * ops.iw,
            "output_bytes": 4.0 * channels * ops.pixels,
            "rows": ops.oh * ceil_div(ops.ic, lanes),
        }
