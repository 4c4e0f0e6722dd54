"""Converters of reductions, softmax, norms and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from onnx import TensorProto

from codl.frontend.converters.base import (
    ConvertedOp,
    Operand,
    Steps,
    attribute,
    between,
    constant_input,
    converts,
    has_input,
    ints,
    number,
    parameter,
    seen,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.patterns import SPELLED_OUT, attention_op
from codl.ir.onnx_node import Node
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.nd import Sizes
from codl.ir.ops.reductions import Channels, Norm, Reduce, Softmax
from codl.ir.ops.window import Pool2d, Size2
from codl.ir.region import as_nchw

#: Reductions and their modes.
MODES: Mapping[str, str] = {
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}
#: Modes of which a reduction over separate axes is not a sequence of reductions.
OF_NEIGHBOURS = ("log_sum", "sum_square")
#: Reductions of whole images are poolings, which have kernels on both processors.
POOLINGS: Mapping[str, Literal["max", "avg"]] = {"mean": "avg", "max": "max"}


def _runs(sizes: Sizes, axes: Sizes) -> list[list[int]]:
    """Runs of adjacent axes, in ascending order."""
    runs: list[list[int]] = []
    for axis in sorted({axis % len(sizes) for axis in axes}):
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


@converts(*MODES, parameters=(1,))
def _reduce(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps, mode = Steps(graph, node), MODES[node.type]
    x = steps.operand(node.inputs[0])
    named = parameter(graph, node, "axes", 1)
    axes = () if named is None else ints(named)
    if not axes and attribute(node, "noop_with_empty_axes", 0):
        raise unsupported(node, "without axes, nothing is reduced.")
    axes = axes or tuple(range(len(x.sizes)))
    if len(x.sizes) == 4 and {axis % 4 for axis in axes} == {2, 3} and mode in POOLINGS:
        shape = as_nchw(x.sizes)
        pool = Pool2d(inputs=(shape,), mode=POOLINGS[mode], kernel=Size2(shape.h, shape.w))
        return [ConvertedOp(pool, node.inputs[:1], node.outputs[0])]
    runs = _runs(x.sizes, axes)
    if not runs or (len(runs) > 1 and mode in OF_NEIGHBOURS):
        raise unsupported(node, f"the axes {axes} of {x.sizes} are no neighbours.")
    keepdims = bool(attribute(node, "keepdims", 1))
    for run in reversed(runs):  # the last one first, as it may take axes off
        op = Reduce(shapes=(x.sizes,), mode=mode, axes=tuple(run), keepdims=keepdims)
        x = steps.apply(op, (x,), "" if run is runs[0] else f"axis{run[0]}")
    return steps.made


@converts("Softmax", "LogSoftmax")
def _softmax(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Softmax over one axis; up to opset 12, over all axes from `axis` on."""
    sizes = tuple(graph.shapes[node.inputs[0]]) or (1,)
    flat = graph.opset < 13
    axis = int(attribute(node, "axis", 1 if flat else -1)) % len(sizes)
    axes = tuple(range(axis, len(sizes))) if flat else (axis,)
    op = Softmax(shapes=(sizes,), axes=axes, log=node.type == "LogSoftmax")
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]


def _epsilon(node: Node) -> float:
    return number(attribute(node, "epsilon", 1e-5))


@converts("BatchNormalization", parameters=(1, 2, 3, 4))
def _batch_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """x * slope + start; for images a depthwise 1x1 convolution, which splits in each dimension."""
    if attribute(node, "training_mode", 0):
        raise unsupported(node, "only inference is known, training_mode must be 0.")
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    rank, c = len(x.sizes), x.sizes[1]
    scale, bias, mean, variance = (
        constant_input(graph, node, index).astype(np.float64) for index in range(1, 5)
    )
    slope = scale / np.sqrt(variance + _epsilon(node))
    start = bias - mean * slope
    if rank in (3, 4):
        weights = {"weight": slope.reshape(c, 1, 1, 1), "bias": start.reshape(c)}
        weights = {key: np.asarray(value, np.float32) for key, value in weights.items()}
        op = Conv2d(inputs=(as_nchw(x.sizes),), out_channels=c, kernel=Size2(1, 1), groups=c)
        return [ConvertedOp(op, (x.name,), node.outputs[0], weights)]
    wide = (1, c, *[1] * (rank - 2))
    product = steps.combine("mul", x, steps.constant("slope", slope.reshape(wide)), "product")
    steps.combine("add", product, steps.constant("start", start.reshape(wide)))
    return steps.made


@converts("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _scaled_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """A norm with scale and bias, which are own steps if the kernels do not support them."""
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    rank = len(x.sizes)
    axis, center = int(attribute(node, "axis", -1)) % rank, node.type == "LayerNormalization"
    scale, *biases = (
        seen(operand, (1,) * (rank - len(operand.sizes)) + operand.sizes)
        for operand in map(steps.operand, filter(None, node.inputs[1:3]))
    )
    none = np.zeros(scale.sizes, np.float32)
    zeros = Operand(between(graph, node, "zeros"), scale.sizes, none)
    bias = biases[0] if biases else zeros
    rule = {"axis": axis, "epsilon": _epsilon(node), "center": center}
    if scale.sizes == bias.sizes and Channels.of(scale.sizes, x.sizes) is not None:
        op = Norm(shapes=(x.sizes, scale.sizes, bias.sizes), **rule)  # type: ignore[arg-type]
        constants = {zeros.name: none} if bias is zeros else {}
        names = (x.name, scale.name, bias.name)
        return [ConvertedOp(op, names, node.outputs[0], constants=constants)]
    normal = steps.apply(Norm(shapes=(x.sizes,), **rule), (x,), "normal")  # type: ignore[arg-type]
    steps.combine("add", steps.combine("mul", normal, scale, "product"), bias)
    return steps.made


@converts("InstanceNormalization", "GroupNormalization")
def _group_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Scale and bias are per group in opset 18, and per channel in later ones."""
    sizes, output = tuple(graph.shapes[node.inputs[0]]), node.outputs[0]
    channels, names, constants = sizes[1], list(node.inputs[1:3]), {}
    groups = channels
    if node.type == "GroupNormalization":
        groups = int(attribute(node, "num_groups", 1))
    for index, name in enumerate(names):
        if graph.shapes[name] != (channels,):
            value = constant_input(graph, node, index + 1).astype(np.float32)
            names[index] = between(graph, node, f"channels{index}")
            constants[names[index]] = np.repeat(value, channels // groups)
    affine = (1, channels, *[1] * (len(sizes) - 2))
    op = Norm(shapes=(sizes, affine, affine), axis=1, groups=groups, epsilon=_epsilon(node))
    return [ConvertedOp(op, (node.inputs[0], *names), output, constants=constants)]


#: Finite stand-in for -inf in constant masks; its sum with a score is finite.
LOW = np.float32(-1e38)
#: Attributes that only ONNX Runtime's attention knows, by the value without an effect.
OTHERS = {"softcap": 0.0, "left_window_size": -1, "right_window_size": -1}


@converts("Attention")
def _attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: q, k, v and a mask; a flat q has the axes (images, tokens, heads * features)."""
    if any(map(graph.is_read, node.outputs[1:])) or any(node.inputs[4:]):
        raise unsupported(node, "past keys, counts of keys and scores are not known.")
    for name, usual in OTHERS.items():
        if attribute(node, name, usual) != usual:
            raise unsupported(node, f"{name} must be {usual}, got {node.attributes[name]}.")
    steps = Steps(graph, node)
    q, k, v = map(steps.operand, node.inputs[:3])
    flat = len(q.sizes) == 3
    if flat:
        heads = [int(attribute(node, f"{part}_num_heads", 0)) for part in ("q", "kv", "kv")]
        q, k, v = (_by_heads(steps, *pair) for pair in zip((q, k, v), heads, strict=True))
    masks = [_mask(steps, node.inputs[3])] if has_input(node, 3) else []
    op = attention_op(
        *(x.sizes for x in (q, k, v, *masks)),
        scale=float(attribute(node, "scale", 0.0)) or float(q.sizes[-1] ** -0.5),
        causal=bool(attribute(node, "is_causal", 0)),
        zeros=bool(masks) and not attribute(node, SPELLED_OUT, 0),
    )
    if op is None:
        sizes = [x.sizes for x in (q, k, v, *masks)]
        raise unsupported(node, f"q, k, v and the mask do not fit one op: {sizes}.")
    y = steps.apply(op, (q, k, v, *masks), "attended" if flat else "")
    if flat:
        n, heads_of_q, tokens, features = y.sizes
        steps.transpose(y, (0, 2, 1, 3), "", to=(n, tokens, heads_of_q * features))
    return steps.made


def _by_heads(steps: Steps, x: Operand, heads: int) -> Operand:
    """(images, tokens, heads * features) as (images, heads, tokens, features)."""
    if len(x.sizes) != 3 or heads < 1 or x.sizes[2] % heads:
        reason = f"{x.name!r} must be (images, tokens, features of {heads} heads), got {x.sizes}."
        raise unsupported(steps.node, reason)
    n, tokens, width = x.sizes
    return steps.transpose(x, (0, 2, 1, 3), "heads", axes=(n, tokens, heads, width // heads))


def _mask(steps: Steps, name: str) -> Operand:
    """A mask of 4 axes that is added to scores; a constant one may be of booleans."""
    mask, constant = steps.operand(name), steps.graph.constants.get(name)
    wide = seen(mask, (1,) * (4 - len(mask.sizes)) + mask.sizes)
    if constant is None and steps.graph.types.get(name) == TensorProto.BOOL:
        raise unsupported(steps.node, f"the mask {name!r} of booleans must be a constant.")
    if constant is None:
        return wide
    value = np.where(constant, 0, -np.inf) if constant.dtype == bool else constant
    hides_all = np.isneginf(value).all(axis=-1).any()
    return steps.constant(
        "mask", (value if hides_all else np.clip(value, LOW, None)).reshape(wide.sizes)
    )
