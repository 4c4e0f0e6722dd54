"""Attention: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.attention import gpu_direct, gpu_tiled
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_tiled.GpuTiled(),
    gpu_direct.GpuDirect(PLANAR_HALF),
    gpu_tiled.GpuTiled(PLANAR_HALF),
)
