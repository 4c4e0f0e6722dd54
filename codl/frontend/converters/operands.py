"""Element-wise steps of converters: operands of any rank under the four axes that kernels know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from codl.frontend.converters.base import ConvertedOp, unsupported
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.nd import Sizes
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


def function(mode: str, operand: Operand, output: str, *parameters: float) -> ConvertedOp:
    """A mode of one input; a constant one becomes a tensor of the network."""
    values = dict(zip(("alpha", "beta"), parameters, strict=False))
    op = Eltwise(inputs=(as_nchw(operand.sizes),), mode=mode, **values)  # type: ignore[arg-type]
    return ConvertedOp(op, (operand.name,), output)


def combine(node: Node, mode: str, operands: tuple[Operand, Operand], output: str) -> ConvertedOp:
    """A mode of two inputs, stretched to each other as NumPy does it."""
    to = np.broadcast_shapes(*(operand.sizes for operand in operands))
    padded = [(1,) * (len(to) - len(o.sizes)) + o.sizes for o in operands]
    if len(to) > 4 and padded[0] != padded[1]:
        padded = merge(padded)
        if len(padded[0]) > 4:
            given = " and ".join(str(operand.sizes) for operand in operands)
            raise unsupported(node, f"{given} are stretched along more than 4 separate axes.")
    constants, names = {}, []
    for index, (operand, sizes) in enumerate(zip(operands, padded, strict=True)):
        # A constant may be read under other sizes elsewhere, so each reader has its own.
        name = operand.name if operand.value is None else f"{output}.{index}.{operand.name}"
        names.append(name)
        if operand.value is not None:
            constants[name] = np.ascontiguousarray(operand.value, np.float32).reshape(sizes)
    op = Eltwise(inputs=tuple(as_nchw(sizes) for sizes in padded), mode=mode)
    return ConvertedOp(op, tuple(names), output, constants=constants)


def merge(shapes: Sequence[Sizes]) -> list[Sizes]:
    """Shapes of equal rank with neighbouring axes merged where all are stretched alike."""
    merged: list[list[Sizes]] = []
    for sizes in zip(*shapes, strict=True):
        full = max(sizes)
        alike = [size == full for size in sizes]
        before = merged[-1] if merged else None
        if full == 1:
            continue
        if before and [prod(own) == max(prod(o) for o in before) for own in before] == alike:
            merged[-1] = [(*own, size) for own, size in zip(before, sizes, strict=True)]
        else:
            merged.append([(size,) for size in sizes])
    return [tuple(prod(axis[index]) for axis in merged) for index in range(len(shapes))]
