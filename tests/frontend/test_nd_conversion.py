"""What nodes of mathematics mean: the operators that they become, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.references import check, evaluate, model_of_values
from support.references import model_of_values as model

from codl.frontend.convert import convert
from codl.frontend.graph.graph import Graph
from codl.ir import Network
from codl.ir.onnx_node import Node


def random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> NDArray[np.float32]:
    return np.abs(random(*shape)) + np.float32(0.1)


REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(
    "axes", [None, [1], [0, 2], [-1, 0], [0, 1, 2, 3], [1, 2], [0, 2, 4], [0, -2, -1]]
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(name: str, axes: list[int] | None, keepdims: int) -> None:
    given = {"x": positive(2, 3, 4, 5) if axes != [0, 2, 4] else positive(2, 3, 4, 3, 2)}
    attributes = {"keepdims": keepdims} | ({} if axes is None else {"axes": axes})
    opset, inputs, constants = 12, ["x"], {}
    if name == "Sum" and axes is not None:
        opset, inputs, constants = 13, ["x", "axes"], {"axes": np.array(attributes.pop("axes"))}
    node = helper.make_node(f"Reduce{name}", inputs, ["y"], **attributes)
    check(model([node], given, constants, opset), given, encloses=True)


@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("name", ["Conv", "MaxPool"])
def test_padding_by_itself(name: str, auto: str, strides: list[int]) -> None:
    """Of even windows, where one row or column more lies above or below."""
    given, fixed = {"x": random(1, 3, 9, 8)}, {"w": random(4, 3, 4, 2)} if name == "Conv" else {}
    attributes = {"auto_pad": auto, "kernel_shape": [4, 2], "strides": strides}
    check(model([helper.make_node(name, ["x", *fixed], ["y"], **attributes)], given, fixed), given)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_windows_over_three_axes_are_onnx_runtimes(kind: str) -> None:
    weighs = kind.startswith("Conv")
    given, fixed = {"x": random(1, 2, 4, 5, 6)}, {"w": random(2, 2, 3, 2, 2)} if weighs else {}
    attributes = {} if weighs else {"kernel_shape": [3, 2, 2]}
    node = helper.make_node(kind, ["x", *fixed], ["y"], **attributes)
    network = check(model([node], given, fixed), given, encloses=True)
    assert [layer.op.kind for layer in network.layers] == ["onnx"]


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax(name: str, opset: int, axis: int | None) -> None:
    given = {"x": random(3, 4, 2, 3, 2)}
    node = helper.make_node(name, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    check(model([node], given, {}, opset), given)


@pytest.mark.parametrize("constant", ["", "a", "b"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((4, 5), (5,)),
        ((1, 5), (5, 3)),
        ((4, 5), (5, 3)),
        ((2, 4, 5), (5, 3)),
        ((2, 3, 4, 5), (3, 5, 2)),
        ((2, 1, 4, 5), (3, 5, 2)),
        ((5,), (2, 5, 3)),
        ((2, 4, 5), (5,)),
        ((3, 2, 1, 4, 5), (2, 2, 5, 3)),
    ],
)
def test_products(a: tuple[int, ...], b: tuple[int, ...], constant: str) -> None:
    values = {"a": random(*a), "b": random(*b)}
    constants = {name: value for name, value in values.items() if name == constant}
    given = {name: value for name, value in values.items() if name != constant}
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    check(model([node], given, constants), given)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (3,), (1, 3), (1,), (), "column", "full"])
@pytest.mark.parametrize("constants", ["", "b", "bc", "c"])
def test_gemm(m: int, trans: tuple[int, int], c: Any, constants: str) -> None:
    a, b = random(m, 5), random(5, 3)
    values = {"a": a.T.copy() if trans[0] else a, "b": b.T.copy() if trans[1] else b}
    if c is not None:
        values["c"] = random(*{"column": (m, 1), "full": (m, 3)}.get(c, c))
    node = helper.make_node(
        "Gemm", list(values), ["y"], alpha=0.5, beta=-2.0, transA=trans[0], transB=trans[1]
    )
    fixed = {name: value for name, value in values.items() if name in constants}
    given = {name: value for name, value in values.items() if name not in constants}
    check(model([node], given, fixed), given)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)])
def test_norms_of_channels(shape: tuple[int, ...], constant: bool) -> None:
    affine = {"scale": random(3), "bias": random(3)}
    more = {"mean": random(3) * 2, "variance": positive(3)}
    fixed, given = (affine | more if constant else {}), {} if constant else affine | more
    x = {"x": random(*shape)}
    node = helper.make_node("BatchNormalization", ["x", *affine, *more], ["y"], epsilon=1e-3)
    check(model([node], x | given, fixed), x | given, encloses=True)
    if len(shape) > 2:
        fixed, given = (affine if constant else {}), {} if constant else affine
        node = helper.make_node("InstanceNormalization", ["x", *affine], ["y"], epsilon=1e-3)
        check(model([node], x | given, fixed), x | given)


@pytest.mark.parametrize(("opset", "constant"), [(18, True), (21, True), (21, False)])
def test_group_norm(opset: int, constant: bool) -> None:
    x, size = random(2, 6, 3, 4), {18: 2, 21: 6}[opset]
    values = {"scale": random(size), "bias": random(size)}
    given = {"x": x} | ({} if constant else values)
    # Not through ONNX Runtime, which writes the older form out as other nodes.
    own = Node("n", "GroupNormalization", ("x", *values), ("y",), {"num_groups": 2})
    shapes = {name: value.shape for name, value in ({"x": x} | values).items()} | {"y": x.shape}
    fixed = values if constant else {}
    network = convert(Graph("g", (own,), tuple(given), ("y",), shapes, fixed, opset=opset))
    apart = x.astype(np.float64).reshape(2, 2, -1)
    apart = (apart - apart.mean(2, keepdims=True)) / np.sqrt(apart.var(2, keepdims=True) + 1e-5)
    each = [np.repeat(v, 6 // size).reshape(1, 6, 1, 1) for v in values.values()]
    expected = apart.reshape(x.shape) * each[0] + each[1]
    np.testing.assert_allclose(evaluate(network, given)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [("y",), ("y", "mean", "inverse")])
def test_layer_norm(axis: int, bias: bool, outputs: tuple[str, ...]) -> None:
    given = {"x": random(2, 3, 4, 5)}
    sizes = given["x"].shape[axis:]
    constants = {"scale": random(*sizes)} | ({"bias": random(*sizes) * 2} if bias else {})
    node = helper.make_node("LayerNormalization", ["x", *constants], list(outputs), axis=axis)
    check(model([node], given, constants, 17, outputs), given, encloses=True)


FUNCTIONS = ("Abs", "Neg", "Exp", "Floor", "Ceil", "Round", "Sign", "Softplus", "Softsign", "Mish",
             "Selu", "Celu", "ThresholdedRelu", "Sin", "Tan", "Atan", "Sinh", "Asinh")  # fmt: skip


PARAMETERS: dict[str, dict[str, float]] = {
    "LeakyRelu": {"alpha": 0.3},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.1},
    "Elu": {"alpha": 0.7},
    "Celu": {"alpha": 0.7},
    "Selu": {"alpha": 0.7, "gamma": 2.0},
    "ThresholdedRelu": {"alpha": 0.4},
    "Shrink": {"bias": 0.3, "lambd": 0.9},
}


@pytest.mark.parametrize(
    ("name", "attributes"), [*((name, {}) for name in FUNCTIONS), *PARAMETERS.items()]
)
def test_functions(name: str, attributes: dict[str, Any]) -> None:
    given = {"x": random(2, 3, 4) * 3}
    check(model([helper.make_node(name, ["x"], ["y"], **attributes)], given, {}, 18), given)


@pytest.mark.parametrize("first", ["Relu", "LeakyRelu", "Sigmoid"])
@pytest.mark.parametrize("second", ["Relu", "Tanh", "HardSwish"])
def test_an_activation_behind_another(first: str, second: str) -> None:
    given, fixed = {"x": random(1, 3, 5, 6)}, {"w": random(4, 3, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(first, ["c"], ["a"]),
        helper.make_node(second, ["a"], ["y"]),
    ]
    check(model(nodes, given, fixed), given)


@pytest.mark.parametrize("name", ["Log", "Sqrt", "Reciprocal"])
def test_functions_of_positive_numbers(name: str) -> None:
    given = {"x": positive(7)}
    check(model([helper.make_node(name, ["x"], ["y"])], given, {}), given)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3, 1, 4), (5, 4), (6, 2, 3, 5, 4)])
@pytest.mark.parametrize("constant", [True, False])
def test_stretching_five_axes(shape: tuple[int, ...], constant: bool) -> None:
    z = np.asarray(random(*shape), np.float32)
    given, fixed = {"x": random(6, 2, 3, 5, 4)}, {"z": z} if constant else {}
    given |= {} if constant else {"z": z}
    check(model([helper.make_node("Sub", ["z", "x"], ["y"])], given, fixed), given)


def test_sums_of_many() -> None:
    given = {"x": random(2, 3), "z": random(3), "w": random(2, 1)}
    check(model([helper.make_node("Sum", list(given), ["y"])], given, {}), given)


def kinds(network: Network) -> list[str]:
    return [layer.op.activation.kind for layer in network.layers]


@pytest.mark.parametrize("first", ["half", "x"])
@pytest.mark.parametrize("divides", [True, False])
def test_gelu_is_recognised(first: str, divides: bool) -> None:
    given = {"x": random(2, 3, 4) * 3}
    root = np.float32(2**0.5 if divides else 0.5**0.5)
    constants = {"root": root, "half": np.float32(0.5), "one": np.float32(1)}
    other = "x" if first == "half" else "half"
    nodes = [
        helper.make_node("Div" if divides else "Mul", ["x", "root"], ["scaled"]),
        helper.make_node("Erf", ["scaled"], ["erf"]),
        helper.make_node("Add", ["erf", "one"], ["sum"]),
        helper.make_node("Mul", [first, "sum"], ["product"]),
        helper.make_node("Mul", ["product", other], ["y"]),
    ]
    constants = {name: np.asarray(value) for name, value in constants.items()}
    assert kinds(check(model(nodes, given, constants), given)) == ["gelu"]


SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "d": 7}


def tensor(indices: str, seed: int) -> NDArray[np.float32]:
    shape = [SIZES[index] for index in indices]
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(
    "equation",
    [
        "ik,kj->ij",
        "ik,jk->ij",
        "ki,kj->ji",
        "bhid,bhjd->bhij",
        "bhij,bhjd->bhid",
        "bihd,bjhd->bhij",
        "bhij,bjhd->bihd",
        "i,j->ij",
        "i,i->",
        "i,i->i",
        "ij,ij->ij",
        "bij,k->bijk",
        "bihk,hkd->bid",
    ],
)
def test_of_two_tensors(equation: str, constant: bool) -> None:
    a, b = (tensor(t, i) for i, t in enumerate(equation.split("->")[0].split(",")))
    given, constants = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)
    check(model_of_values([node], given, constants), given)


@pytest.mark.parametrize(
    "equation",
    ["ik,kj", "ij->ji", "i,j,k->ijk", "ij,kj->k", "ij,jk->ijk", "bik,kj->bi", "ii->i", "ii,ij->ij"],
)
def test_others_are_onnx_runtimes(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    given = {
        name: tensor(term, i) for i, (name, term) in enumerate(zip("abc", terms, strict=False))
    }
    node = helper.make_node("Einsum", list(given), ["y"], equation=equation)
    check(model_of_values([node], given), given, encloses=True)
