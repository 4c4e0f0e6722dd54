"""Products whose rows are rounded to 8 bits while a model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.frontend.converters.base import ConvertedOp, constant_input, converts, unsupported
from codl.frontend.graph.dynamic_products import (
    BIAS,
    KIND,
    MATRIX,
    SCALES,
    ZERO_POINTS,
    is_fusible,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.matmul_quantized import MIDDLE, MatMulDynamic, packed
from codl.ir.ops.reductions import RowRange


@converts(KIND, parameters=(MATRIX, SCALES, ZERO_POINTS, BIAS))
def _dynamic_product(graph: Graph, node: Node) -> list[ConvertedOp]:
    """The ranges of rows, which all products of them share, and the product.

    That constants have the sizes which they must have was seen when the model was read.
    """
    if not is_fusible(graph, node):
        raise unsupported(node, "it must multiply rows by a constant matrix of 8 bits.")
    matrix = constant_input(graph, node, MATRIX)
    signed, n = matrix.dtype == np.int8, matrix.shape[1]
    middle = MIDDLE if signed else 0
    zeros = constant_input(graph, node, ZERO_POINTS, 0).astype(np.int64) + middle
    numbers = np.ascontiguousarray((matrix.T.astype(np.int16) + middle).astype(np.uint8))
    weights = {
        "weight": packed(numbers, 8),
        "scales": _of_columns(constant_input(graph, node, SCALES), n, np.float32),
        "zero_points": _of_columns(zeros, n, np.uint32),
        "bias": _of_columns(constant_input(graph, node, BIAS, 0.0), n, np.float32),
    }
    x, sizes = node.inputs[0], tuple(graph.shapes[node.inputs[0]])
    ranges = RowRange(shapes=(sizes,))
    product = MatMulDynamic(
        shapes=(sizes, ranges.out_sizes), matrix=matrix.shape, signed=bool(signed)
    )
    name = f"{x}.ranges"
    return [
        ConvertedOp(ranges, (x,), name),
        ConvertedOp(product, (x, name), node.outputs[0], weights),
    ]


def _of_columns(value: NDArray[Any], n: int, dtype: type) -> NDArray[Any]:
    """One for each column."""
    return np.array(np.broadcast_to(value.reshape(-1), (n,)), dtype)
