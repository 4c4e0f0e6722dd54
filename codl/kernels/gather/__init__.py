"""Gathering: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.gather import gpu_rows
from codl.kernels.registry import register

register(
    gpu_rows.GpuRows(),
    gpu_rows.GpuRows(PLANAR_HALF),
)
