"""Reductions: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.reduce import cpu_ort, gpu_direct
from codl.kernels.registry import register

register(gpu_direct.GpuDirect(), cpu_ort.VARIANT)
