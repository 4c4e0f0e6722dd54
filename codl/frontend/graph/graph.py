"""The graph of a model: nodes and tensors by name, views, rewrites, and an editable draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir.onnx_node import Node


class Names:
    """New names for tensors and nodes that passes add; each is unique in the model."""

    def __init__(self, tensors: Iterable[str] = (), nodes: Iterable[str] = ()) -> None:
        self._taken = {"tensor": set(tensors), "node": set(nodes)}
        #: New names by kind, owner and word.
        self.given: dict[tuple[str, str, str], str] = {}

    def tensor(self, owner: str, word: str) -> str:
        """`owner.word`, with a number if taken; equal arguments give equal names."""
        return self._name("tensor", owner, word)

    def node(self, owner: str, word: str) -> str:
        """As `tensor`, for names of nodes."""
        return self._name("node", owner, word)

    def _name(self, kind: str, owner: str, word: str) -> str:
        key, taken = (kind, owner, word), self._taken[kind]
        if key not in self.given:
            name, count = f"{owner}.{word}", 1
            while name in taken:
                name, count = f"{owner}.{word}_{count}", count + 1
            taken.add(name)
            self.given[key] = name
        return self.given[key]


class Links:
    """Makers and readers of each tensor."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        #: Nodes by first output, and by all outputs.
        self.first: dict[str, Node] = {}
        self.makers: dict[str, Node] = {}
        self.readers: dict[str, dict[str, Node]] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        self.first[node.outputs[0]] = node
        self.makers |= dict.fromkeys(filter(None, node.outputs), node)
        for name in node.reads:
            self.readers.setdefault(name, {})[node.name] = node

    def remove(self, node: Node) -> None:
        del self.first[node.outputs[0]]
        for name in filter(None, node.outputs):
            del self.makers[name]
        for name in dict.fromkeys(node.reads):
            del self.readers[name][node.name]


class GraphView:
    """Read access to a graph, finished (`Graph`) or being edited (`Draft`)."""

    nodes: Sequence[Node]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, NDArray[Any]]
    aliases: Mapping[str, str]
    opset: int
    names: Names

    @cached_property
    def links(self) -> Links:
        return Links(self.nodes)

    @cached_property
    def handed_out(self) -> set[str]:
        """Tensors that hold the graph's outputs."""
        return {self.aliases.get(name, name) for name in self.outputs}

    def consumers(self, tensor: str) -> list[Node]:
        """Readers of a tensor in order, without the caller."""
        return list(self.links.readers.get(tensor, {}).values())

    @property
    def makers(self) -> Mapping[str, Node]:
        """Nodes by the name of their first output."""
        return self.links.first

    @cached_property
    def images(self) -> int:
        """Batch size: first size of inputs with four axes; 1 if there are none or they differ."""
        sizes = {self.shapes[name][0] for name in self.inputs if len(self.shapes[name]) == 4}
        return sizes.pop() if len(sizes) == 1 else 1

    def rows_of_images(self, sizes: tuple[int, ...], k: int) -> int:
        """Number of images in a tensor with one row of `k` for each, else 0.

        A single row may have any axes.
        """
        if prod(sizes) == k:
            return 1
        batch = self.images
        return batch if sizes[0] == batch and prod(sizes) == batch * k else 0

    def is_handed_out(self, tensor: str) -> bool:
        """Whether a tensor is an output of the graph, so it must be made as it is."""
        return tensor in self.handed_out

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the caller reads a tensor; an absent output has the name ""."""
        return bool(tensor) and (self.is_handed_out(tensor) or bool(self.links.readers.get(tensor)))

    def reader_of(self, tensor: str) -> Node | None:
        """The only reader of a tensor; None for several readers, or an output of the graph."""
        readers = self.links.readers.get(tensor, {})
        if len(readers) != 1 or self.is_handed_out(tensor):
            return None
        return next(iter(readers.values()))

    def is_read_once(self, tensor: str, node: Node) -> bool:
        """Whether `node` is the only reader of a tensor, in one of its inputs."""
        return self.reader_of(tensor) is node and node.inputs.count(tensor) == 1

    def constant(self, tensor: str) -> NDArray[np.float32]:
        return np.asarray(self.constants[tensor], np.float32)


@dataclass(frozen=True)
class Graph(GraphView):
    """Nodes in topological order, with shapes, types and constants of tensors.

    `shapes` omits tensors of data-dependent or zero sizes; `unknown` gives the reason. `types` are
    ONNX's element types as far as known. `aliases` maps outputs whose nodes passes
    removed, such as a flattened output, to their replacements. `is_handed_out`, `is_read` and
    `reader_of` resolve them. `opset` is the version of ONNX's own operators, `domains` has the
    others' versions. `names` makes names for new tensors and nodes.
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
    names: Names = field(default_factory=Names, compare=False, repr=False)

    @property
    def without_unread(self) -> Graph:
        """The graph without unread nodes; the same object if there are none."""
        kept: list[Node] = []
        wanted = set(self.handed_out)
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.reads)
        return self if len(kept) == len(self.nodes) else replace(self, nodes=tuple(kept[::-1]))

    def matrix(
        self, tensor: str, sizes: tuple[int, int], *, turned: bool, factor: float = 1.0
    ) -> NDArray[np.float32]:
        """A constant under two sizes, transposed if `turned`; readers share one array."""
        key = tensor, sizes, turned, factor
        if key not in self._matrices:
            value = self.constant(tensor).reshape(sizes)
            value = value if factor == 1 else np.float32(factor) * value
            self._matrices[key] = np.ascontiguousarray(value.T if turned else value)
        return self._matrices[key]

    @cached_property
    def _matrices(self) -> dict[tuple[str, tuple[int, int], bool, float], NDArray[np.float32]]:
        return {}


@dataclass(frozen=True, eq=False)
class Rewrite:
    """Replacement nodes for the node `at`, with their new constants and shapes."""

    at: Node
    nodes: Sequence[Node] = ()
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Draft(GraphView):
    """A graph under edits; an edit's time is proportional to its own size.

    `nodes` are those before the edits, `order` those after them.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self.nodes = graph, graph.nodes
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self.opset, self.names = graph.opset, graph.names
        self.shapes: dict[str, tuple[int, ...]] = dict(graph.shapes)
        self.constants: dict[str, NDArray[Any]] = dict(graph.constants)
        #: Nodes at the place of each original node, and the places by name.
        self._places = [[node] for node in graph.nodes]
        self._place = {node.name: at for at, node in enumerate(graph.nodes)}
        self.aliases: dict[str, str] = dict(graph.aliases)

    @property
    def order(self) -> list[Node]:
        return [node for place in self._places for node in place]

    def consumers(self, tensor: str) -> list[Node]:
        return sorted(super().consumers(tensor), key=lambda node: self._place[node.name])

    def rewrite(self, *rewrites: Rewrite) -> None:
        for each in rewrites:
            self.links.remove(each.at)
            at = self._place.pop(each.at.name)
            names = [node.name for node in self._places[at]]
            start = names.index(each.at.name)
            self._places[at][start : start + 1] = each.nodes
            for node in each.nodes:
                self.links.add(node)
                self._place[node.name] = at
            self.constants |= each.constants
            self.shapes |= {name: value.shape for name, value in each.constants.items()}
            self.shapes |= each.shapes

    def drop(self, tensor: str, source: str) -> None:
        """Remove the node that makes a tensor; its readers get `source` instead."""
        self.rewrite(Rewrite(self.links.first[tensor]))
        for reader in self.consumers(tensor):
            inputs = tuple(source if name == tensor else name for name in reader.inputs)
            self.rewrite(Rewrite(reader, [replace(reader, inputs=inputs)]))
        if tensor not in self.handed_out:
            return
        self.handed_out.remove(tensor)
        self.handed_out.add(source)
        for name in self.outputs:
            if self.aliases.get(name, name) == tensor:
                self.aliases[name] = source

    @property
    def graph(self) -> Graph:
        return replace(
            self._graph,
            nodes=tuple(self.order),
            shapes=self.shapes,
            constants=self.constants,
            aliases=self.aliases,
        )


def fuse(graph: Graph, find: Callable[[Graph, Node], Rewrite | None]) -> Graph:
    """Apply the rewrites that `find` gives for nodes; drop nodes left without readers."""
    rewrites = {rewrite.at.name: rewrite for node in graph.nodes if (rewrite := find(graph, node))}
    return applied(graph, rewrites.values())


def applied(graph: Graph, rewrites: Collection[Rewrite]) -> Graph:
    """The graph after `rewrites`, without nodes that are left without readers."""
    if not rewrites:
        return graph.without_unread
    draft = Draft(graph)
    draft.rewrite(*rewrites)
    return draft.graph.without_unread


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in topological order, of all such orders the one nearest to the given.

    Raises `UnsupportedError` for a cycle.
    """
    given = list(nodes)
    makers: dict[str, list[int]] = {}
    for at, node in enumerate(given):
        for name in filter(None, node.outputs):
            makers.setdefault(name, []).append(at)
    behind: list[list[int]] = [[] for _ in given]
    left = []
    for at, node in enumerate(given):
        before = {maker for name in node.reads for maker in makers.get(name, ())}
        left.append(len(before))
        for maker in before:
            behind[maker].append(at)
    ready = [at for at, count in enumerate(left) if not count]
    ordered = []
    while ready:
        ordered.append(at := heappop(ready))
        for reader in behind[at]:
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    if len(ordered) < len(given):
        circle = [node.name for node, count in zip(given, left, strict=True) if count]
        names = ", ".join(map(repr, circle[:3]))
        raise UnsupportedError(f"The nodes {names} read what they make themselves, in a circle.")
    return [given[at] for at in ordered]
