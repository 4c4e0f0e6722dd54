"""Rotary position embedding: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.registry import register
from codl.kernels.rotary import gpu_rows

register(
    gpu_rows.GpuRows(),
    gpu_rows.GpuRows(PLANAR_HALF),
)
