"""Nodes that become a row of ops: each step makes a tensor that later ones read.

Element-wise steps see operands of any rank under the four axes that kernels know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.frontend.converters.base import ConvertedOp, between, unsupported
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Activation, Array, Op, Weights
from codl.ir.ops.concat import ConcatNd
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.movement import PadNd, Transpose
from codl.ir.ops.nd import NdOp, Sizes
from codl.ir.ops.reductions import Softmax
from codl.ir.region import as_nchw


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor by name, the sizes under which it is seen, and its value where it is constant."""

    name: str
    sizes: Sizes
    value: Array | None = None

    @classmethod
    def of(cls, graph: Graph, name: str, sizes: Sizes | None = None) -> Operand:
        value = graph.constant(name) if name in graph.constants else None
        return cls(name, tuple(graph.shapes[name]) if sizes is None else sizes, value)

    @classmethod
    def number(cls, value: float, rank: int = 0) -> Operand:
        return cls(f"{value:g}", (1,) * rank, np.full((1,) * rank, value, np.float32))


def merge(shapes: Sequence[Sizes]) -> list[Sizes]:
    """Shapes of equal rank with neighbouring axes merged where all are stretched alike."""
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
    """Collects the ops of a node; tensors in between are named after its first output."""

    graph: Graph
    node: Node
    made: list[ConvertedOp] = field(default_factory=list)

    def operand(self, name: str, sizes: Sizes | None = None) -> Operand:
        return Operand.of(self.graph, name, sizes)

    def ranked(self, name: str, *ranks: int) -> Operand:
        """A tensor that must have as many axes as one of `ranks`; raises `UnsupportedError`."""
        operand = self.operand(name)
        if len(operand.sizes) not in ranks:
            wanted = " or ".join(map(str, ranks))
            raise unsupported(self.node, f"{name!r} must have {wanted} axes, got {operand.sizes}.")
        return operand

    def constant(self, word: str, value: NDArray[Any]) -> Operand:
        return Operand(self.name(word), value.shape, np.ascontiguousarray(value, np.float32))

    def apply(
        self, op: NdOp, operands: Sequence[Operand], word: str, weights: Weights | None = None
    ) -> Operand:
        """An op on operands under the sizes that it takes."""
        return self.append(op, operands, self.name(word), weights)

    def append(
        self, op: NdOp, operands: Sequence[Operand], output: str, weights: Weights | None = None
    ) -> Operand:
        inputs = list(zip(operands, op.shapes, strict=True))
        return self._append(op, inputs, Operand(output, op.out_sizes), weights)

    def _append(
        self, op: Op, inputs: Sequence[tuple[Operand, Sizes]], output: Operand,
        weights: Weights | None = None,
    ) -> Operand:  # fmt: skip
        """A constant may be read under other sizes elsewhere, so each reader has its own."""
        names, constants = [], {}
        for index, (operand, sizes) in enumerate(inputs):
            name = operand.name
            if operand.value is not None:
                name = self.graph.names.tensor(output.name, f"{index}.{operand.name}")
                value = np.ascontiguousarray(operand.value, np.float32)
                constants[name] = value.reshape(sizes)
            names.append(name)
        self.made.append(ConvertedOp(op, tuple(names), output.name, weights or {}, constants))
        return output

    def linear(self, x: Operand, matrix: Array, bias: Array, word: str) -> Operand:
        """A product of the last axis with a constant (k, n), and a bias."""
        op = MatMul(shapes=(x.sizes,), matrix=matrix.shape)
        weights = {"weight": np.ascontiguousarray(matrix), "bias": np.ascontiguousarray(bias)}
        return self.apply(op, (x,), word, weights)

    def matmul(self, a: Operand, b: Operand, word: str, **fields: Any) -> Operand:
        return self.apply(MatMul(shapes=(a.sizes, b.sizes), **fields), (a, b), word)

    def transpose(
        self, x: Operand, perm: Sizes, word: str, *, axes: Sizes = (), to: Sizes = ()
    ) -> Operand:
        """`axes` are other sizes under which x is seen, `to` those under which it is left."""
        axes = () if axes == x.sizes else axes
        plain = tuple((axes or x.sizes)[axis] for axis in perm)
        to = () if to == plain else to
        return self.apply(Transpose(shapes=(x.sizes,), perm=perm, axes=axes, to=to), (x,), word)

    def concat(self, parts: Sequence[Operand], axis: int, word: str) -> Operand:
        shapes = tuple(part.sizes for part in parts)
        return self.apply(ConcatNd(shapes=shapes, axis=axis), parts, word)

    def pad_last(self, x: Operand, count: int, value: float, word: str) -> Operand:
        """`count` elements of a value behind the last axis."""
        before = (0,) * len(x.sizes)
        op = PadNd(shapes=(x.sizes,), before=before, after=(*before[1:], count), value=value)
        return self.apply(op, (x,), word)

    def softmax(self, x: Operand, word: str) -> Operand:
        return self.apply(Softmax(shapes=(x.sizes,), axes=(len(x.sizes) - 1,)), (x,), word)

    def combine(self, mode: str, a: Operand, b: Operand, word: str = "") -> Operand:
        """Element by element, stretched to each other as NumPy does it."""
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
        """A mode of one input; a constant one becomes a tensor of the network."""
        values = dict(zip(("alpha", "beta"), parameters, strict=False))
        op = Eltwise(inputs=(as_nchw(x.sizes),), mode=mode, **values)  # type: ignore[arg-type]
        plain = Operand(x.name, x.sizes)
        return self._append(op, [(plain, x.sizes)], Operand(self.name(word), x.sizes))

    def activate(self, activation: Activation) -> None:
        """Let the last step apply an activation to what it makes."""
        last = self.made[-1]
        self.made[-1] = replace(last, op=last.op.with_activation(activation))

    def finish(self, x: Operand, output: str) -> Operand:
        """Give what a step made the name of an output; anything else is copied there."""
        if x.name in self.node.outputs or all(step.output != x.name for step in self.made):
            op = Eltwise(inputs=(as_nchw(x.sizes),), mode="identity")
            self.made.append(ConvertedOp(op, (x.name,), output))
            return Operand(output, x.sizes)
        self.made = [
            replace(
                step,
                inputs=tuple(output if name == x.name else name for name in step.inputs),
                output=output if step.output == x.name else step.output,
            )
            for step in self.made
        ]
        return Operand(output, x.sizes)

    def name(self, word: str) -> str:
        """A name for a tensor in between; without a word, that of the first output."""
        if not word:
            return self.node.outputs[0]
        name = first = between(self.graph, self.node, word)
        made = {step.output for step in self.made}
        count = sum(output.startswith(first) for output in made)
        if count:
            name = between(self.graph, self.node, f"{word}{count}")
        while name in made:
            count += 1
            name = between(self.graph, self.node, f"{word}{count}")
        return name


def seen(x: Operand, sizes: Sizes) -> Operand:
    """The same elements under other sizes."""
    value = None if x.value is None else x.value.reshape(sizes)
    return Operand(x.name, sizes, value)
