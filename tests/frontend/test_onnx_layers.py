"""Nodes that codl has no operator for: what they become, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.onnx_models import floats, model, node

from codl.errors import UnsupportedError
from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import parse, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.kernels import registry


def test_an_output_whose_size_depends_on_data_is_refused_with_its_node() -> None:
    nodes = [node("Abs", "x", "a"), node("NonZero", "a", "y")]
    proto = model(nodes, {"x": [3, 7]}, ["y"], types={"y": "int64"})
    with pytest.raises(UnsupportedError, match=r"'n_y' \(NonZero\).*'y'"):
        network_of(import_onnx(proto, "test"))


def test_what_is_no_number_is_refused() -> None:
    nodes = [node("Abs", "x", "a"), node("Cast", "a", "y", to=TensorProto.STRING)]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [3])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="'y' is of type string"):
        network_of(import_onnx(proto, "test"))


def test_such_an_op_is_told_apart_by_its_digest() -> None:
    proto = model([node("CumSum", "x axis", "y")], {"x": [3, 7]}, ["y"], {"axis": np.int64(1)})
    (layer,) = network_of(import_onnx(proto, "test")).layers
    assert isinstance(layer.op, OnnxModel)
    read = parse(to_text(layer.op))
    assert read == layer.op
    with pytest.raises(UnsupportedError, match="not here to be run"):
        registry.find(read, "cpu_ort").plan(read, None)  # type: ignore[attr-defined]
    x = floats(3, 7)
    expected = layer.op.reference([x.reshape(layer.op.input).astype(np.float64)], {})
    np.testing.assert_allclose(expected.reshape(3, 7), np.cumsum(x, 1), rtol=1e-5)
