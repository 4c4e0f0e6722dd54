"""Models apart from their large constants, against the same with all inside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from codl.frontend.convert import load_network, load_structure
from codl.frontend.graph import weights
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.weights import Model
from codl.frontend.models.builder import ModelBuilder


def built() -> onnx.ModelProto:
    """Weights of all that ONNX Runtime fuses, and of products that it need not see."""
    b = ModelBuilder("large")
    x = b.input("x", (1, 16, 12, 12))
    x = b.relu(b.batch_norm(b.conv(x, 64, 3, pad=1)))
    x = b.scaled(b.conv(x, 64, 3, pad=1, bias=False), 0.5)
    x = b.flatten(b.global_average_pool(x))
    x = b.relu(b.fully_connected(x, 80))
    y = b.learned("both", (80, 80), spread=0.1)
    x = b.matmul(b.matmul(x, y), b.transpose(y, (1, 0)))
    x = b.linear(x, 96)
    b.output(b.linear(x, 100, bias=False))
    return b.build()


def normalised() -> onnx.ModelProto:
    """A batch norm behind a product, which takes it into its weights."""
    b = ModelBuilder("normalised")
    x = b.linear(b.input("x", (4, 80)), 96, bias=False)
    b.output(b.batch_norm(x))
    return b.build()


def constant() -> onnx.ModelProto:
    """A product of constants."""
    b = ModelBuilder("constant")
    x = b.input("x", (4, 80))
    y = b.matmul(b.learned("a", (80, 80), spread=0.1), b.learned("b", (80, 80), spread=0.1))
    b.output(b.matmul(x, y))
    return b.build()


def branching() -> onnx.ModelProto:
    """A graph inside a node reads a weight of the one around it."""
    b = ModelBuilder("branching")
    x = b.matmul(b.input("x", (4, 80)), b.learned("w", (80, 80), spread=0.1))
    b.output(b.relu(x))
    proto = b.build()
    out = helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, (4, 80))
    inner = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["out"])], "inner", [], [out])
    sign = numpy_helper.from_array(np.array(True), "sign")
    node = helper.make_node("If", ["sign"], ["z"], then_branch=inner, else_branch=inner)
    proto.graph.initializer.append(sign)
    proto.graph.node.append(node)
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (4, 80)))
    return proto


def same(one: Graph, other: Graph) -> None:
    assert [(n.type, n.inputs, n.outputs) for n in one.nodes] == [
        (n.type, n.inputs, n.outputs) for n in other.nodes
    ]
    assert (one.inputs, one.outputs, one.shapes) == (other.inputs, other.outputs, other.shapes)
    assert one.constants.keys() == other.constants.keys()
    for name, value in one.constants.items():
        np.testing.assert_array_equal(value, other.constants[name], err_msg=name)


@pytest.mark.parametrize("build", [built, normalised, constant, branching])
def test_large_constants_are_folded_as_if_they_were_inside(
    build: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = build()
    model = Model.of(proto)
    assert model.weights
    apart = import_onnx(model, "m")
    monkeypatch.setattr(weights, "LARGE", 1 << 40)
    assert not Model.of(proto).weights
    same(apart, import_onnx(proto, "m"))


def test_a_model_can_be_made_whole_again() -> None:
    proto = built()
    model = Model.of(proto)
    assert model.proto.ByteSize() < proto.ByteSize() / 20
    whole = model.whole()
    by_name = {item.name: item for item in whole.graph.initializer}
    assert [by_name[item.name] for item in proto.graph.initializer] == list(proto.graph.initializer)
    assert whole.graph.node == proto.graph.node
    assert whole.opset_import == proto.opset_import


@pytest.mark.parametrize("model", ["op_chain", "mobilenet_v1", "deit_tiny"])
def test_a_structure_is_planned_as_the_network(model: str) -> None:
    structure, network = load_structure(model), load_network(model)
    assert structure.digest == network.digest
    assert not any(layer.weights for layer in structure.layers)
