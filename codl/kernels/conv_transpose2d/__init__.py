"""Transposed convolution: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF
from codl.kernels.conv_transpose2d import cpu, cpu_ort, gpu_direct
from codl.kernels.registry import register

register(
    cpu.CpuDirect(),
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    cpu_ort.VARIANT,
)
