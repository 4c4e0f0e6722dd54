"""Sums of products by their indices: of two tensors as one product of matrices, of one as a sum."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codl.frontend.converters.base import ConvertedOp, attribute, converts, unsupported
from codl.frontend.converters.reductions import reduced
from codl.frontend.converters.steps import Operand, Steps, seen
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import Sizes

#: What stands for the axes that an equation leaves out; no index of a user's is one of these.
LEFT_OUT = "0123456789"


@dataclass(frozen=True)
class Indexed:
    """A tensor with an index for each of its axes."""

    tensor: Operand
    axes: str

    def size(self, index: str) -> int:
        return self.tensor.sizes[self.axes.index(index)]

    def sizes(self, indices: str) -> Sizes:
        return tuple(self.size(index) for index in indices)


@converts("Einsum")
def _einsum(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps = Steps(graph, node)
    terms, target = _equation(steps)
    if len(terms) > 2:
        raise unsupported(node, f"one or two tensors are known, got {len(terms)}.")
    others = ["".join(t.axes for t in terms if t is not term) + target for term in terms]
    # An index that nothing else has is summed up first.
    first, *rest = (
        _summed(steps, term, "".join(i for i in term.axes if i in other))
        for term, other in zip(terms, others, strict=True)
    )
    result = _product(steps, first, rest[0], target) if rest else first
    ordered = _ordered(steps, result, target)
    steps.finish(ordered.tensor, node.outputs[0])
    return steps.made


def _equation(steps: Steps) -> tuple[list[Indexed], str]:
    """The tensors with their indices, and those of the result."""
    equation = str(attribute(steps.node, "equation", "")).replace(" ", "")
    left, arrow, target = equation.partition("->")
    texts = left.split(",")
    operands = [steps.operand(name) for name in steps.node.inputs]
    if len(texts) != len(operands):
        reason = f"{equation!r} is one of {len(texts)} tensors, got {len(operands)}."
        raise unsupported(steps.node, reason)
    hidden = [
        len(x.sizes) - len(t.replace("...", "")) for t, x in zip(texts, operands, strict=True)
    ]
    terms = []
    for text, operand, count in zip(texts, operands, hidden, strict=True):
        axes = text.replace("...", LEFT_OUT[: max(hidden)][max(hidden) - count :])
        if len(axes) != len(operand.sizes):
            reason = f"{text!r} of {equation!r} does not fit {operand.sizes}."
            raise unsupported(steps.node, reason)
        if len(set(axes)) < len(axes):
            raise unsupported(steps.node, f"{text!r} takes a diagonal.")
        terms.append(Indexed(operand, axes))
    if not arrow:
        indices = "".join(texts).replace(".", "")
        target = "..." + "".join(sorted(i for i in set(indices) if indices.count(i) == 1))
    target = target.replace("...", LEFT_OUT[: max(hidden)])
    if len(set(target)) < len(target) or not set(target) <= set("".join(t.axes for t in terms)):
        raise unsupported(steps.node, f"{target!r} is no result of {equation!r}.")
    return terms, target


def _summed(steps: Steps, term: Indexed, kept: str) -> Indexed:
    axes = tuple(axis for axis, index in enumerate(term.axes) if index not in kept)
    if not axes:
        return term
    total = reduced(steps, term.tensor, "sum", axes, "sum", keepdims=False)
    return Indexed(Operand(total.name, term.sizes(kept)), kept)


def _product(steps: Steps, a: Indexed, b: Indexed, target: str) -> Indexed:
    """Indices of both tensors and the result are batches; of both alone, they are summed up."""
    batch = "".join(i for i in target if i in a.axes and i in b.axes)
    inner = "".join(i for i in a.axes if i in b.axes and i not in batch)
    rows, columns = ("".join(i for i in term.axes if i not in batch + inner) for term in (a, b))
    for index in inner:
        if a.size(index) != b.size(index):
            reason = f"{index!r} is {a.size(index)} and {b.size(index)}."
            raise unsupported(steps.node, reason)
    left, trans_a = _matrix(steps, a, batch, rows, inner)
    right, trans_b = _matrix(steps, b, batch, inner, columns)
    result = steps.matmul(left, right, "product", trans_a=trans_a, trans_b=trans_b)
    wide = tuple(max(a.size(index), b.size(index)) for index in batch)
    sizes = (*wide, *a.sizes(rows), *b.sizes(columns))
    return Indexed(seen(result, sizes), batch + rows + columns)


def _matrix(steps: Steps, term: Indexed, batch: str, first: str, last: str) -> tuple[Operand, bool]:
    """A tensor as matrices of `first` x `last`, or of `last` x `first` where it lies so (True)."""
    turned = term.axes == batch + last + first
    if not turned:
        term = _ordered(steps, term, batch + first + last)
    sides = [prod(term.sizes(first)), prod(term.sizes(last))]
    sizes = (*term.sizes(batch), *(sides[::-1] if turned else sides))
    return seen(term.tensor, sizes), turned


def _ordered(steps: Steps, term: Indexed, axes: str) -> Indexed:
    """The tensor with its axes in another order."""
    if term.axes == axes:
        return term
    perm = tuple(term.axes.index(index) for index in axes)
    return Indexed(steps.transpose(term.tensor, perm, "ordered"), axes)
