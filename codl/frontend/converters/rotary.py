"""Rotary position embedding: ONNX's node, and that of `com.microsoft`."""

from __future__ import annotations

import numpy as np

from codl.frontend.converters.base import ConvertedOp, attribute, converts, has_input, unsupported
from codl.frontend.converters.operands import Operand
from codl.frontend.converters.steps import Steps, seen
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import Rotary
from codl.ir.ops.nd import Sizes


@converts("RotaryEmbedding")
def _rotary(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: x, cosines, sines, positions; without those, every token has a row of its own."""
    steps = Steps(graph, node)
    x, axis = _heads_of(steps, int(attribute(node, "num_heads", 0)))
    given = has_input(node, 3)
    cos, sin = (steps.ranked(name, 2 if given else 3) for name in node.inputs[1:3])
    if given:
        rows = steps.ranked(node.inputs[3], 2)
        cos, sin = (table_rows(steps, table, rows) for table in (cos, sin))
    return _turned(steps, x, cos, sin, axis)


@converts("com.microsoft.RotaryEmbedding")
def _microsoft_rotary(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: x, positions, cosines, sines; one position is that of the first token."""
    if attribute(node, "is_packed_batching", 0) or attribute(node, "scale", 1.0) != 1:
        raise unsupported(node, "is_packed_batching must be 0 and scale 1.")
    steps = Steps(graph, node)
    cos, sin = (steps.ranked(name, 2) for name in node.inputs[2:4])
    x, axis = _heads_of(steps, int(attribute(node, "num_heads", 0)), pairs=cos.sizes[-1])
    rows = steps.ranked(node.inputs[1], 1, 2)
    if len(rows.sizes) == 1:
        if rows.sizes != (1,):
            raise unsupported(node, f"one axis of positions must have 1 of them, got {rows.sizes}.")
        count = steps.constant("count", np.arange(x.sizes[axis]))
        if rows.value is None:
            rows = steps.combine("add", rows, count, "positions")
        else:
            rows = steps.constant("positions", rows.value + np.arange(x.sizes[axis]))
        rows = seen(rows, (1, *rows.sizes))
    cos, sin = (table_rows(steps, table, rows) for table in (cos, sin))
    return _turned(steps, x, cos, sin, axis)


def table_rows(steps: Steps, table: Operand, rows: Operand) -> Operand:
    """The rows of a table (positions, pairs) that tokens (images, tokens) have."""
    if rows.value is not None and (rows.value == rows.value[:1]).all():
        rows = Operand(rows.name, (1, *rows.sizes[1:]), rows.value[:1])
    if table.value is None or rows.value is None:
        return steps.gather(table, rows, "rows")
    positions = rows.value.astype(np.int64)
    if positions.min() < 0 or positions.max() >= table.sizes[0]:
        first, last, known = positions.min(), positions.max(), table.sizes[0]
        reason = f"positions {first} to {last} are outside of a table of {known}."
        raise unsupported(steps.node, reason)
    return steps.constant("rows", table.value[positions])


def turn(
    steps: Steps, x: Operand, cos: Operand, sin: Operand, *, axis: int, interleaved: bool
) -> Operand:
    """x with the tokens along `axis` of 4; see `codl.ir.ops.attention`."""
    op = Rotary(shapes=(x.sizes, cos.sizes, sin.sizes), axis=axis, interleaved=interleaved)
    if op.problem is not None:
        raise unsupported(steps.node, op.problem)
    return steps.apply(op, (x, cos, sin), "turned")


def _turned(steps: Steps, x: Operand, cos: Operand, sin: Operand, axis: int) -> list[ConvertedOp]:
    pairs = int(attribute(steps.node, "rotary_embedding_dim", 0) or x.sizes[3]) // 2
    if cos.sizes[-1] != pairs:
        reason = f"{pairs} pairs of features need as many angles, got {cos.sizes[-1]}."
        raise unsupported(steps.node, reason)
    interleaved = bool(attribute(steps.node, "interleaved", 0))
    turned = turn(steps, x, cos, sin, axis=axis, interleaved=interleaved)
    steps.finish(turned, steps.node.outputs[0])
    return steps.made


def _heads_of(steps: Steps, heads: int, pairs: int = 0) -> tuple[Operand, int]:
    """The first input with its heads as an axis, and which axis then has the tokens.

    Without a number of heads, all features of one have `pairs` pairs.
    """
    x = steps.ranked(steps.node.inputs[0], 3, 4)
    if len(x.sizes) == 4:
        # No attribute of ONNX's: a pass that has found the embedding sets it.
        return x, int(attribute(steps.node, "axis", 2))
    n, tokens, width = x.sizes
    heads = heads or (width // (2 * pairs) if pairs else 0)
    if not heads or width % heads:
        reason = f"num_heads must divide the {width} features, got {heads}."
        raise unsupported(steps.node, reason)
    sizes: Sizes = (n, tokens, heads, width // heads)
    return seen(x, sizes), 1
