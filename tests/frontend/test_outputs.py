"""What a model hands out, whatever else its nodes and tensors are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.onnx_models import floats, model, node
from support.references import check, imported

from codl.errors import UnsupportedError
from codl.frontend.convert import network_of
from codl.frontend.graph.onnx_import import import_onnx
from codl.ir import Network

W = floats(4, 3, 3, 3, seed=1)
#: Nodes whose output is their input under other sizes, or none.
RENAMES: dict[str, dict[str, Any]] = {
    "Identity": {},
    "Flatten": {"axis": 2},
    "Cast": {"to": TensorProto.FLOAT},
    "Reshape": {},
    "Squeeze": {},
    "Unsqueeze": {},
}
AXES = {"Reshape": np.int64([4, -1]), "Squeeze": np.int64([0]), "Unsqueeze": np.int64([0])}


@pytest.mark.parametrize("after", ["Relu", "Sigmoid", "Mul", "BatchNormalization", "Mish"])
@pytest.mark.parametrize("rename", RENAMES)
def test_an_output_under_another_name_beside_what_would_fuse(rename: str, after: str) -> None:
    behind = {"Mul": "s", "BatchNormalization": "b b b s"}.get(after, "")
    constants = {"w": W, "s": np.float32([[[2.0]]] * 4), "b": floats(4, seed=2)}
    if after == "BatchNormalization":
        constants["s"] = np.full(4, 3.0, np.float32)
    axes = f" {rename}" if rename in AXES else ""
    nodes = [
        node("Conv", "x w", "a"),
        node(rename, f"a{axes}", "o1", **RENAMES[rename]),
        node(after, f"a {behind}", "o2"),
    ]
    constants |= {rename: AXES[rename]} if axes else {}
    proto = model(nodes, {"x": [1, 3, 6, 5]}, ["o1", "o2"], constants, opset=18)
    check(proto, {"x": floats(1, 3, 6, 5)})


def test_a_scaled_tensor_that_is_an_output_and_is_multiplied() -> None:
    nodes = [node("Sin", "x", "s"), node("Mul", "s c", "o1"), node("MatMul", "o1 w", "o2")]
    constants = {"c": np.float32(2.5), "w": floats(6, 4)}
    check(model(nodes, {"x": [5, 6]}, ["o1", "o2"], constants), {"x": floats(5, 6)})


@pytest.mark.parametrize("rename", ["Identity", "Cast", "Dropout"])
def test_an_output_that_stands_for_what_is_folded_away(rename: str) -> None:
    attributes = RENAMES.get(rename, {})
    nodes = [
        node("MatMul", "x w", "m"),
        node("Mul", "m c", "s"),
        node(rename, "s", "o1", **attributes),
        node(rename, "o1", "o2", **attributes),
        node("Sin", "o2", "o3"),
    ]
    constants = {"c": np.float32(2.5), "w": floats(6, 4)}
    check(model(nodes, {"x": [5, 6]}, ["o1", "o2", "o3"], constants), {"x": floats(5, 6)})


def test_a_transpose_behind_which_one_reshape_is_an_output_and_one_is_read() -> None:
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("Reshape", "t flat", "o1"),
        node("Reshape", "t image", "r"),
        node("Conv", "r w", "o2"),
    ]
    sizes = {"flat": np.int64([-1]), "image": np.int64([1, 3, 4, 5])}
    proto = model(nodes, {"x": [1, 20, 3]}, ["o1", "o2"], {**sizes, "w": W[..., :2, :2].copy()})
    check(proto, {"x": floats(1, 20, 3)})


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (4,), (4, 4), (1,), ()])
def test_what_a_product_adds_keeps_its_shape_where_it_is_scaled(shape: tuple[int, ...]) -> None:
    constants = {"w": floats(5, 4, seed=1), "c": floats(*shape, seed=2), "s": floats(4, seed=3)}
    nodes = [node("Gemm", "x w c", "g"), node("Mul", "g s", "y")]
    check(model(nodes, {"x": [4, 5]}, ["y"], constants), {"x": floats(4, 5)})


@pytest.mark.parametrize("kind", ["Reshape", "Identity", "Cast", "constant"])
def test_models_with_nothing_to_compute(kind: str) -> None:
    nodes = {
        "Reshape": [node("Reshape", "x shape", "y")],
        "Identity": [node("Identity", "x", "y"), node("Identity", "y", "z")],
        "Cast": [node("Cast", "x", "y", to=TensorProto.FLOAT)],
        "constant": [node("Add", "c c", "y"), node("Identity", "x", "z")],
    }[kind]
    constants = {"shape": np.int64([3, -1]), "c": floats(2, 3)}
    outputs = [name for made in nodes for name in made.output]
    network = check(model(nodes, {"x": [2, 3]}, outputs, constants), {"x": floats(2, 3)})
    assert network.layers


def test_integers_that_a_node_makes_floats_of_are_constants() -> None:
    numbers = np.int32([1 << 20, -7, 3])
    nodes = [node("DequantizeLinear", "q s", "b"), node("Add", "x b", "y")]
    proto = model(nodes, {"x": [2, 3]}, ["y"], {"q": numbers, "s": np.float32(0.5)})
    network = check(proto, {"x": floats(2, 3)}, encloses=True)
    assert [layer.op.kind for layer in network.layers] == ["eltwise"]


def _sorted_and_not(nodes: list[onnx.NodeProto]) -> list[Network]:
    protos = [model(own, {"x": [2, 3]}, ["y"], {"k": np.int64(1)}) for own in (nodes, nodes[::-1])]
    return [imported(proto) for proto in protos]


def test_nodes_may_stand_in_any_order() -> None:
    """Some of them codl has no operator for."""
    nodes = [
        node("Relu", "x", "a"),
        node("CumSum", "a k", "b"),
        node("Add", "a b", "c"),
        node("Mul", "c b", "y"),
    ]
    first, second = _sorted_and_not(nodes)
    assert [layer.output for layer in second.layers] == [layer.output for layer in first.layers]
    assert second.digest == first.digest


def test_nodes_in_a_circle_are_refused() -> None:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")]
    with pytest.raises(UnsupportedError):
        import_onnx(model(nodes, {"x": [2, 3]}, ["y"]), "test")


def test_weights_that_are_declared_behind_a_pooling_that_rounds_up() -> None:
    """PyTorch's newer exporter declares the sizes of all tensors, weights among them."""
    nodes = [
        node("MaxPool", "x", "a", ceil_mode=1, kernel_shape=[3, 3], strides=[2, 2]),
        node("Flatten", "a", "f"),
        node("Gemm", "f w", "y", transB=1),
    ]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, ["y"], {"w": floats(5, 64)})
    declared = helper.make_tensor_value_info("w", TensorProto.FLOAT, [5, 64])
    proto.graph.value_info.append(declared)
    check(proto, {"x": floats(1, 4, 8, 8)})


def test_sizes_that_are_inferred_wrongly_are_refused() -> None:
    """ONNX Runtime before 1.32 infers the past's sizes for caches that grow."""
    proto = model([node("MatMul", "x w", "y")], {"x": [3, 4]}, ["y"], {"w": floats(4, 5)})
    graph = import_onnx(proto, "sizes")
    wrong = replace(graph, shapes={**graph.shapes, "y": (2, 5)})
    with pytest.raises(
        UnsupportedError, match="makes 15 values, and its output 'y' is said to be 2x5"
    ):
        network_of(wrong)


def test_an_input_that_is_an_output_needs_no_declared_shape() -> None:
    nodes = [node("Conv", "x w", "y"), node("Relu", "y", "z")]
    proto = model(nodes, {"x": [1, 3, 6, 5]}, ["x", "z"], {"w": W})
    check(proto, {"x": floats(1, 3, 6, 5)})


def test_a_constant_that_is_an_output_and_is_read_under_other_sizes() -> None:
    nodes = [node("LayerNormalization", "x c", "y")]
    proto = model(nodes, {"x": [3, 4, 5]}, ["y", "c"], {"c": floats(5, seed=1)})
    check(proto, {"x": floats(3, 4, 5)})
