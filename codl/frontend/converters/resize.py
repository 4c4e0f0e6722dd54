"""Resize and Upsample along any axes, two at a time where they are the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
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
from codl.ir.ops.nd import Numbers, Sizes
from codl.ir.ops.resize import Resize
from codl.ir.ops.window import Size2
from codl.ir.region import Shape, as_nchw

AMBIGUOUS = "which of two elements is nearest is a matter of rounding."


@dataclass(frozen=True)
class _Axes:
    """What happens to every axis of a tensor: sizes, scales, and the crop of each.

    As in ONNX Runtime, an axis of scale 1 is not cropped.
    """

    sizes: Sizes
    to: Sizes
    scales: Numbers
    starts: Numbers
    ends: Numbers

    @property
    def changed(self) -> list[int]:
        kept = zip(self.sizes, self.to, self.scales, strict=True)
        return [i for i, (n, to, scale) in enumerate(kept) if n != to or scale != 1]


@converts("Upsample", parameters=(1,))
@converts("Resize", parameters=(1, 2, 3))
def _resize(graph: Graph, node: Node) -> list[ConvertedOp]:
    if attribute(node, "antialias", 0):
        raise unsupported(node, "antialias must be 0.")
    sizes, to = tuple(graph.shapes[node.inputs[0]]), tuple(graph.shapes[node.outputs[0]])
    old = len(node.inputs) < 3  # Upsample, and Resize up to opset 10
    coords = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if coords == "half_pixel_symmetric" and attribute(node, "mode", "nearest") == "nearest":
        raise unsupported(node, AMBIGUOUS)
    axes = _axes(graph, node, sizes, to)
    rule: dict[str, Any] = {
        "mode": attribute(node, "mode", "nearest"),
        "coords": "asymmetric" if old else coords,
        "rounding": "simple" if old else attribute(node, "nearest_mode", "round_prefer_floor"),
        "cubic_a": round(float(attribute(node, "cubic_coeff_a", -0.75)), 7),
        "exclude_outside": bool(attribute(node, "exclude_outside", 0)),
        "outside": float(attribute(node, "extrapolation_value", 0.0)),
    }
    return _steps(node, axes, rule)


def _axes(graph: Graph, node: Node, sizes: Sizes, to: Sizes) -> _Axes:
    """Scales and crops of all axes; the node may give them for some."""
    rank = len(sizes)
    named = [int(axis) % rank for axis in attribute(node, "axes", range(rank))]
    scales, starts, ends = [1.0] * rank, [0.0] * rank, [1.0] * rank
    for axis, scale in zip(named, _scales(graph, node, sizes, to, named), strict=True):
        scales[axis] = float(scale)
    if attribute(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        roi = constant_input(graph, node, 1).reshape(2, -1)
        for axis, start, end in zip(named, *roi, strict=True):
            if sizes[axis] != to[axis] or scales[axis] != 1:
                starts[axis], ends[axis] = float(start), float(end)
    return _Axes(sizes, to, tuple(scales), tuple(starts), tuple(ends))


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
    return [(min if policy == "not_larger" else max)(ratios)] * len(named)


def _steps(node: Node, axes: _Axes, rule: Mapping[str, Any]) -> list[ConvertedOp]:
    """A resize of the last two axes, or one of one axis after the other."""
    rank, changed = len(axes.sizes), axes.changed
    if not changed:
        op = Reshape(shapes=(axes.sizes,), to=axes.to)
        return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
    if rank == 4 and min(changed) >= 2:
        return [_step(node, axes, rule, as_nchw(axes.sizes), (2, 3), node.inputs[0], "")]
    steps, source, sizes = [], node.inputs[0], list(axes.sizes)
    for axis in changed:
        shape = Shape(1, prod(sizes[:axis]), sizes[axis], prod(sizes[axis + 1 :]))
        name = "" if axis == changed[-1] else f".{axis}"
        steps.append(_step(node, axes, rule, shape, (axis, None), source, name))
        source, sizes[axis] = steps[-1].output, axes.to[axis]
    return steps


def _step(
    node: Node, axes: _Axes, rule: Mapping[str, Any], shape: Shape,
    taken: tuple[int, int | None], source: str, name: str,
) -> ConvertedOp:  # fmt: skip
    """A resize of the rows of `shape`, which are an axis, and its columns, which may be one."""
    h, w = taken
    to = (axes.to[h], shape.w if w is None else axes.to[w])
    scales = (axes.scales[h], 1.0 if w is None else axes.scales[w])
    starts = (axes.starts[h], 0.0 if w is None else axes.starts[w])
    ends = (axes.ends[h], 1.0 if w is None else axes.ends[w])
    natural = all(np.float32(b / a) == np.float32(s)
                  for a, b, s in zip(shape[2:], to, scales, strict=True))  # fmt: skip
    op = Resize(
        inputs=(shape,),
        size=Size2(*to),
        scales=() if natural else scales,
        roi=() if rule["coords"] != "tf_crop_and_resize" else (*starts, *ends),
        **rule,
    )
    if op.nearly_ties:
        raise unsupported(node, AMBIGUOUS)
    return ConvertedOp(op, (source,), node.outputs[0] + name)
