"""Norms and activations that models spell out; against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.onnx_models import floats, node_of
from support.references import check, model_of_values

from codl.ir import Network

Values = dict[str, NDArray[Any]]
SHAPE = (2, 5, 8)


def scalars(**values: float) -> Values:
    return {name: np.asarray(value, np.float32) for name, value in values.items()}


def kinds(network: Network) -> list[str]:
    return [layer.op.kind for layer in network.layers]


ROOTS = {
    "reciprocal": ["i = Reciprocal r", "n = Mul x i"],
    "over": ["i = Div one r", "n = Mul i x"],
    "divided": ["n = Div x r"],
}


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", ["s = Pow x two", "s = Mul x x"])
@pytest.mark.parametrize("end", ["y = Mul n g", "y = Mul g n", "y = Identity n"])
@pytest.mark.parametrize("opset", [17, 18])
def test_rms_norms(root: str, square: str, end: str, opset: int) -> None:
    given, constants = {"x": floats(*SHAPE)}, scalars(two=2, one=1, e=1e-3) | {"g": floats(8)}
    mean = node_of("m = ReduceMean s", axes=[-1])
    if opset == 18:
        mean, constants["axes"] = node_of("m = ReduceMean s axes"), np.array([-1])
    texts = ["a = Add e m", "r = Sqrt a", *ROOTS[root], end]
    nodes = [node_of(square), mean, *map(node_of, texts)]
    network = check(model_of_values(nodes, given, constants, opset), given)
    assert kinds(network) == ["norm"]


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norms(bias: bool) -> None:
    given = {"x": floats(*SHAPE)}
    constants = scalars(two=2, e=1e-3) | {"g": floats(8), "c": floats(8, seed=1)}
    nodes = [
        node_of("u = ReduceMean x", axes=[-1]),
        node_of("d = Sub x u"),
        node_of("s = Pow d two"),
        node_of("m = ReduceMean s", axes=[2]),
        *map(node_of, ["a = Add m e", "r = Sqrt a", "n = Div d r"]),
        *map(node_of, ["w = Mul n g", "y = Add w c"] if bias else ["y = Mul n g"]),
    ]
    network = check(model_of_values(nodes, given, constants), given)
    assert kinds(network) == ["norm"]
    assert network.layers[0].op.center  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "changed", [{"m": ("m = ReduceMean s", [1])}, {"s": ("s = Mul x g", None)}, {"g": floats(5, 1)}]
)
def test_what_is_no_norm_of_the_last_axis_stays(changed: dict[str, Any]) -> None:
    given, constants = {"x": floats(*SHAPE)}, scalars(e=9.0) | {"g": floats(8)}
    constants["g"] = changed.get("g", constants["g"])
    square, _ = changed.get("s", ("s = Mul x x", None))
    mean, axes = changed.get("m", ("m = ReduceMean s", [2]))
    texts = ["a = Add m e", "r = Sqrt a", "n = Div x r", "y = Mul n g"]
    nodes = [node_of(square), node_of(mean, axes=axes), *map(node_of, texts)]
    network = check(model_of_values(nodes, given, constants), given)
    assert kinds(network) != ["norm"]


@pytest.mark.parametrize("cube", [["p = Pow x three"], ["q = Mul x x", "p = Mul q x"]])
@pytest.mark.parametrize(
    "end", [["h = Mul half x", "y = Mul h t"], ["h = Mul x t", "y = Mul h half"]]
)
def test_gelus_with_a_tangent(cube: list[str], end: list[str]) -> None:
    given = {"x": floats(*SHAPE) * 3}
    constants = scalars(three=3, half=0.5, one=1, small=0.044715, root=(2 / np.pi) ** 0.5)
    texts = [*cube, "b = Mul p small", "c = Add x b", "d = Mul c root"]
    nodes = [
        *map(node_of, texts),
        node_of("f = Tanh d"),
        node_of("t = Add f one"),
        *map(node_of, end),
    ]
    network = check(model_of_values(nodes, given, constants), given)
    assert [layer.op.activation.kind for layer in network.layers] == ["gelu_tanh"]


@pytest.mark.parametrize("factor", [0.5, 0.6, 1.0])
def test_what_is_near_a_gelu_stays(factor: float) -> None:
    given, constants = {"x": floats(*SHAPE) * 3}, scalars(f=factor, half=0.5, one=1)
    texts = ["a = Mul x f", "e = Erf a", "t = Add e one", "p = Mul x t", "y = Mul p half"]
    network = check(model_of_values([*map(node_of, texts)], given, constants), given)
    assert "gelu" not in [layer.op.activation.kind for layer in network.layers]


@pytest.mark.parametrize("factor", [1.702, 1.3, 1.0])
def test_gates(factor: float) -> None:
    given, constants = {"x": floats(*SHAPE) * 3}, scalars(f=factor)
    nodes = [*map(node_of, ["a = Mul f x", "g = Sigmoid a", "y = Mul x g"])]
    network = check(model_of_values(nodes, given, constants), given)
    wanted = ["silu", "none"] if factor != 1 else ["silu"]
    assert [layer.op.activation.kind for layer in network.layers] == wanted


@pytest.mark.parametrize("kind", ["SimplifiedLayerNormalization", "RMSNormalization"])
def test_rms_norms_of_one_node(kind: str) -> None:
    given, constants = {"x": floats(*SHAPE)}, {"g": floats(8)}
    nodes = [helper.make_node(kind, ["x", "g"], ["y"], axis=-1, epsilon=1e-3)]
    opset = 23 if kind == "RMSNormalization" else 17
    assert kinds(check(model_of_values(nodes, given, constants, opset), given)) == ["norm"]
