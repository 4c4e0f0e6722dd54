"""Reductions: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.reduce import cpu_ort, gpu_direct
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(PLANAR_HALF),
    cpu_ort.VARIANT,
)
