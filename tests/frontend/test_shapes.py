"""Sizes that a model leaves open are fixed when it is compiled."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from codl.errors import CodlError, UnknownNameError, UnsupportedError
from codl.frontend.graph.onnx_import import import_onnx
from codl.jobs.options import read_shapes


def model(**inputs: Any) -> onnx.ModelProto:
    """The sum of all inputs; sizes that are words are open."""
    node = helper.make_node("Sum", list(inputs), ["y"], name="sum")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, next(iter(inputs.values())))
    graph = helper.make_graph([node], "test", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_batch_is_one_where_nobody_says_otherwise() -> None:
    graph = import_onnx(model(x=["batch", 3, 4]), "test")
    assert graph.shapes["x"] == graph.shapes["y"] == (1, 3, 4)
    graph = import_onnx(model(x=["batch", 3, 4]), "test", {"x": (5, 3, 4)})
    assert graph.shapes["y"] == (5, 3, 4)


def test_sizes_of_one_name_are_the_same_everywhere() -> None:
    proto = model(x=["n", 3, "h", "w"], z=["n", 1, "h", "w"])
    graph = import_onnx(proto, "test", {"x": (2, 3, 7, 8)})
    assert graph.shapes["z"] == (2, 1, 7, 8)
    with pytest.raises(CodlError, match="w is 8, got 2x1x7x9"):
        import_onnx(proto, "test", {"x": (2, 3, 7, 8), "z": (2, 1, 7, 9)})


def test_what_is_still_open_is_named_with_the_option() -> None:
    with pytest.raises(UnsupportedError, match=r"1x3xheightx\?: height, axis 3 must be fixed"):
        import_onnx(model(x=["batch", 3, "height", None]), "test")
    with pytest.raises(UnsupportedError, match="--shape x=1x3x224x224"):
        import_onnx(model(x=["batch", 3, "height", None]), "test")


def test_sizes_that_contradict_the_model() -> None:
    proto = model(x=["batch", 3, 4])
    with pytest.raises(CodlError, match=r"has 3 axes \(batchx3x4\), got 1x3"):
        import_onnx(proto, "test", {"x": (1, 3)})
    with pytest.raises(CodlError, match="3, got 1x2x4"):
        import_onnx(proto, "test", {"x": (1, 2, 4)})
    with pytest.raises(UnknownNameError, match="image"):
        import_onnx(proto, "test", {"image": (1, 3, 4)})


def test_the_option() -> None:
    assert read_shapes(["x=1x3x224x224", "a/b=c=7"]) == {"x": (1, 3, 224, 224), "a/b=c": (7,)}
    for wrong in ("1x3", "x=", "x=1x0", "x=axb"):
        with pytest.raises(CodlError, match="must be like input=1x3x224x224"):
            read_shapes([wrong])
