"""Products of matrices: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.matmul import gpu_direct, gpu_dots, gpu_gemm, gpu_tiled
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_dots.GpuDots(),
    gpu_gemm.GpuGemm(),
    gpu_tiled.GpuTiled(),
    gpu_direct.GpuDirect(PLANAR_HALF),
    gpu_dots.GpuDots(PLANAR_HALF),
    gpu_gemm.GpuGemm(PLANAR_HALF),
    gpu_tiled.GpuTiled(PLANAR_HALF),
)
