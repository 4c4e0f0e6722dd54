"""Parts of models that codl has no operators for: one variant, on the CPU."""

from __future__ import annotations

from codl.kernels.base import Variant
from codl.kernels.onnx import cpu_ort

VARIANTS: tuple[Variant, ...] = (cpu_ort.VARIANT,)
