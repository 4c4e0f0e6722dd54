"""The DAG of a model: nodes and tensors by name, with every shape known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir.onnx_node import Node


class Names:
    """Names for what passes add to a graph: none is one of the model, or is given twice."""

    def __init__(self, tensors: Iterable[str] = (), nodes: Iterable[str] = ()) -> None:
        self._taken = {"tensor": set(tensors), "node": set(nodes)}
        self._given: dict[tuple[str, str, str], str] = {}

    def tensor(self, owner: str, word: str) -> str:
        """`owner.word`, with a number behind where that is taken; always the same for both."""
        return self._name("tensor", owner, word)

    def node(self, owner: str, word: str) -> str:
        """The same for a node, whose names are apart from those of tensors."""
        return self._name("node", owner, word)

    @property
    def given(self) -> set[str]:
        """The names of tensors that were given."""
        return {name for (kind, *_), name in self._given.items() if kind == "tensor"}

    def _name(self, kind: str, owner: str, word: str) -> str:
        key, taken = (kind, owner, word), self._taken[kind]
        if key not in self._given:
            name, count = f"{owner}.{word}", 1
            while name in taken:
                name, count = f"{owner}.{word}_{count}", count + 1
            taken.add(name)
            self._given[key] = name
        return self._given[key]


class Links:
    """Which nodes make and read each tensor."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        #: By their first outputs, and by all outputs.
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
    """What passes ask of a graph, whether it is finished or being edited."""

    inputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, NDArray[Any]]
    opset: int
    names: Names

    @property
    def links(self) -> Links:
        raise NotImplementedError

    @property
    def handed_out(self) -> frozenset[str] | set[str]:
        """The tensors that hold outputs, under whatever names the caller knows those."""
        raise NotImplementedError

    def consumers(self, tensor: str) -> list[Node]:
        """The nodes that read a tensor, in their order; the caller may want it, too."""
        raise NotImplementedError

    @property
    def makers(self) -> Mapping[str, Node]:
        """By their first outputs, the nodes that make them."""
        return self.links.first

    @cached_property
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

    def is_handed_out(self, tensor: str) -> bool:
        """Whether the caller gets a tensor, so that it must be made as it is."""
        return tensor in self.handed_out

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the caller wants a tensor; an output left out is called ""."""
        return bool(tensor) and (self.is_handed_out(tensor) or bool(self.links.readers.get(tensor)))

    def reader_of(self, tensor: str) -> Node | None:
        """The node that alone reads a tensor, which is handed out to nobody else."""
        readers = self.links.readers.get(tensor, {})
        if len(readers) != 1 or self.is_handed_out(tensor):
            return None
        return next(iter(readers.values()))

    def is_read_once(self, tensor: str, node: Node) -> bool:
        """Whether a node alone reads a tensor, and as one of its inputs."""
        return self.reader_of(tensor) is node and node.inputs.count(tensor) == 1

    def constant(self, tensor: str) -> NDArray[np.float32]:
        return np.asarray(self.constants[tensor], np.float32)


@dataclass(frozen=True)
class Graph(GraphView):
    """Nodes in topological order; `constants` are the fixed tensors.

    `shapes` knows every tensor but those whose sizes depend on data or are 0; `unknown` says of
    those which it is. `types` are ONNX's codes of elements' types, as far as they are known.
    `aliases` maps tensors that passes removed, such as a flattened output, to what holds them: who
    needs a tensor is for `is_handed_out`, `is_read` and `reader_of` to say.
    `opset` is the version of ONNX's own operators, `domains` has those of others. `names` gives
    names to what passes add.
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

    def rewritten(self, *rewrites: Rewrite) -> Graph:
        """The graph with other nodes in the place of some; copies it whole."""
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
    def links(self) -> Links:
        return Links(self.nodes)

    @cached_property
    def handed_out(self) -> frozenset[str]:
        return frozenset(self.aliases.get(name, name) for name in self.outputs)

    def consumers(self, tensor: str) -> list[Node]:
        return list(self.links.readers.get(tensor, {}).values())

    def matrix(
        self, tensor: str, sizes: tuple[int, int], *, turned: bool, factor: float = 1.0
    ) -> NDArray[np.float32]:
        """A constant under two sizes, its transpose if `turned`; all readers get the same array."""
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
    """The nodes that come in the place of one, `at`, and the tensors that these add."""

    at: Node
    nodes: Sequence[Node] = ()
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Draft(GraphView):
    """A graph that a pass edits node by node; an edit takes as long as what it changes is large."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.inputs, self.opset, self.names = graph.inputs, graph.opset, graph.names
        self.shapes: dict[str, tuple[int, ...]] = dict(graph.shapes)
        self.constants: dict[str, NDArray[Any]] = dict(graph.constants)
        self.domains = dict(graph.domains)
        self._links, self._handed_out = Links(graph.nodes), set(graph.handed_out)
        #: The nodes that have come into the place of each one, and the places of nodes by name.
        self._places = [[node] for node in graph.nodes]
        self._place = {node.name: at for at, node in enumerate(graph.nodes)}
        self._gone: dict[str, str] = {}

    @property
    def links(self) -> Links:
        return self._links

    @property
    def handed_out(self) -> set[str]:
        return self._handed_out

    @property
    def nodes(self) -> list[Node]:
        return [node for place in self._places for node in place]

    def consumers(self, tensor: str) -> list[Node]:
        readers = self._links.readers.get(tensor, {}).values()
        return sorted(readers, key=lambda node: self._place[node.name])

    def rewrite(self, *rewrites: Rewrite) -> None:
        """Put other nodes in the place of some."""
        for each in rewrites:
            self._links.remove(each.at)
            at = self._place.pop(each.at.name)
            names = [node.name for node in self._places[at]]
            start = names.index(each.at.name)
            self._places[at][start : start + 1] = each.nodes
            for node in each.nodes:
                self._links.add(node)
                self._place[node.name] = at
            self.constants |= each.constants
            self.shapes |= {name: value.shape for name, value in each.constants.items()}
            self.shapes |= each.shapes

    def drop(self, tensor: str, source: str) -> None:
        """Remove the node that makes a tensor; its readers read the source."""
        self.rewrite(Rewrite(self._links.first[tensor]))
        for reader in self.consumers(tensor):
            inputs = tuple(source if name == tensor else name for name in reader.inputs)
            self.rewrite(Rewrite(reader, [replace(reader, inputs=inputs)]))
        self._gone[tensor] = source
        if tensor in self._handed_out:
            self._handed_out.remove(tensor)
            self._handed_out.add(source)

    @property
    def graph(self) -> Graph:
        """The graph as it is now."""
        edited = replace(
            self._graph,
            nodes=tuple(self.nodes),
            shapes=self.shapes,
            constants=self.constants,
            domains=self.domains,
        )
        return with_aliases(edited, self._gone)


def with_aliases(graph: Graph, gone: Mapping[str, str]) -> Graph:
    """The graph that knows, of tensors that were removed, what holds them.

    What another pass removed may stand for what is removed now.
    """
    source = sources(gone)
    earlier = {name: source.get(held, held) for name, held in graph.aliases.items()}
    return replace(graph, aliases=earlier | source)


def sources(gone: Mapping[str, str]) -> dict[str, str]:
    """What stands for each tensor in the end, where the value of one may be a key itself."""
    found: dict[str, str] = {}
    for name in gone:
        way = [name]
        while (last := way[-1]) in gone and last not in found:
            way.append(gone[last])
        end = found.get(way[-1], way[-1])
        found |= dict.fromkeys(way[:-1], end)
    return found


def fuse(graph: Graph, find: Callable[[Graph, Node], Rewrite | None]) -> Graph:
    """Rewrite what `find` finds to end at some node; what only that read goes."""
    rewrites = {rewrite.at.name: rewrite for node in graph.nodes if (rewrite := find(graph, node))}
    fused = graph.rewritten(*rewrites.values()) if rewrites else graph
    return fused.without_unread


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in topological order: a file may have them in any.

    A node comes in the first round in which all that it reads is there; of a round, nodes stay as
    they come.
    """
    given = list(nodes)
    makers: dict[str, list[int]] = {}
    for at, node in enumerate(given):
        for name in filter(None, node.outputs):
            makers.setdefault(name, []).append(at)
    before = [list(_distinct(makers, node.reads)) for node in given]
    behind: list[list[int]] = [[] for _ in given]
    for at, sources_of in enumerate(before):
        for maker in sources_of:
            behind[maker].append(at)
    left = list(map(len, before))
    ready = [at for at, count in enumerate(left) if not count]
    rounds = [0] * len(given)
    for at in ready:  # grows
        for reader in behind[at]:
            rounds[reader] = max(rounds[reader], rounds[at] + (reader < at))
            left[reader] -= 1
            if not left[reader]:
                ready.append(reader)
    if len(ready) < len(given):
        circle = [node.name for node, count in zip(given, left, strict=True) if count]
        names = ", ".join(map(repr, circle[:3]))
        raise UnsupportedError(f"The nodes {names} read what they make themselves, in a circle.")
    return [given[at] for at in sorted(ready, key=lambda at: (rounds[at], at))]


def _distinct(makers: Mapping[str, list[int]], names: Iterable[str]) -> Iterator[int]:
    """The nodes that make some tensors."""
    return iter(dict.fromkeys(at for name in names for at in makers.get(name, ())))
