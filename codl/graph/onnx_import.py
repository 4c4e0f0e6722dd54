"""ONNX in: ONNX Runtime folds constants and batch norms, shapes are inferred, a `Graph` out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from codl.errors import UnsupportedError
from codl.graph.graph import Graph, Node


def import_onnx(proto: onnx.ModelProto, name: str) -> Graph:
    """Optimise and read an ONNX model.

    A symbolic batch becomes 1. Raises `UnsupportedError` for any other size that is not fixed.
    """
    model = onnx.shape_inference.infer_shapes(_optimise(_fix_batch(proto)))
    graph = model.graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    infos = [*graph.input, *graph.value_info, *graph.output]
    shapes = {info.name: _shape(info) for info in infos}
    shapes |= {key: tuple(value.shape) for key, value in constants.items()}
    nodes = tuple(_node(node, index) for index, node in enumerate(graph.node))
    inputs = tuple(info.name for info in graph.input if info.name not in constants)
    outputs = tuple(info.name for info in graph.output)
    opset = max((item.version for item in model.opset_import if not item.domain), default=1)
    return Graph(name, nodes, inputs, outputs, shapes, constants, opset=opset)


def session_options(threads: int = 0) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def _optimise(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Fold constants and batch norms; the basic level stays inside standard ONNX."""
    with tempfile.TemporaryDirectory(prefix="codl-") as folder:
        path = Path(folder) / "optimised.onnx"
        options = session_options()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise UnsupportedError(f"ONNX Runtime cannot load the model: {error}") from error
        return onnx.load(path)


def _fix_batch(proto: onnx.ModelProto) -> onnx.ModelProto:
    constants = {item.name for item in proto.graph.initializer}
    symbolic = [
        dim
        for info in proto.graph.input
        if info.name not in constants
        for dim in info.type.tensor_type.shape.dim[:1]
        if dim.dim_value < 1
    ]
    if not symbolic:
        return proto
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for info in fixed.graph.input:
        dims = info.type.tensor_type.shape.dim
        if info.name not in constants and dims and dims[0].dim_value < 1:
            dims[0].dim_value = 1
    for info in [*fixed.graph.output, *fixed.graph.value_info]:
        info.type.tensor_type.ClearField("shape")
    return fixed


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    dims = info.type.tensor_type.shape.dim
    sizes = tuple(dim.dim_value for dim in dims)
    if any(size < 1 for size in sizes):
        given = "x".join(str(dim.dim_value or dim.dim_param or "?") for dim in dims)
        raise UnsupportedError(
            f"The tensor {info.name!r} has the shape {given}; every size but the batch must be "
            "fixed. Export the model with a fixed input size."
        )
    return sizes


def _node(node: onnx.NodeProto, index: int) -> Node:
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    name = node.name or f"{node.op_type}_{index}"
    return Node(name, node.op_type, tuple(node.input), tuple(node.output), attributes)
