"""Pooling, and the indices of its maxima: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import BLOCKED_HALF, IMAGE, IMAGE_HALF
from codl.kernels.pooling import (
    cpu,
    cpu_ort,
    gpu_direct,
    gpu_global,
    gpu_image,
    gpu_indices,
)
from codl.kernels.registry import register

register(
    cpu.CpuDirect(),
    gpu_global.GpuGlobal(),
    gpu_direct.GpuDirect(),
    gpu_global.GpuGlobal(BLOCKED_HALF),
    gpu_direct.GpuDirect(BLOCKED_HALF),
    gpu_image.GpuImage(IMAGE),
    gpu_image.GpuImage(IMAGE_HALF),
    gpu_indices.GpuIndices(),
    *cpu_ort.VARIANTS,
)
