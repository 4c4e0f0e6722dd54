"""Nodes that codl has no operator for: what they become, what is folded, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import floats, model, node
from support.references import imported

from codl.errors import CodlError, InvalidFileError, UnsupportedError
from codl.frontend.convert import load_network
from codl.ir import parse, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.kernels import registry
from codl.validate.references import ModelAndSource, outputs_by_ops


def test_an_output_whose_size_depends_on_data_is_refused_with_its_node() -> None:
    nodes = [node("Abs", "x", "a"), node("NonZero", "a", "y")]
    proto = model(nodes, {"x": [3, 7]}, ["y"], types={"y": "int64"})
    with pytest.raises(UnsupportedError, match=r"'n_y' \(NonZero\).*'y'"):
        imported(proto)


def test_what_is_no_number_is_refused() -> None:
    nodes = [node("Abs", "x", "a"), node("Cast", "a", "y", to=TensorProto.STRING)]
    proto = model(nodes, {"x": [3]}, ["y"], types={"y": "object"})
    with pytest.raises(UnsupportedError, match="'y' is of type string"):
        imported(proto)


def test_a_node_with_an_operand_that_does_not_fit_is_onnx_runtimes() -> None:
    """ONNX looks at few operands: a convolution's weights may be a vector there."""
    nodes = [node("Conv", "x w", "y", kernel_shape=[3, 3])]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, ["y"], {"w": floats(8)})
    (layer,) = imported(proto).layers
    assert (layer.op.kind, layer.inputs) == (OnnxModel.kind, ("x",))


def test_a_tensor_that_is_not_as_large_as_it_says_is_named() -> None:
    proto = model([node("Add", "x w", "y")], {"x": [3, 100, 100]}, ["y"], {"w": floats(100, 100)})
    proto.graph.initializer[0].dims[0] = 1 << 40
    with pytest.raises(UnsupportedError, match=r"'w' \(1099511627776 x 100\) cannot be read"):
        imported(proto)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], {"x": [3]}, ["y"])
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"n_y", b"n_\xd2"))
    with pytest.raises(InvalidFileError, match="not an ONNX model: 'utf-8' codec"):
        load_network(str(path))


def test_such_an_op_is_told_apart_by_its_digest() -> None:
    proto = model([node("CumSum", "x axis", "y")], {"x": [3, 7]}, ["y"], {"axis": np.int64(1)})
    (layer,) = imported(proto).layers
    assert isinstance(layer.op, OnnxModel)
    read = parse(to_text(layer.op))
    assert read == layer.op
    with pytest.raises(UnsupportedError, match="not here to be run"):
        registry.find(read, "cpu_ort").plan(read, None)  # type: ignore[attr-defined]
    x = floats(3, 7)
    expected = layer.op.reference([x.reshape(layer.op.input).astype(np.float64)], {})
    np.testing.assert_allclose(expected.reshape(3, 7), np.cumsum(x, 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "weight"), [("Conv", (4, 3, 3, 3)), ("ConvTranspose", (3, 4, 3, 3))]
)
def test_weights_for_other_channels_are_refused_with_their_node(
    kind: str, weight: tuple[int, ...]
) -> None:
    proto = model(
        [node(kind, "x w", "y")], {"x": [1, 5, 8, 8]}, ["y"], {"w": np.ones(weight, np.float32)}
    )
    with pytest.raises(CodlError, match=r"'n_y' .*for 3 input channels, its input has 5"):
        imported(proto)


FP8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz]


def kinds(proto: onnx.ModelProto, folder: Path, x: NDArray[Any]) -> list[str]:
    """The ops of a model, whose references give what ONNX Runtime gives."""
    onnx.save(proto, folder / "model.onnx")
    loaded = ModelAndSource.load(str(folder / "model.onnx"))
    sample = loaded.shaped({"x": x})
    expected, got = loaded.outputs(sample), outputs_by_ops(loaded.network, sample)
    assert expected is not None
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
    return [layer.op.kind for layer in loaded.network.layers]


@pytest.mark.parametrize("kind", ["MatMul", "Conv", "Gemm"])
@pytest.mark.parametrize("fp8", FP8)
def test_weights_of_8_bit_floats(fp8: Any, kind: str, tmp_path: Path) -> None:
    x = floats(1, 3, 8, 8) if kind == "Conv" else floats(4, 16)
    weight = floats(8, 3, 3, 3) if kind == "Conv" else floats(16, 8)
    nodes = [node("DequantizeLinear", "w s", "d"), node(kind, "x d", "y")]
    proto = model(nodes, {"x": list(x.shape)}, ["y"], {"s": np.float32(0.5)}, opset=19)
    proto.graph.initializer.append(numpy_helper.from_array(weight.astype(fp8), "w"))
    assert kinds(proto, tmp_path, x) == ["conv2d" if kind == "Conv" else "matmul"]


def test_weights_that_are_rounded_in_the_model(tmp_path: Path) -> None:
    """Several nodes, between which there is what NumPy has no type for."""
    nodes = [
        node("QuantizeLinear", "w s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Transpose", "d", "t", perm=[1, 0]),
        node("MatMul", "x t", "y"),
    ]
    constants = {"s": np.float32(0.1), "w": floats(8, 16)}
    proto = model(nodes, {"x": [4, 16]}, ["y"], constants, opset=19)
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((), FP8[0]), "z"))
    assert kinds(proto, tmp_path, floats(4, 16)) == ["matmul"]


def test_a_constant_that_is_rounded_and_handed_out(tmp_path: Path) -> None:
    nodes = [
        node("DequantizeLinear", "p s z", "w"),
        node("QuantizeLinear", "w s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("MatMul", "x d", "y"),
    ]
    constants = {"s": np.float32(0.01), "z": np.int8(0)}
    constants["p"] = np.arange(24, dtype=np.int8).reshape(4, 6)
    proto = model(nodes, {"x": [3, 4]}, ["y", "q"], constants, opset=13)
    proto.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT8
    assert kinds(proto, tmp_path, floats(3, 4)) == ["matmul"]


@pytest.mark.parametrize("is_node", [False, True])
@pytest.mark.parametrize("values", [[0, 1, 1, 0], ["a", "b", "b", "c"]])
def test_labels_of_constants(values: list[Any], is_node: bool, tmp_path: Path) -> None:
    is_text = isinstance(values[0], str)
    keys = np.array(["a", "b"], object) if is_text else np.array([0, 1])
    tables = {"keys": keys, "values": np.float32([1.5, 2.5]), "default": np.float32([9.0])}
    label = helper.make_node("LabelEncoder", ["n"], ["z"], domain="ai.onnx.ml")
    label.attribute.extend(
        helper.make_attribute(f"{name}_tensor", numpy_helper.from_array(value, name))
        for name, value in tables.items()
    )
    given = {("value_strings" if is_text else "value_ints"): values}
    constant = [helper.make_node("Constant", [], ["n"], **given)] if is_node else []
    constants = {} if is_node else {"n": np.array(values, object if is_text else np.int64)}
    nodes = [*constant, label, node("Add", "z x", "y")]
    proto = model(nodes, {"x": [1, 4]}, ["y"], constants)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 4))
    assert kinds(proto, tmp_path, floats(1, 4)) == ["eltwise"]


def test_sizes_that_depend_on_constants_are_known(tmp_path: Path) -> None:
    nodes = [
        node("NonZero", "c", "n"),
        node("Cast", "n", "f", to=onnx.TensorProto.FLOAT),
        node("Add", "x f", "y"),
    ]
    proto = model(nodes, {"x": [1, 2]}, ["y"], {"c": np.float32([0, 1, 0, 2])})
    assert kinds(proto, tmp_path, floats(1, 2)) == ["eltwise"]


def test_numbers_that_are_drawn_stay_nodes(tmp_path: Path) -> None:
    """Also inside of a branch that a constant chooses."""
    out = helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [1, 4])
    draw = helper.make_node("RandomUniform", [], ["r"], shape=[1, 4], low=1e-7, high=2e-7)
    branch = helper.make_graph([draw], "branch", [], [out])
    choice = helper.make_node("If", ["c"], ["n"], then_branch=branch, else_branch=branch)
    proto = model([choice, node("Add", "x n", "y")], {"x": [1, 4]}, ["y"], {"c": np.array(True)})
    assert kinds(proto, tmp_path, floats(1, 4)) == ["onnx", "eltwise"]
