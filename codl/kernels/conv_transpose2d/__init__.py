"""Transposed convolution: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF
from codl.kernels.base import Variant
from codl.kernels.conv_transpose2d import cpu, cpu_ort, gpu_direct

VARIANTS: tuple[Variant, ...] = (
    cpu.CpuDirect(),
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    cpu_ort.VARIANT,
)
