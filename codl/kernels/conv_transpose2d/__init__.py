"""Transposed convolution: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF
from codl.kernels.conv_transpose2d import gpu_direct
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(BLOCKED_HALF),
)
