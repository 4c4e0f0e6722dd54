"""Tensors that an ONNX model keeps in files, found in its protobuf wire form.

Without `onnx`, which takes long to import. Whatever is no such form is refused, so that no other
reader sees a model in which this one found nothing. `stand_in` makes such a tensor, of which the
elements lie in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

#: What is called the place of such elements, where they lie in no file.
FILE = "weights"


def stand_in(item: Any, name: str, kind: int, sizes: Sequence[int]) -> None:
    """Make an initializer, a `TensorProto`, one of ONNX's type `kind` whose data lies elsewhere."""
    from onnx import TensorProto, helper

    item.name, item.data_type, item.data_location = name, kind, TensorProto.EXTERNAL
    item.dims.extend(sizes)
    length = prod(sizes) * helper.tensor_dtype_to_np_dtype(kind).itemsize
    for key, value in {"location": FILE, "offset": 0, "length": length}.items():
        item.external_data.add(key=key, value=str(value))


Fields: TypeAlias = Mapping[int, str]
#: By message, the fields that lead to tensors, and to what.
MESSAGES: Mapping[str, Fields] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        10: "TensorProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
        6: "GraphProto",
        11: "GraphProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
#: Fields of a tensor: its name, and where its elements lie (0: in the model).
NAME, LOCATION = 8, 14
#: Bytes of values of a fixed size, by the wire's type of them.
FIXED = {1: 8, 5: 4}
VARINT, BYTES = 0, 2
#: How deep in a model the initializers of its graph lie, and no other tensors.
OF_GRAPH = 2
#: Numbers of fields are smaller.
MOST_FIELDS = 1 << 29


def external_tensors(model: bytes, *, but: Collection[str] = ()) -> list[str]:
    """Names of tensors whose elements lie in files; raises `ValueError` for what is no model.

    But for one initializer of the graph itself of each name in `but`: the caller has its elements.
    """
    external, left_out = [], {*but}
    left = [(0, "ModelProto", memoryview(model))]
    while left:
        depth, kind, content = left.pop()
        name, is_external = "", False
        for number, value in _fields(content):
            if isinstance(value, memoryview) and number in MESSAGES[kind]:
                inner = MESSAGES[kind][number]
                left.append((depth + 1, inner, value))
            elif kind == "TensorProto" and number == NAME and isinstance(value, memoryview):
                name = bytes(value).decode(errors="replace")
            elif kind == "TensorProto" and number == LOCATION:
                is_external |= value != 0
        if depth == OF_GRAPH and name in left_out:
            left_out.remove(name)
        elif is_external:
            external.append(name)
    return external


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The number and value of every field of a message."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if not 0 < number < MOST_FIELDS:
            raise ValueError(f"a field has the number {number}")
        if kind == VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(content, at)
        elif kind in FIXED:
            size = FIXED[kind]
        else:
            raise ValueError(f"the field {number} is of the wire type {kind}")
        if at + size > len(content):
            raise ValueError(f"the field {number} ends behind its message")
        yield number, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """An integer of up to 64 bits, seven to a byte, and where what follows begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise ValueError("the message ends within a number")
        byte, at = content[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has more than 64 bits")
