"""Attention: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.attention import cpu_ort, gpu_direct, gpu_tiled
from codl.kernels.registry import register

register(gpu_direct.GpuDirect(), gpu_tiled.GpuTiled(), cpu_ort.VARIANT)
