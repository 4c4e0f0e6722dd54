"""Movement of elements by offset tables: the kernel variants, in order of preference."""

from __future__ import annotations

from codl.ir.types import PLANAR_HALF
from codl.kernels.registry import register
from codl.kernels.strided import gpu_copy

register(
    gpu_copy.TransposeCopy(),
    gpu_copy.SliceCopy(),
    gpu_copy.TileCopy(),
    gpu_copy.PadCopy(),
    gpu_copy.WindowsCopy(),
    gpu_copy.TransposeCopy(PLANAR_HALF),
    gpu_copy.SliceCopy(PLANAR_HALF),
    gpu_copy.TileCopy(PLANAR_HALF),
    gpu_copy.PadCopy(PLANAR_HALF),
    gpu_copy.WindowsCopy(PLANAR_HALF),
)
