"""Gathering: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.gather import cpu_ort, gpu_rows
from codl.kernels.registry import register

register(gpu_rows.GpuRows(), cpu_ort.VARIANT)
