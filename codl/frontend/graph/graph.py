"""The DAG of a model: nodes and tensors by name, with every shape known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir.onnx_node import Node

#: The input of a decoder that says how many tokens came before.
PAST_LENGTH = "past_length"


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; `constants` are the fixed tensors.

    `shapes` knows every tensor but those whose sizes depend on data or are 0; `unknown` says of
    those which it is. `types` are ONNX's codes of elements' types, as far as they are known.
    `aliases` maps tensors that passes removed, such as a flattened output, to what holds them: who
    needs a tensor is for `is_handed_out`, `is_read` and `reader_of` to say.
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

    def rewritten(self, *rewrites: Rewrite) -> Graph:
        """The graph with other nodes in the place of some."""
        places = {rewrite.at.name: rewrite.nodes for rewrite in rewrites}
        constants = {name: value for each in rewrites for name, value in each.constants.items()}
        shapes = {name: value.shape for name, value in constants.items()}
        shapes |= {name: sizes for each in rewrites for name, sizes in each.shapes.items()}
        return replace(
            self,
            nodes=tuple(new for node in self.nodes for new in places.get(node.name, (node,))),
            constants={**self.constants, **constants},
            shapes={**self.shapes, **shapes},
        )

    @property
    def without_unread(self) -> Graph:
        """The graph without nodes whose outputs nobody reads; itself where there is none."""
        kept: list[Node] = []
        wanted = set(self.handed_out)
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.reads)
        return self if len(kept) == len(self.nodes) else replace(self, nodes=tuple(kept[::-1]))

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
        """The nodes that read a tensor; the caller may want it, too."""
        return list(self._consumers.get(tensor, ()))

    @cached_property
    def _consumers(self) -> Mapping[str, list[Node]]:
        consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                consumers.setdefault(name, []).append(node)
        return consumers

    @cached_property
    def handed_out(self) -> frozenset[str]:
        """The tensors that hold outputs, under whatever names the caller knows those."""
        return frozenset(self.aliases.get(name, name) for name in self.outputs)

    def is_handed_out(self, tensor: str) -> bool:
        """Whether the caller gets a tensor, so that it must be made as it is."""
        return tensor in self.handed_out

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the caller wants a tensor; an output left out is called ""."""
        return bool(tensor) and (self.is_handed_out(tensor) or bool(self.consumers(tensor)))

    def reader_of(self, tensor: str) -> Node | None:
        """The node that alone reads a tensor, which is handed out to nobody else."""
        readers = self.consumers(tensor)
        return readers[0] if len(readers) == 1 and not self.is_handed_out(tensor) else None

    def is_read_once(self, tensor: str, node: Node) -> bool:
        """Whether a node alone reads a tensor, and as one of its inputs."""
        return self.reader_of(tensor) is node and node.inputs.count(tensor) == 1

    def constant(self, tensor: str) -> NDArray[np.float32]:
        return np.asarray(self.constants[tensor], np.float32)


@dataclass(frozen=True, eq=False)
class Rewrite:
    """The nodes that come in the place of one, `at`, and the tensors that these add."""

    at: Node
    nodes: Sequence[Node] = ()
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def fuse(graph: Graph, find: Callable[[Graph, Node], Rewrite | None]) -> Graph:
    """Rewrite what `find` finds to end at some node; what only that read goes."""
    rewrites = {rewrite.at.name: rewrite for node in graph.nodes if (rewrite := find(graph, node))}
    return graph.rewritten(*rewrites.values()).without_unread


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in topological order, otherwise as they come: a file may have them in any."""
    left = list(nodes)
    missing = Counter(name for node in left for name in node.outputs if name)
    ordered: list[Node] = []
    while left:
        later = []
        for node in left:
            if any(missing[name] for name in node.reads):
                later.append(node)
                continue
            ordered.append(node)
            missing.subtract(name for name in node.outputs if name)
        if len(later) == len(left):
            names = ", ".join(repr(node.name) for node in left[:3])
            raise UnsupportedError(
                f"The nodes {names} read what they make themselves, in a circle."
            )
        left = later
    return ordered
