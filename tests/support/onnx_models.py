"""ONNX models of a few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

CODES = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose outputs have no declared shapes; inputs and outputs are floats, or `types`."""
    kinds = {name: CODES[(types or {}).get(name, "float32")] for name in (*inputs, *outputs)}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, kinds[n], shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kinds[name], None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = outputs.split()
    return helper.make_node(kind, inputs.split(), names, name=f"n_{names[0]}", **attributes)


def floats(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
