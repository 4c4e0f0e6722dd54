"""Pooling on the CPU: ncnn's sliding window."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import Processor
from codl.kernels.ncnn import NcnnLayer, one_image, round_up
from codl.ops.pool2d import Pool2d
from codl.soc import Soc


class CpuDirect:
    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "pooling"
    processor: ClassVar[Processor] = "cpu"

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
        lanes = soc.cpu.simd_floats
        return {
            "window_reads": float(op.flops),
            "input_bytes": float(op.input.bytes),
            "output_bytes": float(op.output.bytes),
            "rows": float(op.output.h * round_up(op.output.c, lanes) // lanes),
        }
