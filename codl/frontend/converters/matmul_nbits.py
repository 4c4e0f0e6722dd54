"""Products with matrices of 4 and 8 bits, as ONNX Runtime's quantiser writes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    constant_input,
    converts,
    has_input,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.packed_check import (
    BIAS,
    DOMAIN,
    INT8,
    KIND,
    ORDER,
    SCALES,
    WEIGHT,
    ZERO_POINTS,
)
from codl.ir.onnx_node import Node
from codl.ir.ops.matmul_quantized import WORD, MatMulNBits


@converts(f"{DOMAIN}.{KIND}", parameters=(WEIGHT, SCALES, ZERO_POINTS, BIAS))
def _matmul_nbits(graph: Graph, node: Node) -> list[ConvertedOp]:
    """That constants have the sizes which they must have was seen when the model was read."""
    k, n, bits, block = (attribute(node, name, 4) for name in ("K", "N", "bits", "block_size"))
    if has_input(node, ORDER):
        raise unsupported(node, "rows of the matrix in another order are not taken.")
    blocks = -(-k // block)
    weights = {
        "weight": _packed(constant_input(graph, node, WEIGHT).reshape(n, -1)),
        "scales": np.asarray(constant_input(graph, node, SCALES), np.float32).reshape(n, blocks),
        "bias": np.asarray(constant_input(graph, node, BIAS, np.zeros(n)), np.float32),
    }
    if has_input(node, ZERO_POINTS):
        zeros = constant_input(graph, node, ZERO_POINTS)
        if zeros.dtype != np.uint8:
            raise unsupported(node, f"zero points must be packed in uint8, got {zeros.dtype}.")
        weights["zero_points"] = _packed(zeros.reshape(n, -1))
    sizes = tuple(graph.shapes[node.inputs[0]])
    op = MatMulNBits(
        shapes=((1, *sizes) if len(sizes) == 1 else sizes,),
        matrix=(k, n),
        bits=bits,
        block=block,
        zero_points="zero_points" in weights,
        int8=attribute(node, "accuracy_level", 0) == INT8,
    )
    if op.problem is not None:
        raise unsupported(node, op.problem)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0], weights)]


def _packed(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Bytes as words, filled up with zeros."""
    size = WORD // 8
    padded = np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -rows.shape[1] % size))))
    return padded.view("<u4").astype(np.uint32, copy=False)
