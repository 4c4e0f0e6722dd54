"""Products with packed matrices: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.matmul_nbits import gpu_direct, gpu_rows, gpu_tiled, gpu_vector
from codl.kernels.registry import register

register(
    gpu_vector.GpuVector(),
    gpu_direct.GpuDirectNBits(),
    gpu_rows.GpuRows(),
    gpu_tiled.GpuTiledNBits(),
    gpu_vector.GpuVector(PLANAR_HALF),
    gpu_direct.GpuDirectNBits(PLANAR_HALF),
    gpu_rows.GpuRows(PLANAR_HALF),
    gpu_tiled.GpuTiledNBits(PLANAR_HALF),
)
