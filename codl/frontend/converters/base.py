"""Registration of converters, and steps for nodes that become several ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation, Array, Op, Weights
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.movement import Transpose
from codl.ir.ops.nd import NdOp, Sizes
from codl.ir.region import Shape, as_nchw
from codl.registry import Registry


@dataclass(frozen=True)
class ConvertedOp:
    """An op of a converted node; `inputs` and `output` are names of tensors.

    `constants` are inputs made by the converter; the graph's own constants are not listed.
    """

    op: Op
    inputs: tuple[str, ...]
    output: str
    weights: Weights = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)


Convert: TypeAlias = Callable[[Graph, Node], Sequence[ConvertedOp]]


@dataclass(frozen=True)
class Converter:
    """Conversion of one type of ONNX node.

    `parameters` are positions of inputs that must be constants: weights, axes, sizes. `activation`
    is set for activations, which the op before may fuse.
    """

    convert: Convert
    parameters: tuple[int, ...] = ()
    activation: Callable[[Graph, Node], Activation] | None = None


#: Type of a node for a group of nodes. Its attributes: `model`, an ONNX model with one output;
#: `nodes`, their types; `exact`, whether float16 must not hold that output.
ENCLOSED = "codl.Enclosed"
#: Converters by node type, as of `codl.ir.onnx_node.type_of`.
CONVERTERS: Registry[Converter] = Registry("ONNX node")


def converts(*types: str, parameters: tuple[int, ...] = ()) -> Callable[[Convert], Convert]:
    """Decorator: the function makes a node's ops; `UnsupportedError` leaves it to ONNX Runtime."""

    def register(convert: Convert) -> Convert:
        for node_type in types:
            CONVERTERS.add(node_type, Converter(convert, parameters), origin=convert)
        return convert

    return register


def input_shape(graph: Graph, node: Node) -> Shape:
    return as_nchw(graph.shapes[node.inputs[0]])


def between(graph: Graph, node: Node, word: str) -> str:
    """A name for a tensor between the ops of a node."""
    return graph.names.tensor(node.outputs[0] or node.name, word)


def has_input(node: Node, index: int) -> bool:
    return len(node.inputs) > index and bool(node.inputs[index])


def constant_input(graph: Graph, node: Node, index: int, default: Any = None) -> NDArray[Any]:
    """An input that codl needs as a constant, in its own type; `default` if absent."""
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
    """A float attribute, rounded to float32's digits."""
    return float(f"{float(value):.7g}")


def parameter(graph: Graph, node: Node, name: str, index: int, default: Any = None) -> Any:
    """A parameter: an input in newer opsets, an attribute in older ones."""
    if has_input(node, index):
        return constant_input(graph, node, index)
    return attribute(node, name, default)


def ints(values: Any) -> tuple[int, ...]:
    """Values as a flat tuple of Python integers."""
    return tuple(int(value) for value in np.asarray(values).reshape(-1))


def unsupported(node: Node, reason: str) -> UnsupportedError:
    return UnsupportedError(f"The node {node.name!r} ({node.type}): {reason}")


# Nodes that become several ops: each step makes a tensor for later steps. Element-wise steps merge
# axes of operands to the kernels' four.


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor by name, the sizes of its view, and its value if constant."""

    name: str
    sizes: Sizes
    value: Array | None = None

    @classmethod
    def number(cls, value: float) -> Operand:
        return cls(f"{value:g}", (), np.full((), value, np.float32))


def merge(shapes: Sequence[Sizes]) -> list[Sizes]:
    """Shapes of equal rank, with neighbouring axes merged if broadcast in the same shapes."""
    merged: list[list[Sizes]] = []
    for sizes in zip(*shapes, strict=True):
        full = max(sizes)
        alike = [size == full for size in sizes]
        before = merged[-1] if merged else None
        if full == 1:
            continue
        if before and [prod(axis) == max(prod(o) for o in before) for axis in before] == alike:
            merged[-1] = [(*axis, size) for axis, size in zip(before, sizes, strict=True)]
        else:
            merged.append([(size,) for size in sizes])
    return [tuple(prod(axis[index]) for axis in merged) for index in range(len(shapes))]


@dataclass
class Steps:
    """The ops of a node; inner tensors are named after its first output."""

    graph: Graph
    node: Node
    made: list[ConvertedOp] = field(default_factory=list)

    def operand(self, name: str) -> Operand:
        value = self.graph.constant(name) if name in self.graph.constants else None
        return Operand(name, tuple(self.graph.shapes[name]), value)

    def constant(self, word: str, value: NDArray[Any]) -> Operand:
        return Operand(self.name(word), value.shape, np.ascontiguousarray(value, np.float32))

    def apply(self, op: NdOp, operands: Sequence[Operand], word: str) -> Operand:
        """An op on operands, viewed under the op's shapes."""
        inputs = list(zip(operands, op.shapes, strict=True))
        return self._append(op, inputs, Operand(self.name(word), op.out_sizes))

    def _append(self, op: Op, inputs: Sequence[tuple[Operand, Sizes]], output: Operand) -> Operand:
        """Add an op, with a copy of each constant for its own sizes."""
        names, constants = [], {}
        for index, (operand, sizes) in enumerate(inputs):
            name = operand.name
            if operand.value is not None:
                name = self.graph.names.tensor(output.name, f"{index}.{operand.name}")
                value = np.ascontiguousarray(operand.value, np.float32)
                constants[name] = value.reshape(sizes)
            names.append(name)
        self.made.append(ConvertedOp(op, tuple(names), output.name, constants=constants))
        return output

    def matmul(self, a: Operand, b: Operand, word: str, **fields: Any) -> Operand:
        return self.apply(MatMul(shapes=(a.sizes, b.sizes), **fields), (a, b), word)

    def transpose(
        self, x: Operand, perm: Sizes, word: str, *, axes: Sizes = (), to: Sizes = ()
    ) -> Operand:
        """A transpose of x viewed under sizes `axes`, whose result is viewed under `to`."""
        axes = () if axes == x.sizes else axes
        plain = tuple((axes or x.sizes)[axis] for axis in perm)
        to = () if to == plain else to
        return self.apply(Transpose(shapes=(x.sizes,), perm=perm, axes=axes, to=to), (x,), word)

    def combine(self, mode: str, a: Operand, b: Operand, word: str = "") -> Operand:
        """A binary element-wise op with NumPy's broadcasting."""
        to = np.broadcast_shapes(a.sizes, b.sizes)
        padded = [(1,) * (len(to) - len(x.sizes)) + x.sizes for x in (a, b)]
        if len(to) > 4 and padded[0] != padded[1]:
            padded = merge(padded)
            if len(padded[0]) > 4:
                shapes = f"{a.sizes} and {b.sizes}"
                reason = f"{shapes} are stretched along more than 4 separate axes."
                raise unsupported(self.node, reason)
        op = Eltwise(inputs=tuple(as_nchw(sizes) for sizes in padded), mode=mode)
        inputs = list(zip((a, b), padded, strict=True))
        return self._append(op, inputs, Operand(self.name(word), to))

    def function(self, mode: str, x: Operand, word: str = "", *parameters: float) -> Operand:
        """A unary element-wise op; a constant operand becomes a tensor of the network."""
        values = dict(zip(("alpha", "beta"), parameters, strict=False))
        op = Eltwise(inputs=(as_nchw(x.sizes),), mode=mode, **values)  # type: ignore[arg-type]
        plain = Operand(x.name, x.sizes)
        return self._append(op, [(plain, x.sizes)], Operand(self.name(word), x.sizes))

    def activate(self, activation: Activation) -> None:
        """Fuse an activation into the last step."""
        last = self.made[-1]
        self.made[-1] = replace(last, op=last.op.with_activation(activation))

    def name(self, word: str) -> str:
        """A new name for an inner tensor; without a word, the first output's."""
        if not word:
            return self.node.outputs[0]
        made = {step.output for step in self.made}
        name, count = between(self.graph, self.node, word), 0
        while name in made:
            count += 1
            name = between(self.graph, self.node, f"{word}{count}")
        return name


def seen(x: Operand, sizes: Sizes) -> Operand:
    """An operand viewed under other sizes."""
    value = None if x.value is None else x.value.reshape(sizes)
    return Operand(x.name, sizes, value)
