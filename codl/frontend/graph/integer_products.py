"""Changes to integer products, so that ONNX Runtime computes them exactly on each CPU.

On x86 CPUs without VNNI, int8 products are added in pairs of 16 bits, which may overflow. `EXACT`
makes the optimiser replace such constants by uint8, which fails for a constant with two readers. A
reference is not optimised, so it gets uint8 constants at once. Products with int8 rows may have no
kernel for these, so their constants stay, as replaceable inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.frontend.graph.weights import Model, array_of, refill, with_fields
from codl.ir.ops.onnx_model import EXACT

#: Positions of the matrix or filter, and of its zero point, by node type.
OPERANDS: Mapping[str, tuple[int, int]] = {
    "MatMulInteger": (1, 3),
    "ConvInteger": (1, 3),
    "DynamicQuantizeMatMul": (1, 3),
    "MatMulIntegerToFloat": (1, 5),
    "QLinearMatMul": (3, 5),
    "QLinearConv": (3, 5),
    "QGemm": (3, 5),
}
#: Position of the rows' zero point, in products without a kernel for int8 rows and a uint8 matrix.
SIGNED_ROWS = dict.fromkeys(("QLinearMatMul", "QLinearConv", "QGemm"), 2)
#: Offset from int8 to uint8.
MIDDLE = 128


def session_options(threads: int = 0) -> ort.SessionOptions:
    """Options of ONNX Runtime with `threads` threads (0: one per core) that log errors only."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for key, value in EXACT.items():
        options.add_session_config_entry(key, value)
    return options


def reference_session(
    model: Model, threads: int = 0, *, optimised: bool = False
) -> ort.InferenceSession:
    """A session for references: exact integer products, and no rewrites unless `optimised`.

    Weights are not copied.
    """
    options = session_options(threads)
    options.add_session_config_entry("session.disable_prepacking", "1")
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return unsigned(model).session(options)


def with_own_constants(model: Model) -> Model:
    """The model with separate int8 constants for each product."""
    return _changed(model, lambda signed: signed)


def unsigned(model: Model) -> Model:
    """The model with uint8 constants in place of int8 constants of products."""
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
    """int8 constants by name, from initializers, Constant and Identity nodes."""
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
