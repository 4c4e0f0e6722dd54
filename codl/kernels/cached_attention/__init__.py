"""Attention to a cache: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.cached_attention import gpu_tiles
from codl.kernels.registry import register

register(
    gpu_tiles.GpuTiles(),
    gpu_tiles.GpuTiles(PLANAR_HALF),
)
