"""Models in forms that few write today, against ONNX Runtime on the files as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import floats, model, node
from support.references import check, imported

from codl.errors import UnsupportedError
from codl.frontend.convert import load_network
from codl.ir.ops.onnx_model import OnnxModel


def as_inputs(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """As the third version of the format has it: initializers are inputs of the graph, too."""
    for item in proto.graph.initializer:
        info = helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        proto.graph.input.append(info)
    proto.ir_version, proto.opset_import[0].version = 3, opset
    return proto


def classifier() -> onnx.ModelProto:
    """Weights below and above the size from which on they stand apart."""
    nodes = [
        node("Conv", "x w", "c", kernel_shape=[3, 3]),
        node("BatchNormalization", "c scale bias mean var", "b"),
        node("Relu", "b", "r"),
        node("Flatten", "r", "f"),
        node("Gemm", "f m g", "y", transB=1),
    ]
    constants = {"w": floats(8, 3, 3, 3), "m": floats(16, 288), "g": floats(16)}
    constants |= {name: floats(8, seed=1) for name in ("scale", "bias", "mean")}
    constants["var"] = np.ones(8, np.float32)
    return model(nodes, {"x": [1, 3, 8, 8]}, ["y"], constants)


@pytest.mark.parametrize("opset", [7, 8, 9, 11])
def test_initializers_that_are_inputs_are_constants(opset: int) -> None:
    network = check(as_inputs(classifier(), opset), {"x": floats(1, 3, 8, 8)})
    assert [layer.op.kind for layer in network.layers] == ["conv2d", "fc"]
    assert list(network.inputs) == ["x"]


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_a_node_without_an_operator_in_an_old_opset(opset: int) -> None:
    nodes = [
        node("Conv", "x w", "c"),
        node("LpPool", "c", "n", kernel_shape=[3, 3]),
        node("Relu", "n", "y"),
    ]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, ["y"], {"w": floats(8, 3, 3, 3)})
    network = check(as_inputs(proto, opset), {"x": floats(1, 3, 8, 8)}, encloses=True)
    assert [layer.op.kind for layer in network.layers] == ["conv2d", OnnxModel.kind, "eltwise"]


def branch(name: str, size: int, *, sparse: bool = False) -> onnx.GraphProto:
    """A product by a weight of its own."""
    weight = floats(size, size, seed=len(name))
    out = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, [4, size])
    product = helper.make_node("MatMul", ["x", f"{name}.w"], [f"{name}.y"])
    initializer = [] if sparse else [numpy_helper.from_array(weight, f"{name}.w")]
    graph = helper.make_graph([product], name, [], [out], initializer)
    if sparse:
        graph.sparse_initializer.append(sparse_of(weight, f"{name}.w"))
    return graph


def sparse_of(value: np.ndarray[Any, Any], name: str = "w", *, rows: bool = False) -> Any:
    """`rows`: a row of coordinates for each value."""
    flat = np.flatnonzero(value)
    indices = np.stack(np.unravel_index(flat, value.shape), 1) if rows else flat
    return helper.make_sparse_tensor(
        numpy_helper.from_array(value.ravel()[flat], name),
        numpy_helper.from_array(indices.astype(np.int64), f"{name}.indices"),
        value.shape,
    )


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("size", [8, 48])
def test_weights_inside_of_branches(size: int, sparse: bool, chosen: bool) -> None:
    choice = helper.make_node(
        "If",
        ["c"],
        ["q"],
        then_branch=branch("then", size, sparse=sparse),
        else_branch=branch("otherwise", size, sparse=sparse),
    )
    proto = model([choice, node("Sigmoid", "q", "y")], {"x": [4, size], "c": []}, ["y"])
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    check(proto, {"x": floats(4, size), "c": np.array(chosen)}, encloses=True)


def test_weights_inside_of_a_scan_in_a_branch() -> None:
    info = helper.make_tensor_value_info
    one, rows = [1, 40], [4, 1, 40]
    body = helper.make_graph(
        [node("MatMul", "x1 w", "p"), node("Add", "s p", "t"), node("Identity", "t", "o")],
        "body",
        [info(name, TensorProto.FLOAT, one) for name in ("s", "x1")],
        [info(name, TensorProto.FLOAT, one) for name in ("t", "o")],
        [numpy_helper.from_array(floats(40, 40), "w")],
    )
    scan = node("Scan", "s0 x", "last z", body=body, num_scan_inputs=1)
    then = helper.make_graph([scan], "then", [], [info("z", TensorProto.FLOAT, rows)])
    other = helper.make_graph(
        [node("Neg", "x", "m")], "other", [], [info("m", TensorProto.FLOAT, rows)]
    )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    proto = model(nodes, {"x": rows, "c": []}, ["y"], {"s0": floats(1, 40, seed=2)})
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    proto.graph.output[0].CopyFrom(info("y", TensorProto.FLOAT, rows))
    check(proto, {"x": floats(*rows), "c": np.array(True)}, encloses=True)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("place", ["initializer", "Constant"])
@pytest.mark.parametrize("size", [12, 72])
def test_sparse_constants_are_dense(size: int, place: str, rows: bool) -> None:
    value = floats(size, size) * (floats(size, size, seed=1) > 1)
    sparse = sparse_of(value, rows=rows)
    nodes = [node("MatMul", "x w", "y")]
    if place == "Constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    proto = model(nodes, {"x": [3, size]}, ["y"])
    if place == "initializer":
        proto.graph.sparse_initializer.append(sparse)
    network = check(proto, {"x": floats(3, size)})
    assert [layer.op.kind for layer in network.layers] == ["matmul"]


@pytest.mark.parametrize("index", [9, -1, 1 << 40])
def test_a_sparse_constant_with_an_index_outside_is_refused(index: int) -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.float32([1.0]), "w"),
        numpy_helper.from_array(np.int64([index]), "w.indices"),
        [3, 3],
    )
    proto = model([node("MatMul", "x w", "y")], {"x": [3, 3]}, ["y"])
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(UnsupportedError, match=r"sparse tensor 'w' \(3 x 3\) cannot be read"):
        imported(proto)


def test_sizes_below_zero_are_open(tmp_path: Path) -> None:
    proto = model(
        [node("Conv", "x w", "y")], {"x": [-1, 3, -1, 9]}, ["y"], {"w": floats(4, 3, 3, 3)}
    )
    proto.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1, 4, -1, 7])
    )
    with pytest.raises(UnsupportedError, match=r"'x' .* 1x3x\?x9: axis 2 must be fixed"):
        imported(proto)
    path = tmp_path / "open.onnx"
    onnx.save(proto, path)
    network = load_network(str(path), shapes={"x": (2, 3, 8, 9)})
    assert network.outputs["y"][1] == (2, 4, 6, 7)
