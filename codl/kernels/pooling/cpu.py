"""Pooling on the CPU: ncnn's sliding window."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.columns import (
    FeatureColumns,
    rest,
)
from codl.ir.ops.pooling import (
    Pool2d,
    PoolColumns,
)
from codl.kernels.feature_columns import (
    by_level,
    packed_vectors,
)
from codl.kernels.ncnn import NcnnLayer
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc


class CpuDirect(ByColumns):
    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "pooling"
    op_columns: ClassVar[type[PoolColumns]] = PoolColumns

    def refusal(self, op: Pool2d, soc: Soc) -> str | None:
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

    def feature_columns(self, ops: PoolColumns, soc: Soc) -> FeatureColumns:
        """Reads of vectors of channels, and the bytes that they are of.

        ncnn has kernels of their own for windows of 2x2 and 3x3 at stride 2; they are the fast
        ones. Padding is written out first.
        """
        channels, packed = packed_vectors(ops.ic, soc.cpu.simd_floats), rest(ops.ic, 4) == 0
        outputs = ops.pixels * channels
        square = (ops.kh == ops.kw) & (ops.sh == 2) & (ops.sw == 2) & packed
        twos, threes = square & (ops.kh == 2), square & (ops.kh == 3)
        padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
        moved = 4.0 * ops.ic * (ops.ih * ops.iw + ops.pixels) + padded_bytes * ops.is_padded
        return {
            "steps_of_2": outputs * twos,
            "steps_of_3": outputs * threes,
            "steps": outputs * ops.window * (packed & ~(twos | threes)),
            "scalar_steps": outputs * ops.window * ~packed,
            "output_vectors": outputs,
            "rows": ops.oh * channels,
            "channels": channels,
            "padded_bytes": padded_bytes * ops.is_padded,
            **by_level("moved", moved, soc.cpu.l2_cache_bytes),
        }
