"""Convolution: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.conv2d import cpu, gpu_direct, gpu_gemm, gpu_windows, gpu_winograd
from codl.kernels.kernel import of_every_storage

VARIANTS = (
    cpu.WINOGRAD,
    cpu.GEMM,
    cpu.DIRECT,
    *of_every_storage(
        gpu_gemm.GpuWinogradGemm,
        gpu_windows.GpuDepthwisePixels,
        gpu_gemm.GpuGemm,
        gpu_winograd.GpuWinograd,
        gpu_windows.GpuDepthwise,
        gpu_windows.GpuNarrow,
        gpu_direct.GpuDirect,
        gpu_windows.GpuImageWinograd,
        gpu_windows.GpuImageDepthwise,
        gpu_windows.GpuImage,
    ),
    *cpu.ONNX,
)
