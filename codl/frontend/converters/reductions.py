"""Reductions, softmax and norms, of any axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    between,
    converts,
    has_input,
    ints,
    number,
    parameter,
    unsupported,
)
from codl.frontend.converters.steps import Operand, Steps, seen
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.nd import Sizes
from codl.ir.ops.norm import Channels, Norm
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.reductions import Reduce, Softmax
from codl.ir.ops.window import Size2
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
#: The mode of the first of several reductions, and of all others but the last, where it is another.
FIRST = {"log_sum": "sum"}
LATER = {"sum_square": "sum", "log_sum": "sum"}
LAST = {"sum_square": "sum"}
#: Reductions of whole images are poolings, which every processor has kernels for.
POOLINGS: Mapping[str, Literal["max", "avg"]] = {"mean": "avg", "max": "max"}


def reduced(
    steps: Steps, x: Operand, mode: str, axes: Sizes, word: str = "", *, keepdims: bool = True
) -> Operand:
    """A tensor reduced along any axes: a step for each run of adjacent ones, the last run first.

    Along no axis, there remains what the mode does with a single element.
    """
    if not axes:
        x, axes, keepdims = seen(x, (*x.sizes, 1)), (len(x.sizes),), False
    name = steps.name(word)
    runs = list(_runs(x.sizes, axes))
    for index, run in enumerate(reversed(runs)):
        first, last = index == 0, index == len(runs) - 1
        table = {} if first and last else FIRST if first else LAST if last else LATER
        op = Reduce(shapes=(x.sizes,), mode=table.get(mode, mode), axes=run, keepdims=keepdims)
        output = name if last else steps.graph.names.tensor(name, str(index))
        x = steps.append(op, (x,), output)
    return x


def _runs(sizes: Sizes, axes: Sizes) -> Iterator[Sizes]:
    """Runs of adjacent axes, in order."""
    run: list[int] = []
    for axis in sorted({axis % len(sizes) for axis in axes}):
        if run and axis != run[-1] + 1:
            yield tuple(run)
            run = []
        run.append(axis)
    yield tuple(run)


@converts(*MODES, parameters=(1,))
def _reduce(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps, mode = Steps(graph, node), MODES[node.type]
    x = steps.operand(node.inputs[0])
    named = parameter(graph, node, "axes", 1)
    axes = () if named is None else ints(named)
    if not axes and not attribute(node, "noop_with_empty_axes", 0):
        axes = tuple(range(len(x.sizes)))
    if len(x.sizes) == 4 and {axis % 4 for axis in axes} == {2, 3} and mode in POOLINGS:
        shape = as_nchw(x.sizes)
        op = Pool2d(inputs=(shape,), mode=POOLINGS[mode], kernel=Size2(shape.h, shape.w))
        return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
    reduced(steps, x, mode, axes, keepdims=bool(attribute(node, "keepdims", 1)))
    return steps.made


@converts("Softmax", "LogSoftmax")
def _softmax(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Along one axis; up to opset 12, along all axes from one on."""
    sizes = tuple(graph.shapes[node.inputs[0]]) or (1,)
    flat = graph.opset < 13
    axis = int(attribute(node, "axis", 1 if flat else -1)) % len(sizes)
    axes = tuple(range(axis, len(sizes))) if flat else (axis,)
    op = Softmax(shapes=(sizes,), axes=axes, log=node.type == "LogSoftmax")
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]


def _norm_mode(node: Node) -> str:
    power = int(attribute(node, "p", 2))
    if power not in (1, 2):
        raise unsupported(node, f"p must be 1 or 2, got {power}.")
    return f"l{power}"


@converts("GlobalLpPool")
def _global_lp_pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    reduced(steps, x, _norm_mode(node), tuple(range(2, len(x.sizes))))
    return steps.made


@converts("LpNormalization")
def _lp_normalization(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Divided by its norm; where that is 0, by 1.

    No least norm stands in for the 0: float16 has none that float32 would not call large.
    """
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    axis = int(attribute(node, "axis", -1)) % len(x.sizes)
    norm = reduced(steps, x, _norm_mode(node), (axis,), "norm")
    none = steps.combine("sub", Operand.number(1.0), steps.function("sign", norm, "sign"), "none")
    steps.combine("div", x, steps.combine("add", norm, none, "divisor"))
    return steps.made


def _epsilon(node: Node) -> float:
    return number(attribute(node, "epsilon", 1e-5))


@converts("BatchNormalization")
def _batch_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """x * slope + start, both computed here where all parameters are constants.

    Of images that is a depthwise convolution of one tap: one op, which can be split either way.
    """
    if attribute(node, "training_mode", 0):
        raise unsupported(node, "only inference is known, training_mode must be 0.")
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    rank, channels = len(x.sizes), graph.shapes[node.inputs[1]]
    slope, start = _affine(steps, (1, *channels, *[1] * (rank - 2)))
    if slope.value is not None and start.value is not None and rank in (3, 4):
        c = x.sizes[1]
        weights = {"weight": slope.value.reshape(c, 1, 1, 1), "bias": start.value.reshape(c)}
        op = Conv2d(inputs=(as_nchw(x.sizes),), out_channels=c, kernel=Size2(1, 1), groups=c)
        return [ConvertedOp(op, (x.name,), node.outputs[0], weights)]
    steps.combine("add", steps.combine("mul", x, slope, "product"), start)
    return steps.made


def _affine(steps: Steps, sizes: Sizes) -> tuple[Operand, Operand]:
    """scale / sqrt(variance + epsilon), and bias - mean times that; steps where not constant."""
    epsilon = _epsilon(steps.node)
    parts = [steps.operand(name, sizes) for name in steps.node.inputs[1:5]]
    values = [None if part.value is None else part.value.reshape(sizes) for part in parts]
    a, b, m, v = values
    if a is not None and b is not None and m is not None and v is not None:
        factor = a.astype(np.float64) / np.sqrt(v.astype(np.float64) + epsilon)
        return steps.constant("slope", factor), steps.constant("start", b - m * factor)
    scale, bias, mean, variance = parts
    wide = steps.combine("add", variance, Operand.number(epsilon), "wide")
    slope = steps.combine("div", scale, steps.function("sqrt", wide, "root"), "slope")
    return slope, steps.combine("sub", bias, steps.combine("mul", mean, slope, "shift"), "start")


@converts("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def _scaled_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """A norm with its scale and bias, as steps of their own where the kernels cannot do them."""
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    rank = len(x.sizes)
    axis, center = int(attribute(node, "axis", -1)) % rank, node.type == "LayerNormalization"
    if center:
        _statistics(steps, x, axis)
    scale = _led(steps.operand(node.inputs[1]), rank)
    none = np.zeros(scale.sizes, np.float32)
    zeros = Operand(between(graph, node, "zeros"), scale.sizes, none)
    bias = _led(steps.operand(node.inputs[2]), rank) if has_input(node, 2) else zeros
    rule = {"axis": axis, "epsilon": _epsilon(node), "center": center}
    if scale.sizes == bias.sizes and Channels.of(scale.sizes, x.sizes) is not None:
        op = Norm(shapes=(x.sizes, scale.sizes, bias.sizes), **rule)  # type: ignore[arg-type]
        constants = {zeros.name: none} if bias is zeros else {}
        names = (x.name, scale.name, bias.name)
        return [*steps.made, ConvertedOp(op, names, node.outputs[0], constants=constants)]
    normal = steps.apply(Norm(shapes=(x.sizes,), **rule), (x,), "normal")  # type: ignore[arg-type]
    steps.combine("add", steps.combine("mul", normal, scale, "product"), bias)
    return steps.made


def _led(operand: Operand, rank: int) -> Operand:
    """The operand with axes of size 1 in front, up to a rank."""
    sizes = (1,) * (rank - len(operand.sizes)) + operand.sizes
    return Operand(operand.name, sizes, operand.value)


def _statistics(steps: Steps, x: Operand, axis: int) -> None:
    """The optional outputs of a layer norm: the mean, and 1 over the standard deviation."""
    mean_name, spread_name = (*steps.node.outputs[1:3], "", "")[:2]
    if not mean_name and not spread_name:
        return
    axes = tuple(range(axis, len(x.sizes)))
    mean = reduced(steps, x, "mean", axes, "mean")
    if spread_name:
        variance = _variance(steps, steps.combine("sub", x, mean, "apart"), axes)
        wide = steps.combine("add", variance, Operand.number(_epsilon(steps.node)), "wide")
        root = steps.function("sqrt", wide, "root")
        steps.finish(steps.function("reciprocal", root, "spread"), spread_name)
    if mean_name:
        steps.finish(mean, mean_name)


def _variance(steps: Steps, apart: Operand, axes: Sizes) -> Operand:
    """The mean of squares of what is apart from its mean."""
    return reduced(steps, steps.combine("mul", apart, apart, "square"), "mean", axes, "variance")


@converts("InstanceNormalization", "GroupNormalization")
def _group_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Opset 18 has a scale and bias for each group, later ones for each channel."""
    steps = Steps(graph, node)
    sizes, output = tuple(graph.shapes[node.inputs[0]]), node.outputs[0]
    channels, names, constants = sizes[1], list(node.inputs[1:3]), {}
    groups = channels
    if node.type == "GroupNormalization":
        groups = int(attribute(node, "num_groups", 1))
    for index, name in enumerate(names):
        if graph.shapes[name] == (channels,):
            continue
        part = steps.operand(name, (groups, 1))
        names[index] = between(graph, node, f"channels{index}")
        if part.value is not None:
            constants[names[index]] = np.repeat(part.value, channels // groups)
        else:
            ones = np.ones((1, channels // groups), np.float32)
            steps.combine("mul", part, Operand("ones", ones.shape, ones), f"channels{index}")
    affine = (1, channels, *[1] * (len(sizes) - 2))
    op = Norm(shapes=(sizes, affine, affine), axis=1, groups=groups, epsilon=_epsilon(node))
    inputs = (node.inputs[0], *names)
    return [*steps.made, ConvertedOp(op, inputs, output, constants=constants)]


@converts("MeanVarianceNormalization")
def _mean_variance(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Over any axes, the batch's too: from the means of elements and of squares about them."""
    steps = Steps(graph, node)
    x = steps.operand(node.inputs[0])
    axes = tuple(int(a) % len(x.sizes) for a in attribute(node, "axes", (0, 2, 3)))
    apart = steps.combine("sub", x, reduced(steps, x, "mean", axes, "mean"), "apart")
    spread = steps.function("sqrt", _variance(steps, apart, axes), "spread")
    steps.combine("div", apart, steps.combine("add", spread, Operand.number(1e-9), "wide"))
    return steps.made
