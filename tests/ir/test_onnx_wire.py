"""Tensors of ONNX models that lie in files, found without `onnx`; compared with `onnx` itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import floats, model, node

from codl.ir.onnx_wire import MESSAGES, external_tensors


def in_a_file(name: str) -> TensorProto:
    """A tensor whose elements lie in a file."""
    tensor = numpy_helper.from_array(np.ones(3, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return tensor


def sparse(name: str) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(1, np.float32), "values")
    return helper.make_sparse_tensor(values, in_a_file(name), [3])


def graph_with(tensor: TensorProto) -> onnx.GraphProto:
    return helper.make_graph([], "inner", [], [], [tensor])


def test_the_fields_are_those_of_onnx() -> None:
    """All messages from which a tensor can be reached, and no others."""
    known: dict[str, dict[int, str]] = {}

    def leads_to_tensors(message: Any, above: frozenset[str]) -> bool:
        inner = [f for f in message.fields if f.message_type and f.message_type.name not in above]
        return message.name == "TensorProto" or any(
            leads_to_tensors(field.message_type, above | {message.name}) for field in inner
        )

    left = [onnx.ModelProto.DESCRIPTOR]
    while left:
        message = left.pop()
        own = {
            field.number: field.message_type
            for field in message.fields
            if field.message_type and leads_to_tensors(field.message_type, frozenset())
        }
        known[message.name] = {number: inner.name for number, inner in own.items()}
        left += [inner for inner in own.values() if inner.name not in known]
    assert known == MESSAGES


@pytest.mark.parametrize(
    "attributes",
    [
        {"value": in_a_file("hidden")},
        {"value": [in_a_file("hidden")]},
        {"value": sparse("hidden")},
        {"value": graph_with(in_a_file("hidden"))},
        {"value": [graph_with(in_a_file("hidden"))]},
    ],
)
def test_tensors_in_files_are_found_in_attributes(attributes: dict[str, Any]) -> None:
    proto = model([node("Some", "x", "y", **attributes)], {"x": (3,)}, ["y"])
    assert external_tensors(proto.SerializeToString()) == ["hidden"]


def test_tensors_in_files_are_found_among_weights_and_in_functions() -> None:
    proto = model([node("Add", "x w", "y")], {"x": (3,)}, ["y"], {"w": floats(3)})
    assert external_tensors(proto.SerializeToString()) == []
    proto.graph.initializer.append(in_a_file("a"))
    proto.graph.sparse_initializer.append(sparse("b"))
    inner = node("Constant", "", "z", value=in_a_file("c"))
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("d", "f", [], ["z"], [inner], opsets))
    assert sorted(external_tensors(proto.SerializeToString())) == ["a", "b", "c"]


def test_one_weight_of_each_given_name_may_lie_elsewhere() -> None:
    """And nothing else that is called so."""
    hidden = node("Some", "x", "y", value=in_a_file("a"))
    proto = model([hidden], {"x": (3,)}, ["y"])
    proto.graph.initializer.append(in_a_file("a"))
    content = proto.SerializeToString()
    assert external_tensors(content, but=["a"]) == ["a"]
    assert external_tensors(content) == ["a", "a"]
    twice = model([node("Add", "x a", "y")], {"x": (3,)}, ["y"])
    twice.graph.initializer.extend([in_a_file("a"), in_a_file("b"), in_a_file("a")])
    assert external_tensors(twice.SerializeToString(), but=["a", "c"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x3a\x05abc", "ends behind"),
        (b"\x00\x00", "the number 0"),
        (b"\x3b\x3c", "wire type 3"),
        (b"\x80", "ends within"),
        (b"\xba\x80\x80\x80\x10\x00", "the number 5368709"),
        (b"\x08" + b"\xff" * 10, "more than 64 bits"),
    ],
)
def test_what_is_no_model_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        external_tensors(content)
