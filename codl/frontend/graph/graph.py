"""The DAG of a model: nodes and tensors by name, with every shape known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.onnx_node import Node

#: The input of a decoder that says how many tokens came before.
PAST_LENGTH = "past_length"


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; `constants` are the fixed tensors.

    `shapes` knows every tensor but those whose sizes depend on data or are 0; `unknown` says of
    those which it is. `types` are ONNX's codes of elements' types, as far as they are known.
    `aliases` maps tensors that passes removed, such as a flattened output, to what holds them.
    `states` are caches with their sizes, which attention nodes write in place: then the input
    `PAST_LENGTH` says how many tokens they hold.
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
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def makers(self) -> Mapping[str, Node]:
        """By their first outputs, the nodes that make them."""
        return {node.outputs[0]: node for node in self.nodes}

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
        return list(self._consumers.get(tensor, ()))

    @cached_property
    def _consumers(self) -> Mapping[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return found

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the caller wants a tensor; an output left out is called ""."""
        return bool(tensor) and (tensor in self.outputs or bool(self.consumers(tensor)))

    def constant(self, tensor: str) -> NDArray[np.float32]:
        return np.asarray(self.constants[tensor], np.float32)
