"""Parts of models that codl has no operators for: one variant, on the CPU."""

from __future__ import annotations

from codl.kernels.onnx import cpu_ort
from codl.kernels.registry import register

register(cpu_ort.VARIANT)
