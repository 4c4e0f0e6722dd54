"""Nodes that codl has no operator for: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.onnx_models import floats, model, node

from codl.errors import CodlError, InvalidFileError, UnsupportedError
from codl.frontend.convert import load_network, network_of
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


def test_a_node_with_an_operand_that_does_not_fit_is_onnx_runtimes() -> None:
    """ONNX looks at few operands: a convolution's weights may be a vector there."""
    nodes = [node("Conv", "x w", "y", kernel_shape=[3, 3])]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, ["y"], {"w": floats(8)})
    (layer,) = network_of(import_onnx(proto, "test")).layers
    assert (layer.op.kind, layer.inputs) == (OnnxModel.kind, ("x",))


def test_a_tensor_that_is_not_as_large_as_it_says_is_named() -> None:
    proto = model([node("Add", "x w", "y")], {"x": [3, 100, 100]}, ["y"], {"w": floats(100, 100)})
    proto.graph.initializer[0].dims[0] = 1 << 40
    with pytest.raises(UnsupportedError, match=r"'w' \(1099511627776 x 100\) cannot be read"):
        network_of(import_onnx(proto, "test"))


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], {"x": [3]}, ["y"])
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"n_y", b"n_\xd2"))
    with pytest.raises(InvalidFileError, match="not an ONNX model: 'utf-8' codec"):
        load_network(str(path))


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
        network_of(import_onnx(proto, "test"))
