"""Models of opsets before 7, most of which ONNX Runtime has no kernels for.

What they compute is written in NumPy, by the text of their opset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper
from support.onnx_models import floats, model, node
from support.references import check, evaluate

from codl.errors import UnsupportedError
from codl.frontend.convert import network_of
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx

Array = NDArray[Any]
SIZES = (2, 3, 4, 5)
X, SCALE = floats(*SIZES), floats(3, seed=3)


def computed(proto: onnx.ModelProto, x: Array = X) -> Array:
    """What codl computes, of a model that ONNX Runtime cannot load as it is."""
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        ort.InferenceSession(proto.SerializeToString(), session_options(1))
    return evaluate(network_of(import_onnx(proto, "test")), {"x": x})["y"]


def old(
    nodes: list[onnx.NodeProto],
    opset: int,
    constants: dict[str, Any] | None = None,
    types: dict[str, str] | None = None,
    x: Array = X,
) -> onnx.ModelProto:
    """As files of that time are: initializers are inputs, too."""
    proto = model(nodes, {"x": list(x.shape)}, ["y"], constants, types, opset)
    for item in proto.graph.initializer:
        info = helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        proto.graph.input.append(info)
    proto.ir_version = 3
    return proto


#: Sizes of the second operand, the axis, and the sizes under which NumPy stretches it.
STRETCHED = [
    ((3,), 1, (3, 1, 1)),
    ((3, 4), 1, (3, 4, 1)),
    ((4, 5), 2, (4, 5)),
    ((4,), -2, (4, 1)),
    ((5,), -1, (5,)),
    ((2,), 0, (2, 1, 1, 1)),
    ((2, 3), 0, (2, 3, 1, 1)),
    ((5,), None, (5,)),
    ((4, 5), None, (4, 5)),
    ((1,), None, (1,)),
    ((), None, ()),
    (SIZES, 0, SIZES),
]
FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize(("sizes", "axis", "seen"), STRETCHED)
def test_the_second_operand_is_stretched_from_an_axis_on(
    sizes: tuple[int, ...], axis: int | None, seen: tuple[int, ...], kind: str, opset: int
) -> None:
    b = floats(*sizes, seed=1) + np.float32(3)
    attributes = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    if opset == 1:
        attributes["consumed_inputs"] = [0, 0]
    got = computed(old([node(kind, "x b", "y", **attributes)], opset, {"b": b}))
    np.testing.assert_allclose(got, FUNCTIONS[kind](X, b.reshape(seen)), rtol=1e-5)


def test_operands_of_equal_sizes_and_one_of_a_network() -> None:
    """Behind what changes sizes, and where neither operand is a constant."""
    nodes = [
        node("MaxPool", "x", "p", kernel_shape=[2, 2]),
        node("GlobalAveragePool", "p", "g"),
        node("Reshape", "g", "s", shape=[6]),
        node("Reshape", "p", "f", shape=[6, -1]),
        node("Mul", "f s", "m", broadcast=1, axis=0),
        node("Add", "m f", "y"),
    ]
    pooled = np.lib.stride_tricks.sliding_window_view(X, (2, 2), (2, 3)).max((4, 5))
    flat = pooled.reshape(6, -1)
    expected = flat * pooled.mean((2, 3)).reshape(6, 1) + flat
    np.testing.assert_allclose(computed(old(nodes, 4)), expected, rtol=1e-5)


def test_powers() -> None:
    x, b = np.abs(X), np.float32([1.0, 2.0, 3.0])
    proto = old([node("Pow", "x b", "y", broadcast=1, axis=1)], 6, {"b": b})
    np.testing.assert_allclose(computed(proto, x), x ** b.reshape(3, 1, 1), rtol=1e-5)


@pytest.mark.parametrize(("kind", "function"), [("Less", np.less), ("Greater", np.greater)])
def test_comparisons(kind: str, function: Callable[[Array, Array], Array]) -> None:
    proto = old([node(kind, "x b", "y", broadcast=1, axis=1)], 6, {"b": SCALE}, types={"y": "bool"})
    np.testing.assert_array_equal(computed(proto), function(X, SCALE.reshape(3, 1, 1)))


@pytest.mark.parametrize("slopes", [3, 1])
@pytest.mark.parametrize("opset", [1, 6])
def test_a_slope_for_each_channel(opset: int, slopes: int) -> None:
    proto = old([node("PRelu", "x s", "y")], opset, {"s": SCALE[:slopes]})
    expected = np.where(X < 0, X * SCALE[:slopes].reshape(-1, 1, 1), X)
    np.testing.assert_allclose(computed(proto), expected, rtol=1e-5)


def test_slopes_as_numpy_stretches_them() -> None:
    proto = old([node("PRelu", "x s", "y")], 6, {"s": SCALE.reshape(3, 1, 1)})
    np.testing.assert_allclose(computed(proto), np.where(X < 0, X * SCALE.reshape(3, 1, 1), X))


@pytest.mark.parametrize("opset", [1, 6])
def test_a_network_of_its_time(opset: int) -> None:
    """Convolutions with biases of their own, norms, dropout, and a product."""
    used = {"consumed_inputs": [0]} if opset == 1 else {}
    norm = {"consumed_inputs": [0, 0, 0, 1, 1]} if opset == 1 else {}
    nodes = [
        node("Conv", "x w", "c", kernel_shape=[3, 3]),
        node("Add", "c b", "a", broadcast=1, axis=1),
        node("BatchNormalization", "a scale bias mean var", "n", is_test=1, epsilon=1e-3, **norm),
        node("Relu", "n", "r", **used),
        node("AveragePool", "r", "p", kernel_shape=[2, 2], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Dropout", "p", "d", is_test=1, ratio=0.5),
        node("Concat", "d d", "k") if opset == 1 else node("Concat", "d d", "k", axis=1),
        node("Reshape", "k", "f", shape=[2, 72]) if opset == 1 else node("Reshape", "k to", "f"),
        node("Gemm", "f m g", "y", broadcast=1, transB=1),
    ]
    constants = {"w": floats(4, 3, 3, 3), "b": floats(4), "m": floats(6, 72), "g": floats(6)}
    constants |= {n: floats(4, seed=i) for i, n in enumerate(("scale", "bias", "mean"))}
    constants["var"] = np.abs(floats(4, seed=5)) + np.float32(0.5)
    x = floats(2, 3, 6, 6)
    if opset == 6:
        constants["to"] = np.int64([2, 72])
    got = computed(old(nodes, opset, constants, x=x), x)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    each = constants["scale"] / np.sqrt(constants["var"] + 1e-3)
    value = np.einsum("nchwij,ocij->nohw", windows, constants["w"])
    value = value + (constants["b"] - constants["mean"]).reshape(-1, 1, 1)
    value = np.maximum(value * each.reshape(-1, 1, 1) + constants["bias"].reshape(-1, 1, 1), 0)
    padded = np.pad(value, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 2), (2, 3))[:, :, ::2, ::2]
    inside = np.pad(np.ones((4, 4)), 1)
    counts = np.lib.stride_tricks.sliding_window_view(inside, (2, 2))[::2, ::2].sum((2, 3))
    pooled = windows.sum((4, 5)) / counts
    whole = np.concatenate([pooled, pooled], 1).reshape(2, -1)
    np.testing.assert_allclose(got, whole @ constants["m"].T + constants["g"], rtol=1e-4, atol=1e-4)


def test_casts_by_name() -> None:
    proto = old([node("Cast", "x", "i", to="INT32"), node("Cast", "i", "y", to="FLOAT")], 5)
    np.testing.assert_array_equal(computed(proto, 9 * X), np.trunc(9 * X))


def test_pads_tiles_and_pieces_of_the_first_opset() -> None:
    nodes = [
        node("Pad", "x", "p", paddings=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5),
        node("Tile", "p count axis", "t"),
        node("Split", "t sizes", "u v", axis=1),
        node("Concat", "v u", "y"),
    ]
    constants = {"count": np.float32(2), "axis": np.float32(1), "sizes": np.int64([2, 4])}
    tiled = np.tile(np.pad(X, ((0, 0), (0, 0), (1, 0), (2, 1)), constant_values=0.5), (1, 2, 1, 1))
    expected = np.concatenate([tiled[:, 2:], tiled[:, :2]], 1)
    np.testing.assert_array_equal(computed(old(nodes, 1, constants)), expected)


def test_selu_has_other_digits() -> None:
    got = computed(old([node("Selu", "x", "y")], 5))
    expected = 1.0507 * np.where(X > 0, X, 1.6732 * np.expm1(X.astype(np.float64)))
    np.testing.assert_allclose(got, expected, rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_an_image_is_enlarged(mode: str) -> None:
    """The same as today's node does by the scales of all axes."""
    node_then = node("Upsample", "x", "y", height_scale=2.0, width_scale=3.0, mode=mode)
    mode_now = "linear" if mode == "bilinear" else mode
    now = helper.make_node("Upsample", ["x"], ["y"], mode=mode_now, scales=[1.0, 1.0, 2.0, 3.0])
    proto = model([now], {"x": list(SIZES)}, ["y"], opset=8)
    session = ort.InferenceSession(proto.SerializeToString(), session_options(1))
    (expected,) = session.run(None, {"x": X})
    np.testing.assert_allclose(computed(old([node_then], 6)), expected, rtol=1e-5, atol=1e-6)


def test_norms_by_a_power_that_is_a_float() -> None:
    got = computed(old([node("GlobalLpPool", "x", "y", p=2.0)], 1))
    np.testing.assert_allclose(got, np.sqrt((X * X).sum((2, 3), keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize("opset", [1, 6])
def test_what_onnx_runtime_loads_is_as_it_has_it(opset: int) -> None:
    nodes = [node("ThresholdedRelu", "x", "t"), node("Softmax", "t", "y")]
    check(model(nodes, {"x": list(SIZES)}, ["y"], opset=opset), {"x": X})


def test_behind_a_node_that_onnx_runtime_alone_knows() -> None:
    """Such as of WinML's models, which begin so."""
    nodes = [
        node("ImageScaler", "x", "i", bias=[1.0, 2.0, 3.0], scale=0.5),
        node("MaxPool", "i", "p", kernel_shape=[1, 1]),
        node("Mul", "p b", "y", broadcast=1, axis=1),
    ]
    network = network_of(import_onnx(old(nodes, 2, {"b": SCALE}), "test"))
    assert [layer.op.kind for layer in network.layers] == ["onnx", "pooling", "eltwise"]
    assert network.layers[2].op.inputs[1] == (1, 3, 1, 1)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Dropout", "x", "y", is_test=0)], r"'n_y' \(Dropout\) of opset 6 .* is_test is 0"),
        ([node("Add", "x b", "y", broadcast=1, axis=3)], "2 axes do not fit behind axis 3 of 4"),
        ([node("Add", "x c", "y"), node("NoSuchNode", "x", "c")], "NoSuchNode"),
    ],
)
def test_what_cannot_be_converted_is_refused(nodes: list[onnx.NodeProto], reason: str) -> None:
    proto = old(nodes, 6, {"b": floats(3, 4)})
    with pytest.raises(UnsupportedError, match=reason):
        network_of(import_onnx(proto, "test"))


def test_a_recurrent_network() -> None:
    """Its outputs need not be asked for by an attribute today."""
    constants = {"w": floats(1, 16, 5), "r": floats(1, 16, 4, seed=2)}
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
    proto = model([lstm], {"x": [3, 2, 5]}, ["y"], constants, opset=7)
    session = ort.InferenceSession(proto.SerializeToString(), session_options(1))
    (expected,) = session.run(None, {"x": floats(3, 2, 5)})
    lstm.attribute.append(helper.make_attribute("output_sequence", 1))
    network = network_of(import_onnx(old([lstm], 6, constants, x=floats(3, 2, 5)), "test"))
    got = evaluate(network, {"x": floats(3, 2, 5)})["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
