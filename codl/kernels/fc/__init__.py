"""Fully connected layers: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF, IMAGE, IMAGE_HALF
from codl.kernels.fc import gpu_direct, gpu_image, gpu_rows
from codl.kernels.registry import register

register(
    gpu_rows.GpuRows(),
    gpu_direct.GpuDirect(),
    gpu_rows.GpuRows(BLOCKED_HALF),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    gpu_image.GpuImage(IMAGE),
    gpu_image.GpuImage(IMAGE_HALF),
)
