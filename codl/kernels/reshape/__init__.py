"""Reshapes: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.registry import register
from codl.kernels.reshape import gpu_copy

register(
    gpu_copy.GpuCopy(),
    gpu_copy.GpuCopy(PLANAR_HALF),
)
