"""Parameters that a model takes as inputs become constants, with the values of one run.

ONNX hands an op's axes, pads or weights over as inputs; codl's converters want many of those when
the model is compiled. Which ones they are is each converter's own word (`parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from codl.frontend.converters.base import CONVERTERS
from codl.ir.onnx_node import type_of

#: What reads of its input the shape alone, which is fixed anyway.
SHAPE_ONLY = ("Shape", "Size")


def data_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must give; initializers may be declared as inputs too."""
    fixed = {item.name for item in graph.initializer}
    return [info for info in graph.input if info.name not in fixed]


def parameter_inputs(graph: onnx.GraphProto) -> frozenset[str]:
    """Inputs that some node takes as a parameter, or from which such a parameter is computed."""
    needed: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in SHAPE_ONLY:
            continue
        if needed.intersection(node.output):
            needed.update(node.input)
        converter = CONVERTERS.get(type_of(node))
        positions = converter.parameters if converter else ()
        needed.update(name for i, name in enumerate(node.input) if i in positions)
    return frozenset(info.name for info in data_inputs(graph) if info.name in needed)


def specialise(model: onnx.ModelProto, values: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model for inputs like `values`: parameters as initializers, and every shape fixed."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    parameters = parameter_inputs(graph)
    kept = [info for info in graph.input if info.name not in parameters]
    for info in kept:
        if info.name in values:
            dims = [{"dim_value": size} for size in values[info.name].shape]
            info.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=dims))
    for info in (*graph.value_info, *graph.output):
        # What is open is inferred again from the shapes of these inputs.
        if any(not dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim):
            info.type.tensor_type.ClearField("shape")
    del graph.input[:]
    graph.input.extend(kept)
    graph.initializer.extend(
        numpy_helper.from_array(values[name], name) for name in sorted(parameters)
    )
    return fixed
