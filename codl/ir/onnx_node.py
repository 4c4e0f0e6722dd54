"""ONNX nodes as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

#: Location that `stand_in` writes; it names no file.
FILE = "weights"


@dataclass(frozen=True)
class Node:
    """A node: `type` as of `type_of`, `attributes` in Python; `proto` is the model's own node."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    proto: onnx.NodeProto | None = field(default=None, compare=False, repr=False)

    @property
    def reads(self) -> tuple[str, ...]:
        """All tensors that the node reads, also in the graphs of its attributes."""
        captured = () if self.proto is None else _captured(self.proto)
        return (*(name for name in self.inputs if name), *captured)


def type_of(node: onnx.NodeProto) -> str:
    """The operator's name; outside ONNX's own domain with the domain: `com.microsoft.Gelu`."""
    is_standard = node.domain in ("", "ai.onnx")
    return str(node.op_type) if is_standard else f"{node.domain}.{node.op_type}"


def _captured(node: onnx.NodeProto) -> list[str]:
    """Outer tensors that graphs in a node's attributes read."""
    captured: dict[str, None] = {}
    for graph in graphs_of(node):
        made = {item.name for item in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            read = (*inner.input, *_captured(inner))
            captured |= dict.fromkeys(name for name in read if name and name not in made)
            made.update(inner.output)
        results = (item.name for item in graph.output)
        captured |= dict.fromkeys(name for name in results if name not in made)
    return list(captured)


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from attribute.graphs
        if attribute.HasField("g"):
            yield attribute.g


def stand_in(item: Any, name: str, kind: int, sizes: Sequence[int]) -> None:
    """Make the `TensorProto` `item` an external initializer of ONNX type `kind`."""
    from onnx import TensorProto, helper

    item.name, item.data_type, item.data_location = name, kind, TensorProto.EXTERNAL
    item.dims.extend(sizes)
    length = prod(sizes) * helper.tensor_dtype_to_np_dtype(kind).itemsize
    for key, value in {"location": FILE, "offset": 0, "length": length}.items():
        item.external_data.add(key=key, value=str(value))
