"""Products of rows rounded to 8 bits: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.matmul_dynamic import gpu_direct, gpu_tiled
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_tiled.GpuTiledDynamic(),
    gpu_direct.GpuDirect(PLANAR_HALF),
    gpu_tiled.GpuTiledDynamic(PLANAR_HALF),
)
