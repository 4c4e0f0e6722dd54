"""Nodes of `com.microsoft` that stand for a few others, against ONNX Runtime."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from support.onnx_models import floats
from support.references import check, model_of_values

from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Network

MICROSOFT = "com.microsoft"


def node(kind: str, inputs: str, outputs: str = "y", **attributes: object) -> onnx.NodeProto:
    """A node of `com.microsoft`; a dash is an input or output left out."""
    names = [[n.strip("-") for n in given.split()] for given in (inputs, outputs)]
    return helper.make_node(kind, *names, domain=MICROSOFT, **attributes)


def steps(network: Network) -> list[tuple[str, str]]:
    return [(layer.op.kind, layer.op.activation.kind) for layer in network.layers]


@pytest.mark.parametrize(
    ("kind", "activation"), [("Gelu", "gelu"), ("FastGelu", "gelu_tanh"), ("BiasGelu", "gelu")]
)
@pytest.mark.parametrize("behind", [True, False])
def test_gelus_become_part_of_the_product_before_them(
    kind: str, activation: str, behind: bool
) -> None:
    given, constants = {"x": floats(2, 5, 8)}, {"w": floats(8, 8), "b": floats(8)}
    inputs = "p" if kind == "Gelu" else "p b"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), node(kind, inputs)]
    if not behind:
        nodes = [node(kind, inputs.replace("p", "x"))]
    network = check(model_of_values(nodes, given, constants), given)
    assert steps(network) == [("matmul" if behind else "eltwise", activation)]


@pytest.mark.parametrize("alpha", [None, 1.0, 0.5])
def test_quick_gelu(alpha: float | None) -> None:
    given = {"x": floats(2, 3, 4) * 3}
    attributes = {} if alpha is None else {"alpha": alpha}
    check(model_of_values([node("QuickGelu", "x", **attributes)], given), given)


@pytest.mark.parametrize("inputs", ["x z g", "x z g c", "x z g c b", "x z g - b"])
@pytest.mark.parametrize("outputs", ["y", "y - - s"])
def test_skip_layer_norm(inputs: str, outputs: str) -> None:
    given = {"x": floats(2, 5, 8), "z": floats(2, 5, 8, seed=1)}
    constants = {name: floats(8, seed=i) for i, name in enumerate("gcb")}
    nodes = [node("SkipLayerNormalization", inputs, outputs, epsilon=1e-3)]
    wanted = tuple(name for name in outputs.split() if name != "-")
    network = check(model_of_values(nodes, given, constants, outputs=wanted), given)
    assert {kind for kind, _ in steps(network)} == {"eltwise", "norm"}


@pytest.mark.parametrize("inputs", ["x z g", "x z g b"])
@pytest.mark.parametrize("outputs", ["y", "y - - s"])
def test_skip_rms_norm(inputs: str, outputs: str) -> None:
    given = {"x": floats(2, 5, 8), "z": floats(2, 5, 8, seed=1)}
    constants = {name: floats(8, seed=i) for i, name in enumerate("gb")}
    nodes = [node("SkipSimplifiedLayerNormalization", inputs, outputs)]
    wanted = tuple(name for name in outputs.split() if name != "-")
    check(model_of_values(nodes, given, constants, outputs=wanted), given)


def test_a_bias_of_a_skip_norm_goes_into_the_product_before_it() -> None:
    given = {"x": floats(2, 5, 8), "z": floats(2, 5, 8, seed=1)}
    constants = {name: floats(8, seed=i) for i, name in enumerate("gcb")} | {"w": floats(8, 8)}
    product = helper.make_node("MatMul", ["x", "w"], ["p"])
    nodes = [product, node("SkipLayerNormalization", "z p g c b")]
    network = check(model_of_values(nodes, given, constants), given)
    assert [kind for kind, _ in steps(network)] == ["matmul", "eltwise", "norm"]


@pytest.mark.parametrize("kind", ["SimplifiedLayerNormalization", "RMSNormalization"])
def test_rms_norm(kind: str) -> None:
    given, constants = {"x": floats(2, 5, 8)}, {"g": floats(8)}
    nodes = [helper.make_node(kind, ["x", "g"], ["y"], axis=-1, epsilon=1e-3)]
    opset = 23 if kind == "RMSNormalization" else 17
    network = check(model_of_values(nodes, given, constants, opset), given)
    assert steps(network) == [("norm", "none")]


def test_what_has_no_operator_there_goes_to_onnx_runtime() -> None:
    given = {"x": floats(2, 3, 3)}
    nodes = [node("Inverse", "x", "a"), helper.make_node("Tanh", ["a"], ["y"])]
    network = network_of(import_onnx(model_of_values(nodes, given), "test"))
    assert [layer.op.kind for layer in network.layers] == ["onnx", "eltwise"]
    assert network.layers[0].op.nodes == "com.microsoft.Inverse"  # type: ignore[attr-defined]
