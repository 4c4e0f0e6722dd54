"""Resizing: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF
from codl.kernels.registry import register
from codl.kernels.resize import gpu_direct

register(
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(BLOCKED_HALF),
)
