"""Products of matrices: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.matmul import cpu_ort, gpu_direct, gpu_dots, gpu_gemm, gpu_tiled
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_dots.GpuDots(),
    gpu_gemm.GpuGemm(),
    gpu_tiled.GpuTiled(),
    cpu_ort.VARIANT,
)
