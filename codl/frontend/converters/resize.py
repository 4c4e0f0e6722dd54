"""Resize and Upsample along any axes, two at a time where they are the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    between,
    constant_input,
    converts,
    has_input,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.movement import Reshape
from codl.ir.ops.nd import Sizes
from codl.ir.ops.resize import Axis, Resize
from codl.ir.ops.window import Size2
from codl.ir.region import Shape, as_nchw

AMBIGUOUS = "which of two elements is nearest is a matter of rounding."


@converts("Upsample", parameters=(1,))
@converts("Resize", parameters=(1, 2, 3))
def _resize(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes, to = tuple(graph.shapes[node.inputs[0]]), tuple(graph.shapes[node.outputs[0]])
    if sizes == to:  # whatever the scales are, ONNX Runtime copies
        return [ConvertedOp(Reshape(shapes=(sizes,), to=to), node.inputs[:1], node.outputs[0])]
    if attribute(node, "antialias", 0):
        raise unsupported(node, "antialias must be 0.")
    old = len(node.inputs) < 3  # Upsample, and Resize up to opset 10
    coords = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if coords == "half_pixel_symmetric" and attribute(node, "mode", "nearest") == "nearest":
        raise unsupported(node, AMBIGUOUS)
    rule: dict[str, Any] = {
        "mode": attribute(node, "mode", "nearest"),
        "coords": "asymmetric" if old else coords,
        "rounding": "simple" if old else attribute(node, "nearest_mode", "round_prefer_floor"),
        "cubic_a": round(float(attribute(node, "cubic_coeff_a", -0.75)), 7),
        "exclude_outside": bool(attribute(node, "exclude_outside", 0)),
        "outside": float(attribute(node, "extrapolation_value", 0.0)),
    }
    return _steps(graph, node, _axes(graph, node, sizes, to), rule)


def _axes(graph: Graph, node: Node, sizes: Sizes, to: Sizes) -> list[Axis]:
    """What happens to every axis; the node may say it of some.

    As in ONNX Runtime, an axis of scale 1 is not cropped.
    """
    axes = [Axis(size, new, 1.0) for size, new in zip(sizes, to, strict=True)]
    named = [int(axis) % len(sizes) for axis in attribute(node, "axes", range(len(sizes)))]
    for axis, scale in zip(named, _scales(graph, node, sizes, to, named), strict=True):
        axes[axis] = axes[axis]._replace(scale=float(scale))
    if attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        roi = constant_input(graph, node, 1).reshape(2, -1)
        for axis, start, end in zip(named, *roi, strict=True):
            if _is_changed(axes[axis]):
                axes[axis] = axes[axis]._replace(start=float(start), end=float(end))
    return axes


def _is_changed(axis: Axis) -> bool:
    return axis.size != axis.to or axis.scale != 1


def _scales(
    graph: Graph, node: Node, sizes: Sizes, to: Sizes, named: list[int]
) -> list[float] | Any:
    """The scales of the axes that the node names: given, or as its sizes have them."""
    if len(node.inputs) < 3:
        return constant_input(graph, node, 1, attribute(node, "scales", None))
    if has_input(node, 2) and graph.constants[node.inputs[2]].size:
        return constant_input(graph, node, 2)
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    wanted = constant_input(graph, node, 3)
    ratios = [np.float32(n) / np.float32(sizes[a]) for n, a in zip(wanted, named, strict=True)]
    if policy == "stretch":
        return ratios
    if min(attribute(node, "axes", (0,))) < 0:
        raise unsupported(node, f"ONNX Runtime leaves axes below 0 as they are, under {policy!r}.")
    return [(min if policy == "not_larger" else max)(ratios)] * len(named)


def _steps(
    graph: Graph, node: Node, axes: list[Axis], rule: Mapping[str, Any]
) -> list[ConvertedOp]:
    """A resize of the last two axes, or one of one axis after the other."""
    sizes, output = [axis.size for axis in axes], node.outputs[0]
    changed = [at for at, axis in enumerate(axes) if _is_changed(axis)]
    if len(axes) == 4 and min(changed) >= 2:
        resize = _resize_of(node, as_nchw(tuple(sizes)), axes[2], axes[3], rule)
        return [ConvertedOp(resize, node.inputs[:1], output)]
    steps, source = [], node.inputs[0]
    for at in changed:
        shape = Shape(1, prod(sizes[:at]), sizes[at], prod(sizes[at + 1 :]))
        resize = _resize_of(node, shape, axes[at], Axis(shape.w, shape.w, 1.0), rule)
        name = output if at == changed[-1] else between(graph, node, str(at))
        steps.append(ConvertedOp(resize, (source,), name))
        source, sizes[at] = name, axes[at].to
    return steps


def _resize_of(
    node: Node, shape: Shape, rows: Axis, columns: Axis, rule: Mapping[str, Any]
) -> Resize:
    both = (rows, columns)
    natural = all(np.float32(axis.to / axis.size) == np.float32(axis.scale) for axis in both)
    crops = (rows.start, columns.start, rows.end, columns.end)
    op = Resize(
        inputs=(shape,),
        size=Size2(rows.to, columns.to),
        scales=() if natural else (rows.scale, columns.scale),
        roi=crops if rule["coords"] == "tf_crop_and_resize" else (),
        **rule,
    )
    if op.nearly_ties:
        raise unsupported(node, AMBIGUOUS)
    return op
