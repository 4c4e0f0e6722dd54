"""Reshapes: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.base import Variant
from codl.kernels.reshape import cpu, cpu_ort, gpu_copy

VARIANTS: tuple[Variant, ...] = (
    cpu.CpuCopy(),
    gpu_copy.GpuCopy(),
    cpu_ort.VARIANT,
)
