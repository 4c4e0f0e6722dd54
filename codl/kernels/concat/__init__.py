"""Concatenation, along the channels or any axis: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF, IMAGE, IMAGE_HALF, PLANAR_HALF
from codl.kernels.concat import gpu_copy, gpu_image, gpu_rows
from codl.kernels.registry import register

register(
    gpu_copy.GpuCopy(),
    gpu_copy.GpuCopy(BLOCKED_HALF),
    gpu_image.GpuImage(IMAGE),
    gpu_image.GpuImage(IMAGE_HALF),
    gpu_rows.GpuRows(),
    gpu_rows.GpuRows(PLANAR_HALF),
)
