"""Rotary position embedding: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.registry import register
from codl.kernels.rotary import cpu_ort, gpu_rows

register(gpu_rows.GpuRows(), cpu_ort.VARIANT)
