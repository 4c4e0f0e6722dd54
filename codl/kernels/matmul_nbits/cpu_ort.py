"""Products with packed matrices in ONNX Runtime: its own node, which unpacks in the kernel.

That node multiplies numbers of 8 bits only by rows of 8 bits: with rows of float32 it would write
out the whole matrix first, every time. So a number of 8 bits is two of 4 bits there, in two
products.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul_quantized import MatMulNBits, MatMulNBitsColumns
from codl.kernels.feature_columns import by_level
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, node
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc

#: What ONNX Runtime calls rows that it may round to 8 bits, and those that it may not.
ACCURACY = {True: 4, False: 0}


class OrtNBits(ByColumns, CpuOrt):
    """One row is multiplied by packed numbers; for more of them numbers become floats first."""

    op_columns: ClassVar[type[MatMulNBitsColumns]] = MatMulNBitsColumns

    def feature_columns(self, ops: MatMulNBitsColumns, soc: Soc) -> FeatureColumns:
        lanes = columns.round_up(ops.n, soc.cpu.simd_floats)
        numbers = lanes * ops.blocks * ops.block
        return {
            "padded_macs": numbers * ops.m,
            "unpacked": numbers * (ops.m > 1),
            "rows": ops.m,
            "input_bytes": 4.0 * ops.input_elements,
            "output_bytes": 4.0 * ops.output_elements,
            **by_level("weight", 4.0 * ops.weight_elements, soc.cpu.l2_cache_bytes),
        }


def _plan(op: MatMulNBits) -> OrtPlan:
    if op.bits == 4 or op.int8:
        names = (
            "x0",
            "weight",
            "scales",
            *(["zero_points"] if op.zero_points else [""]),
            "",
            "bias",
        )
        nodes = [_node(op, op.bits, names, "y")]
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=lambda own: _packed(op, own))
    nodes = [
        _node(op, 4, ("x0", "high", "high_scales", "high_zero_points"), "above"),
        _node(op, 4, ("x0", "low", "scales", "low_zero_points", "", "bias"), "below"),
        node("Add", ("above", "below")),
    ]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=lambda own: _halves(op, own))


def _node(op: MatMulNBits, bits: int, inputs: tuple[str, ...], output: str) -> Node:
    return node(
        "com.microsoft.MatMulNBits",
        inputs,
        output,
        K=op.k,
        N=op.n,
        bits=bits,
        block_size=op.block,
        accuracy_level=ACCURACY[op.int8],
    )


def _packed(op: MatMulNBits, weights: Weights) -> NamedArrays:
    """The words as bytes, which is what they are."""
    found = {
        "weight": _bytes(weights["weight"]).reshape(op.n, op.blocks, -1),
        "scales": weights["scales"],
        "bias": weights["bias"],
    }
    if op.zero_points:
        size = -(-op.blocks * op.bits // 8)
        found["zero_points"] = np.ascontiguousarray(_bytes(weights["zero_points"])[:, :size])
    return found


def _halves(op: MatMulNBits, weights: Weights) -> NamedArrays:
    """Numbers of 8 bits as 16 times the upper 4 bits and the lower."""
    whole = _packed(op, weights)
    zeros = whole.get("zero_points", np.full((op.n, op.blocks), 128, np.uint8))
    found = {"scales": whole["scales"], "bias": whole["bias"], "high_scales": 16 * whole["scales"]}
    for name, shift in (("low", 0), ("high", 4)):
        found[name] = _pairs(whole["weight"] >> shift & 15)
        found[f"{name}_zero_points"] = _pairs(zeros >> shift & 15)
    return found


def _pairs(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers of 4 bits along the last axis, two in a byte."""
    even = np.pad(
        numbers.astype(np.uint8), [(0, 0)] * (numbers.ndim - 1) + [(0, numbers.shape[-1] % 2)]
    )
    return np.ascontiguousarray(even[..., ::2] | even[..., 1::2] << 4)


def _bytes(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)


VARIANT = OrtNBits("matmul_nbits", _plan)
