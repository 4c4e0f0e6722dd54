"""One ONNX node as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Node:
    """One node; `attributes` are ONNX's, as Python values, and `type` is as `type_of` has it.

    `proto` is the node as the model has it, where it is from a model.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    proto: onnx.NodeProto | None = field(default=None, compare=False, repr=False)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it needs, those that its attributes' graphs take from outside too."""
        captured = () if self.proto is None else _captured(self.proto)
        return (*(name for name in self.inputs if name), *captured)


def type_of(node: onnx.NodeProto) -> str:
    """What a node computes: ONNX's own by its name, `com.microsoft.Gelu` for one of a domain."""
    is_standard = node.domain in ("", "ai.onnx")
    return str(node.op_type) if is_standard else f"{node.domain}.{node.op_type}"


def _captured(node: onnx.NodeProto) -> list[str]:
    """What the graphs in a node's attributes read and do not make."""
    captured: dict[str, None] = {}
    for attribute in node.attribute:
        graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
        for graph in graphs:
            made = {item.name for item in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                read = (*inner.input, *_captured(inner))
                captured |= dict.fromkeys(name for name in read if name and name not in made)
                made.update(inner.output)
            results = (item.name for item in graph.output)
            captured |= dict.fromkeys(name for name in results if name not in made)
    return list(captured)
