"""Element-wise operators: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF, IMAGE, IMAGE_HALF, PLANAR_HALF
from codl.kernels.eltwise import gpu_direct, gpu_image, gpu_planar
from codl.kernels.registry import register

register(
    gpu_direct.GpuDirect(),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    gpu_planar.GpuPlanar(),
    gpu_planar.GpuPlanar(PLANAR_HALF),
    gpu_image.GpuImage(IMAGE),
    gpu_image.GpuImage(IMAGE_HALF),
)
