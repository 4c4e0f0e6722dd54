"""Products of integers, which ONNX Runtime is to compute exactly on every CPU.

On x86 CPUs without VNNI it adds products by int8 in pairs of 16 bits, which may not hold them. Its
optimiser makes uint8 of such constants there, as `EXACT` asks for, but fails where two nodes read
one constant. A reference is not optimised, so it has uint8 in the first place. Where rows are int8,
too, there may be no kernel for that, and what a caller may replace is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.frontend.graph.plain_form import array_of
from codl.frontend.graph.weights import Model, refill, with_fields
from codl.ir.ops.onnx_model import EXACT

#: The inputs of products that are their matrix or filter, and its zero point.
OPERANDS: Mapping[str, tuple[int, int]] = {
    "MatMulInteger": (1, 3),
    "ConvInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulIntegerToFloat": (1, 5),
    "QLinearMatMul": (3, 5),
    "QLinearConv": (3, 5),
    "QGemm": (3, 5),
}
#: Products that have no kernel for rows of int8 and a matrix of uint8: the zero point of rows.
SIGNED_ROWS = dict.fromkeys(("QLinearMatMul", "QLinearConv", "QGemm"), 2)
#: What is between the least of int8 and of uint8.
MIDDLE = 128


def session_options(threads: int = 0) -> ort.SessionOptions:
    """With `threads` threads, one a core for 0; only errors are logged."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for key, value in EXACT.items():
        options.add_session_config_entry(key, value)
    return options


def reference_session(
    model: Model, threads: int = 0, *, optimised: bool = False
) -> ort.InferenceSession:
    """Nothing is fused or rearranged unless `optimised`, and products of integers are exact.

    Weights stay where they are, once.
    """
    options = session_options(threads)
    options.add_session_config_entry("session.disable_prepacking", "1")
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return unsigned(model).session(options)


def with_own_constants(model: Model) -> Model:
    """The model, in which no two products read one constant of int8."""
    return _changed(model, lambda signed: signed)


def unsigned(model: Model) -> Model:
    """The model, whose products read uint8 in the place of constants of int8."""
    return _changed(model, lambda signed: (signed.astype(np.int16) + MIDDLE).astype(np.uint8))


def _changed(model: Model, change: Callable[[NDArray[np.int8]], NDArray[Any]]) -> Model:
    nodes = model.proto.graph.node
    products = [(i, *OPERANDS[n.op_type]) for i, n in enumerate(nodes) if n.op_type in OPERANDS]
    signed = _signed_constants(model) if products else {}
    if not signed:
        return model
    proto = with_fields(model.proto)
    for number, matrix, zero in products:
        node = proto.graph.node[number]
        names = [*node.input, *[""] * (zero + 1 - len(node.input))]
        if names[matrix] not in signed or (names[zero] and names[zero] not in signed):
            continue
        rows = SIGNED_ROWS.get(node.op_type)
        stays = rows is not None and names[rows] in signed
        for place in (matrix, zero):
            value = signed.get(names[place], np.zeros((), np.int8))
            names[place] = f"{names[place]}.{number}.{place}"
            new = numpy_helper.from_array(value if stays else change(value), names[place])
            proto.graph.initializer.append(new)
            if stays:  # the caller may replace it
                info = helper.make_tensor_value_info(new.name, new.data_type, new.dims)
                proto.graph.input.append(info)
        refill(node.input, names)
    return replace(model, proto=proto)


def _signed_constants(model: Model) -> dict[str, NDArray[np.int8]]:
    """Those of int8 by name, also where nodes make them of nothing or hand them on."""
    signed = {
        item.name: model.weights[item.name] if item.name in model.weights else array_of(item)
        for item in model.proto.graph.initializer
        if item.data_type == TensorProto.INT8
    }
    for node in model.proto.graph.node:
        values = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type == "Constant" and values and values[0].data_type == TensorProto.INT8:
            signed[node.output[0]] = array_of(values[0])
        elif node.op_type == "Identity" and node.input[0] in signed:
            signed[node.output[0]] = signed[node.input[0]]
    return signed
