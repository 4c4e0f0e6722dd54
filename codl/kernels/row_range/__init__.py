"""Ranges of rows: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.registry import register
from codl.kernels.row_range import cpu_ort, gpu_direct

register(
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(PLANAR_HALF),
    cpu_ort.VARIANT,
)
