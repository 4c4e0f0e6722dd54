"""Convolution: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF, IMAGE, IMAGE_HALF
from codl.kernels.conv2d import (
    cpu,
    cpu_ort,
    gpu_depthwise,
    gpu_depthwise_pixels,
    gpu_direct,
    gpu_gemm,
    gpu_grouped,
    gpu_image,
    gpu_image_depthwise,
    gpu_image_winograd,
    gpu_narrow,
    gpu_winograd,
    gpu_winograd_gemm,
    replayed,
)
from codl.kernels.registry import register
from codl.kernels.replayed import CLASSES

register(
    cpu.CpuWinograd(),
    cpu.CpuGemm(),
    cpu.CpuDirect(),
    *(cpu.CpuWinograd(tile=tile) for tile in cpu.TILES),
    *(cpu.CpuWinograd(packed=False, tile=tile) for tile in cpu.TILES),
    cpu.CpuGemm(packed=False),
    cpu.CpuDirect(packed=False),
    gpu_winograd_gemm.GpuWinogradGemm(),
    gpu_depthwise_pixels.GpuDepthwisePixels(),
    gpu_gemm.GpuGemm(),
    gpu_winograd.GpuWinograd(),
    gpu_depthwise.GpuDepthwise(),
    gpu_narrow.GpuNarrow(),
    gpu_direct.GpuDirect(),
    gpu_grouped.GpuGrouped(),
    gpu_winograd_gemm.GpuWinogradGemm(BLOCKED_HALF),
    gpu_depthwise_pixels.GpuDepthwisePixels(BLOCKED_HALF),
    gpu_gemm.GpuGemm(BLOCKED_HALF),
    gpu_winograd.GpuWinograd(BLOCKED_HALF),
    gpu_depthwise.GpuDepthwise(BLOCKED_HALF),
    gpu_narrow.GpuNarrow(BLOCKED_HALF),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    gpu_grouped.GpuGrouped(BLOCKED_HALF),
    gpu_image_winograd.GpuImageWinograd(IMAGE),
    gpu_image_depthwise.GpuImageDepthwise(IMAGE),
    gpu_image.GpuImage(IMAGE),
    gpu_grouped.GpuGrouped(IMAGE),
    gpu_image_winograd.GpuImageWinograd(IMAGE_HALF),
    gpu_image_depthwise.GpuImageDepthwise(IMAGE_HALF),
    gpu_image.GpuImage(IMAGE_HALF),
    gpu_grouped.GpuGrouped(IMAGE_HALF),
    cpu_ort.VARIANT,
)
CLASSES.add("conv2d", replayed.ReplayedConv2d)
