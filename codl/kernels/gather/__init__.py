"""Gathering: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.base import Variant
from codl.kernels.gather import cpu_ort, gpu_rows

VARIANTS: tuple[Variant, ...] = (gpu_rows.GpuRows(), cpu_ort.VARIANT)
