"""Converters of ops that move elements: transposes, slices, pads, concatenation, gathering."""

from __future__ import annotations

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    constant_input,
    converts,
    ints,
    parameter,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Op
from codl.ir.ops.movement import (
    Concat,
    ConcatNd,
    Gather,
    PadNd,
    Reshape,
    SliceNd,
    TileNd,
    Transpose,
)
from codl.ir.ops.nd import Sizes
from codl.ir.region import as_nchw


def _sizes(graph: Graph, node: Node, index: int = 0) -> Sizes:
    return tuple(graph.shapes[node.inputs[index]])


def _step(node: Node, op: Op, output: int = 0) -> ConvertedOp:
    return ConvertedOp(op, node.inputs[:1], node.outputs[output])


@converts("Flatten", "Identity")
@converts("Reshape", "Squeeze", "Unsqueeze", parameters=(1,))
def _reshape(graph: Graph, node: Node) -> list[ConvertedOp]:
    to = tuple(graph.shapes[node.outputs[0]])
    return [_step(node, Reshape(shapes=(_sizes(graph, node),), to=to))]


@converts("Transpose")
def _transpose(graph: Graph, node: Node) -> list[ConvertedOp]:
    """A transpose; the attribute `axes` is from a merged reshape in front of the node."""
    shape = _sizes(graph, node)
    axes = ints(attribute(node, "axes", shape))
    perm = ints(attribute(node, "perm", tuple(reversed(range(len(axes))))))
    return [_permuted(node, shape, axes, perm, tuple(graph.shapes[node.outputs[0]]))]


def _permuted(node: Node, shape: Sizes, axes: Sizes, perm: Sizes, to: Sizes) -> ConvertedOp:
    plain = to == tuple(axes[axis] for axis in perm)
    seen = () if axes == shape else axes
    op = Transpose(shapes=(shape,), perm=perm, axes=seen, to=() if plain else to)
    return _step(node, op)


@converts("DepthToSpace")
def _depth_to_space(graph: Graph, node: Node) -> list[ConvertedOp]:
    n, c, h, w = _sizes(graph, node)
    r = int(node.attributes["blocksize"])
    to = (n, c // (r * r), h * r, w * r)
    if attribute(node, "mode", "DCR") == "DCR":
        axes, perm = (n, r, r, to[1], h, w), (0, 3, 4, 1, 5, 2)
    else:
        axes, perm = (n, to[1], r, r, h, w), (0, 1, 4, 2, 5, 3)
    return [_permuted(node, (n, c, h, w), axes, perm, to)]


@converts("SpaceToDepth")
def _space_to_depth(graph: Graph, node: Node) -> list[ConvertedOp]:
    n, c, h, w = _sizes(graph, node)
    r = int(node.attributes["blocksize"])
    axes = (n, c, h // r, r, w // r, r)
    to = (n, c * r * r, h // r, w // r)
    perm = (0, 3, 5, 1, 2, 4) if attribute(node, "mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return [_permuted(node, (n, c, h, w), axes, perm, to)]


@converts("Slice", parameters=(1, 2, 3, 4))
def _slice(graph: Graph, node: Node) -> list[ConvertedOp]:
    """A slice with Python's bounds, clipped to the axis."""
    shape = _sizes(graph, node)
    first = ints(parameter(graph, node, "starts", 1))
    last = ints(parameter(graph, node, "ends", 2))
    axes = ints(parameter(graph, node, "axes", 3, range(len(first))))
    each = ints(parameter(graph, node, "steps", 4, [1] * len(first)))
    starts, steps, to = [0] * len(shape), [1] * len(shape), list(shape)
    for axis, start, stop, step in zip(axes, first, last, each, strict=True):
        taken = range(*slice(start, stop, step).indices(shape[axis]))
        starts[axis], steps[axis], to[axis] = taken.start, step, len(taken)
    op = SliceNd(shapes=(shape,), starts=tuple(starts), steps=tuple(steps), to=tuple(to))
    return [_step(node, op)]


@converts("Split", parameters=(1,))
def _split(graph: Graph, node: Node) -> list[ConvertedOp]:
    shape = _sizes(graph, node)
    axis = int(attribute(node, "axis", 0)) % len(shape)
    steps, start = [], 0
    for index, output in enumerate(node.outputs):
        if not output:
            raise unsupported(node, "every output must have a name.")
        to = tuple(graph.shapes[output])
        starts = tuple(start if i == axis else 0 for i in range(len(shape)))
        op = SliceNd(shapes=(shape,), starts=starts, steps=(1,) * len(shape), to=to)
        steps.append(_step(node, op, index))
        start += to[axis]
    return steps


@converts("Pad", parameters=(1, 2, 3))
def _pad(graph: Graph, node: Node) -> list[ConvertedOp]:
    shape = _sizes(graph, node)
    pads = ints(parameter(graph, node, "pads", 1))
    value = float(np.asarray(parameter(graph, node, "value", 2, 0.0)).reshape(-1)[0])
    axes = ints(constant_input(graph, node, 3, range(len(shape))))
    before, after = [0] * len(shape), [0] * len(shape)
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    mode = attribute(node, "mode", "constant")
    op = PadNd(
        shapes=(shape,), before=tuple(before), after=tuple(after), mode=mode,
        value=value if mode == "constant" else 0.0,
    )  # fmt: skip
    return [_step(node, op)]


def _stretched(node: Node, shape: Sizes, repeats: Sizes) -> list[ConvertedOp]:
    """The input under `shape`, repeated along each axis."""
    return [_step(node, TileNd(shapes=(shape,), repeats=repeats))]


@converts("Tile", parameters=(1,))
def _tile(graph: Graph, node: Node) -> list[ConvertedOp]:
    return _stretched(node, _sizes(graph, node), ints(constant_input(graph, node, 1)))


@converts("Expand", parameters=(1,))
def _expand(graph: Graph, node: Node) -> list[ConvertedOp]:
    shape, to = _sizes(graph, node), tuple(graph.shapes[node.outputs[0]])
    shape = (1,) * (len(to) - len(shape)) + shape
    return _stretched(node, shape, tuple(n // size for n, size in zip(to, shape, strict=True)))


@converts("Concat")
def _concat(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Concatenation: of channels for images, otherwise of any axis."""
    shapes = tuple(_sizes(graph, node, index) for index in range(len(node.inputs)))
    axis = int(attribute(node, "axis", 1)) % len(shapes[0])
    if len(shapes[0]) == 4 and axis == 1:
        op: Op = Concat(inputs=tuple(as_nchw(shape) for shape in shapes))
    else:
        op = ConcatNd(shapes=shapes, axis=axis)
    return [ConvertedOp(op, node.inputs, node.outputs[0])]


@converts("Gather")
def _gather(graph: Graph, node: Node) -> list[ConvertedOp]:
    data, indices = _sizes(graph, node), _sizes(graph, node, 1)
    axis = int(attribute(node, "axis", 0)) % len(data)
    op = Gather(shapes=(data, indices), axis=axis)
    return [ConvertedOp(op, node.inputs[:2], node.outputs[0])]
