"""Convolution: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.conv2d import (
    cpu,
    cpu_winograd,
    gpu_direct,
    gpu_gemm,
    gpu_image_winograd,
    gpu_windows,
    gpu_winograd,
    gpu_winograd_gemm,
)
from codl.kernels.cpu_device.conv_narrow import GpuNarrow
from codl.kernels.kernel import of_every_storage
from codl.kernels.registry import register

register(
    cpu_winograd.WINOGRAD,
    cpu.GEMM,
    cpu.DIRECT,
    *of_every_storage(
        gpu_winograd_gemm.GpuWinogradGemm,
        gpu_windows.GpuDepthwisePixels,
        gpu_gemm.GpuGemm,
        gpu_winograd.GpuWinograd,
        gpu_windows.GpuDepthwise,
        GpuNarrow,
        gpu_direct.GpuDirect,
        gpu_image_winograd.GpuImageWinograd,
        gpu_windows.GpuImageDepthwise,
        gpu_windows.GpuImage,
        gpu_windows.GpuGrouped,
    ),
    cpu.ORT,
)
