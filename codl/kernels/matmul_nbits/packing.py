"""How all OpenCL kernels of packed matrices have them: in words, every V columns apart."""

from __future__ import annotations

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.ops.matmul_quantized import MatMulNBits
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg, ConstantArg


def matrix_args(op: MatMulNBits) -> tuple[Arg, ...]:
    """The matrix and the bias, as `unpack.cl` and what includes it take them."""
    names = ("weight", "scales", *(["zero_points"] if op.zero_points else []), "bias")
    return tuple(ConstantArg(name) for name in names)


def matrix_defines(op: MatMulNBits) -> dict[str, int]:
    zeros = {"ZERO_POINTS": 1} if op.zero_points else {}
    return {"BITS": op.bits, "LENGTH": op.block, **zeros}


def pack_matrix(weights: Weights, *, width: int, panel: int) -> dict[str, ConstantArray]:
    """Columns to whole vectors of `width`, zeros beyond the last; the bias to whole panels."""
    bias = weights["bias"]
    found: dict[str, ConstantArray] = {"bias": np.pad(bias, (0, -len(bias) % panel))}
    for name, value in weights.items():
        if name == "bias":
            continue
        padded = np.pad(value, ((0, -len(value) % width), (0, 0)))
        turned = padded.reshape(-1, width, value.shape[1]).swapaxes(1, 2)
        found[name] = np.ascontiguousarray(turned).reshape(-1)
    return found
