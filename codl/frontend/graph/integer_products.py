"""Products of integers, which ONNX Runtime is to compute exactly on every CPU.

On x86 CPUs without VNNI it adds products by int8 in pairs of 16 bits, which may not hold them,
unless its optimiser may make uint8 of such constants: `EXACT` says so. That fails where two nodes
read one constant, so each gets its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx
import onnxruntime as ort
from onnx import TensorProto

from codl.frontend.graph.weights import Model
from codl.ir.ops.onnx_model import EXACT

#: The types of nodes with such products.
PRODUCTS = frozenset(
    (
        *("MatMulInteger", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
        *("ConvInteger", "QLinearConv", "QGemm", "QAttention", "DynamicQuantizeLSTM"),
    )
)


def session_options(threads: int = 0) -> ort.SessionOptions:
    """With `threads` threads, one a core for 0; only errors are logged."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for key, value in EXACT.items():
        options.add_session_config_entry(key, value)
    return options


def plain_options(kinds: Iterable[str], threads: int = 0) -> ort.SessionOptions:
    """Those of a reference for nodes of these types: none is fused or rearranged.

    But where only the optimiser makes products exact; it makes none then of products of floats.
    """
    options, levels = session_options(threads), ort.GraphOptimizationLevel
    is_plain = PRODUCTS.isdisjoint(kinds)
    options.graph_optimization_level = (
        levels.ORT_DISABLE_ALL if is_plain else levels.ORT_ENABLE_EXTENDED
    )
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def with_own_constants(model: Model) -> Model:
    """The model, in which no two products read one constant of int8."""
    proto, copies = onnx.ModelProto(), {}
    proto.CopyFrom(model.proto)
    signed = {i.name: i for i in proto.graph.initializer if i.data_type == TensorProto.INT8}
    taken: set[str] = set()
    for number, node in enumerate(proto.graph.node):
        for place, name in enumerate(node.input):
            if node.op_type not in PRODUCTS or name not in signed:
                continue
            if name in taken:
                node.input[place] = own = f"{name}.{number}.{place}"
                proto.graph.initializer.add().CopyFrom(signed[name])
                proto.graph.initializer[-1].name, copies[own] = own, name
            taken.add(name)
    weights = {own: model.weights[old] for own, old in copies.items() if old in model.weights}
    return replace(model, proto=proto, weights={**model.weights, **weights}) if copies else model
