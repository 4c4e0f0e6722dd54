"""Converter of Resize and Upsample along the last one or two axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    constant_input,
    converts,
    has_input,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.movement import Reshape
from codl.ir.ops.nd import Sizes
from codl.ir.ops.resize import COORDS, Axis, Resize
from codl.ir.ops.window import Size2
from codl.ir.region import as_nchw

AMBIGUOUS = "which of two elements is nearest is a matter of rounding."


@converts("Upsample", parameters=(1,))
@converts("Resize", parameters=(1, 2, 3))
def _resize(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes, to = tuple(graph.shapes[node.inputs[0]]), tuple(graph.shapes[node.outputs[0]])
    if sizes == to:  # ONNX Runtime copies for any scales
        return [ConvertedOp(Reshape(shapes=(sizes,), to=to), node.inputs[:1], node.outputs[0])]
    if attribute(node, "antialias", 0):
        raise unsupported(node, "antialias must be 0.")
    old = len(node.inputs) < 3  # Upsample, and Resize up to opset 10
    coords = attribute(node, "coordinate_transformation_mode", "half_pixel")
    rule: dict[str, Any] = {
        "mode": attribute(node, "mode", "nearest"),
        "coords": "asymmetric" if old else coords,
        "rounding": "simple" if old else attribute(node, "nearest_mode", "round_prefer_floor"),
    }
    if rule["mode"] == "cubic" or rule["coords"] not in COORDS:
        raise unsupported(node, f"it is {rule['mode']}, by {rule['coords']}.")
    axes = _axes(graph, node, sizes, to)
    if len(sizes) not in (3, 4) or any(map(_is_changed, axes[:2])):
        raise unsupported(node, f"rows and columns are resized, got {sizes} to {to}.")
    rows, columns = (*axes[2:], Axis(1, 1, 1.0))[:2]
    natural = all(np.float32(x.to / x.size) == np.float32(x.scale) for x in (rows, columns))
    op = Resize(
        inputs=(as_nchw(sizes),),
        size=Size2(rows.to, columns.to),
        scales=() if natural else (rows.scale, columns.scale),
        **rule,
    )
    if op.nearly_ties:
        raise unsupported(node, AMBIGUOUS)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]


def _axes(graph: Graph, node: Node, sizes: Sizes, to: Sizes) -> list[Axis]:
    """The resize of each axis; unnamed axes stay."""
    axes = [Axis(size, new, 1.0) for size, new in zip(sizes, to, strict=True)]
    named = [int(axis) % len(sizes) for axis in attribute(node, "axes", range(len(sizes)))]
    for axis, scale in zip(named, _scales(graph, node, sizes, named), strict=True):
        axes[axis] = axes[axis]._replace(scale=float(scale))
    return axes


def _is_changed(axis: Axis) -> bool:
    return axis.size != axis.to or axis.scale != 1


def _scales(graph: Graph, node: Node, sizes: Sizes, named: list[int]) -> list[float] | Any:
    """Scales of the named axes, from the node or from its sizes."""
    if len(node.inputs) < 3:
        return constant_input(graph, node, 1, attribute(node, "scales", None))
    if has_input(node, 2) and graph.constants[node.inputs[2]].size:
        return constant_input(graph, node, 2)
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        raise unsupported(node, "keep_aspect_ratio_policy must be stretch.")
    wanted = constant_input(graph, node, 3)
    return [np.float32(n) / np.float32(sizes[a]) for n, a in zip(wanted, named, strict=True)]
