"""Normalisation: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF, PLANAR_HALF
from codl.kernels.norm import gpu_blocked, gpu_direct
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(PLANAR_HALF),
    gpu_blocked.GpuBlocked(),
    gpu_blocked.GpuBlocked(BLOCKED_HALF),
)
