"""Normalisation: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.kernels.base import Variant
from codl.kernels.norm import cpu_ort, gpu_direct

VARIANTS: tuple[Variant, ...] = (gpu_direct.GpuDirect(), cpu_ort.VARIANT)
