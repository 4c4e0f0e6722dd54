"""Normalisation: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF
from codl.kernels.base import Variant
from codl.kernels.norm import cpu_ort, gpu_blocked, gpu_direct

VARIANTS: tuple[Variant, ...] = (
    gpu_direct.GpuDirect(),
    gpu_blocked.GpuBlocked(),
    gpu_blocked.GpuBlocked(BLOCKED_HALF),
    cpu_ort.VARIANT,
)
