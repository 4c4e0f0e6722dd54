"""The DAG of a model: nodes and tensors by name, with every shape known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Node:
    """One node; `attributes` are ONNX's, as Python values."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; `shapes` knows every tensor, `constants` the fixed ones.

    `aliases` maps tensors that passes removed, such as a flattened output, to what holds them.
    `opset` is the version of ONNX's own operators.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, NDArray[Any]]
    aliases: Mapping[str, str] = field(default_factory=dict)
    opset: int = 17

    def consumers(self, tensor: str) -> list[Node]:
        return [node for node in self.nodes if tensor in node.inputs]

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the caller wants a tensor; an output left out is called ""."""
        return bool(tensor) and (tensor in self.outputs or bool(self.consumers(tensor)))

    def constant(self, tensor: str) -> NDArray[np.float32]:
        return np.asarray(self.constants[tensor], np.float32)
