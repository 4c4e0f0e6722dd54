"""How a converter is registered, and what converters have in common: a node in, steps out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation, Array, Op, Weights
from codl.ir.region import Shape, as_nchw
from codl.registry import Registry


@dataclass(frozen=True)
class ConvertedOp:
    """One op that a node becomes; `inputs` and `output` are tensors by name.

    `constants` are inputs that the converter made itself; constants of the graph need not be named.
    """

    op: Op
    inputs: tuple[str, ...]
    output: str
    weights: Weights = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)


Convert: TypeAlias = Callable[[Graph, Node], Sequence[ConvertedOp]]


@dataclass(frozen=True)
class Converter:
    """What a type of ONNX node means.

    `parameters` are the positions of inputs that it wants as constants: not data, but weights,
    axes, sizes. `activation` is set for a function of every element, which the op before may fuse.
    """

    convert: Convert
    parameters: tuple[int, ...] = ()
    activation: Callable[[Graph, Node], Activation] | None = None


#: By the type of the node: see `codl.ir.onnx_node.type_of`.
CONVERTERS: Registry[Converter] = Registry("ONNX node")


def converts(*types: str, parameters: tuple[int, ...] = ()) -> Callable[[Convert], Convert]:
    """Decorator: the function is the converter of nodes of these types.

    It returns the ops that a node becomes, and raises `UnsupportedError` for a node that it cannot
    convert: such a node runs whole in ONNX Runtime.
    """

    def register(convert: Convert) -> Convert:
        for node_type in types:
            CONVERTERS.add(node_type, Converter(convert, parameters), origin=convert)
        return convert

    return register


def input_shape(graph: Graph, node: Node) -> Shape:
    """The first input's, as nchw."""
    return as_nchw(graph.shapes[node.inputs[0]])


def between(graph: Graph, node: Node, word: str) -> str:
    """A name for a tensor between the ops that a node becomes."""
    return graph.names.tensor(node.outputs[0] or node.name, word)


def has_input(node: Node, index: int) -> bool:
    """Whether an optional input is given."""
    return len(node.inputs) > index and bool(node.inputs[index])


def constant_input(graph: Graph, node: Node, index: int, default: Any = None) -> NDArray[Any]:
    """A parameter that ONNX takes as an input and codl only as a constant, in its own type."""
    if not has_input(node, index):
        return np.asarray(default)
    name = node.inputs[index]
    if name not in graph.constants:
        raise unsupported(node, f"the input {name!r} must be a constant.")
    return np.asarray(graph.constants[name])


def attribute(node: Node, name: str, default: Any) -> Any:
    """An attribute of a node; strings are decoded."""
    value = node.attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def number(value: Any) -> float:
    """A float attribute without the digits that float32 does not have."""
    return float(f"{float(value):.7g}")


def parameter(graph: Graph, node: Node, name: str, index: int, default: Any = None) -> Any:
    """What newer opsets take as an input and older ones as an attribute."""
    if has_input(node, index):
        return constant_input(graph, node, index)
    return attribute(node, name, default)


def ints(values: Any) -> tuple[int, ...]:
    """Python's integers."""
    return tuple(int(value) for value in np.asarray(values).reshape(-1))


def unsupported(node: Node, reason: str) -> UnsupportedError:
    return UnsupportedError(f"The node {node.name!r} ({node.type}): {reason}")
