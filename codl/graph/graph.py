"""The DAG of a model: nodes and tensors by name, with every shape known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Node:
    """One node; `attributes` are ONNX's, as Python values.

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


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; `constants` are the fixed tensors.

    `shapes` knows every tensor but those whose sizes depend on data or are 0; `unknown` says of
    those which it is. `types` are ONNX's codes of elements' types, as far as they are known.
    `aliases` maps tensors that passes removed, such as a flattened output, to what holds them.
    `opset` is the version of ONNX's own operators, `domains` has those of others.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, NDArray[Any]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    opset: int = 17
    types: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """How many images a batch has: the first size of inputs that are pictures, with four axes.

        1 where there is no such input, or they differ.
        """
        sizes = {self.shapes[name][0] for name in self.inputs if len(self.shapes[name]) == 4}
        return sizes.pop() if len(sizes) == 1 else 1

    def rows_of_images(self, sizes: tuple[int, ...], k: int) -> int:
        """How many images a tensor of these sizes has, each a single row of `k`; 0 if it has none.

        Whatever the axes of a single row are called.
        """
        if prod(sizes) == k:
            return 1
        batch = self.images
        return batch if sizes[0] == batch and prod(sizes) == batch * k else 0

    def consumers(self, tensor: str) -> list[Node]:
        return [node for node in self.nodes if tensor in node.inputs]

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the caller wants a tensor; an output left out is called ""."""
        return bool(tensor) and (tensor in self.outputs or bool(self.consumers(tensor)))

    def constant(self, tensor: str) -> NDArray[np.float32]:
        return np.asarray(self.constants[tensor], np.float32)


def _captured(node: onnx.NodeProto) -> list[str]:
    """What the graphs in a node's attributes read and do not make."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
        for graph in graphs:
            known = {item.name for item in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                read = (*inner.input, *_captured(inner))
                found |= dict.fromkeys(name for name in read if name and name not in known)
                known.update(inner.output)
            results = (item.name for item in graph.output)
            found |= dict.fromkeys(name for name in results if name not in known)
    return list(found)
