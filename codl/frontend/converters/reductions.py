"""Reductions, softmax and norms, of any axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from codl.frontend.converters.base import (
    Convert,
    ConvertedOp,
    attribute,
    converts,
    has_input,
    number,
    parameter_ints,
    unsupported,
)
from codl.frontend.converters.steps import Operand, combine, function
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
    name: str, sizes: Sizes, mode: str, axes: Sizes, output: str, *, keepdims: bool
) -> list[ConvertedOp]:
    """Steps that reduce a tensor along any axes: one for each run of adjacent ones, last first.

    Along no axis, there remains what the mode does with a single element.
    """
    if not axes:
        sizes, axes, keepdims = (*sizes, 1), (len(sizes),), False
    steps = []
    runs = list(_runs(sizes, axes))
    for index, run in enumerate(reversed(runs)):
        first, last = index == 0, index == len(runs) - 1
        table = {} if first and last else FIRST if first else LAST if last else LATER
        op = Reduce(shapes=(sizes,), mode=table.get(mode, mode), axes=run, keepdims=keepdims)
        target = output if last else f"{output}.{index}"
        steps.append(ConvertedOp(op, (name,), target))
        name, sizes = target, op.out_sizes
    return steps


def _runs(sizes: Sizes, axes: Sizes) -> Iterator[Sizes]:
    """Runs of adjacent axes, in order."""
    run: list[int] = []
    for axis in sorted({axis % len(sizes) for axis in axes}):
        if run and axis != run[-1] + 1:
            yield tuple(run)
            run = []
        run.append(axis)
    yield tuple(run)


def _reduce(mode: str) -> Convert:
    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        sizes = tuple(graph.shapes[node.inputs[0]])
        axes = parameter_ints(graph, node, "axes", 1)
        if not axes:
            axes = () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(len(sizes)))
        keepdims = bool(attribute(node, "keepdims", 1))
        whole = len(sizes) == 4 and {axis % 4 for axis in axes} == {2, 3}
        if whole and mode in POOLINGS:
            op = Pool2d(inputs=(as_nchw(sizes),), mode=POOLINGS[mode], kernel=Size2(*sizes[2:]))
            return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
        return reduced(node.inputs[0], sizes, mode, axes, node.outputs[0], keepdims=keepdims)

    return convert


def _softmax(*, log: bool) -> Convert:
    """Along one axis; up to opset 12, along all axes from one on."""

    def convert(graph: Graph, node: Node) -> list[ConvertedOp]:
        sizes = tuple(graph.shapes[node.inputs[0]]) or (1,)
        flat = graph.opset < 13
        axis = int(attribute(node, "axis", 1 if flat else -1)) % len(sizes)
        axes = tuple(range(axis, len(sizes))) if flat else (axis,)
        op = Softmax(shapes=(sizes,), axes=axes, log=log)
        return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]

    return convert


def _norm_mode(node: Node) -> str:
    power = int(attribute(node, "p", 2))
    if power not in (1, 2):
        raise unsupported(node, f"p must be 1 or 2, got {power}.")
    return f"l{power}"


@converts("GlobalLpPool")
def _global_lp_pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes = tuple(graph.shapes[node.inputs[0]])
    axes = tuple(range(2, len(sizes)))
    return reduced(node.inputs[0], sizes, _norm_mode(node), axes, node.outputs[0], keepdims=True)


@converts("LpNormalization")
def _lp_normalization(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Divided by its norm; where that is 0, by 1.

    No least norm stands in for the 0: float16 has none that float32 would not call large.
    """
    sizes, output = tuple(graph.shapes[node.inputs[0]]), node.outputs[0]
    axis = int(attribute(node, "axis", -1)) % len(sizes)
    steps = reduced(
        node.inputs[0], sizes, _norm_mode(node), (axis,), f"{output}.norm", keepdims=True
    )
    norm = tuple(1 if i == axis else size for i, size in enumerate(sizes))
    found, sign, none, divisor = (
        Operand(f"{output}.{word}", norm) for word in ("norm", "sign", "none", "divisor")
    )
    return [
        *steps,
        function("sign", found, sign.name),
        combine(node, "sub", (Operand.number(1.0), sign), none.name),
        combine(node, "add", (found, none), divisor.name),
        combine(node, "div", (Operand.of(graph, node.inputs[0]), divisor), output),
    ]


converts("Softmax")(_softmax(log=False))
converts("LogSoftmax")(_softmax(log=True))
for _node_type, _mode in MODES.items():
    converts(_node_type, parameters=(1,))(_reduce(_mode))


def _epsilon(node: Node) -> float:
    return number(attribute(node, "epsilon", 1e-5))


def _per_channel(graph: Graph, name: str, rank: int) -> Operand:
    """A vector seen as the channels (axis 1) of a tensor of some rank."""
    return Operand.of(graph, name, (1, *graph.shapes[name], *[1] * (rank - 2)))


@converts("BatchNormalization")
def _batch_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """x * slope + start, both computed here where all parameters are constants.

    Of images that is a depthwise convolution of one tap: one op, which can be split either way.
    """
    if attribute(node, "training_mode", 0):
        raise unsupported(node, "only inference is known, training_mode must be 0.")
    x, output = Operand.of(graph, node.inputs[0]), node.outputs[0]
    rank = len(x.sizes)
    scale, bias, mean, variance = (_per_channel(graph, name, rank) for name in node.inputs[1:5])
    steps, (slope, start) = _affine(node, scale, bias, mean, variance)
    if slope.value is not None and start.value is not None and rank in (3, 4):
        c = x.sizes[1]
        weights = {"weight": slope.value.reshape(c, 1, 1, 1), "bias": start.value.reshape(c)}
        op = Conv2d(inputs=(as_nchw(x.sizes),), out_channels=c, kernel=Size2(1, 1), groups=c)
        return [ConvertedOp(op, (x.name,), output, weights)]
    product = Operand(f"{output}.product", x.sizes)
    return [
        *steps,
        combine(node, "mul", (x, slope), product.name),
        combine(node, "add", (product, start), output),
    ]


def _affine(
    node: Node, scale: Operand, bias: Operand, mean: Operand, variance: Operand
) -> tuple[list[ConvertedOp], tuple[Operand, Operand]]:
    """scale / sqrt(variance + epsilon), and bias - mean times that; steps where not constant."""
    output, sizes = node.outputs[0], scale.sizes
    slope, start = Operand(f"{output}.slope", sizes), Operand(f"{output}.start", sizes)
    a, b, m, v = (part.value for part in (scale, bias, mean, variance))
    if a is not None and b is not None and m is not None and v is not None:
        factor = a.astype(np.float64) / np.sqrt(v.astype(np.float64) + _epsilon(node))
        values = factor.astype(np.float32), (b - m * factor).astype(np.float32)
        return [], (Operand(slope.name, sizes, values[0]), Operand(start.name, sizes, values[1]))
    wide, root, shift = (Operand(f"{output}.{n}", sizes) for n in ("wide", "root", "shift"))
    epsilon = Operand.number(_epsilon(node))
    return [
        combine(node, "add", (variance, epsilon), wide.name),
        function("sqrt", wide, root.name),
        combine(node, "div", (scale, root), slope.name),
        combine(node, "mul", (mean, slope), shift.name),
        combine(node, "sub", (bias, shift), start.name),
    ], (slope, start)


@converts("LayerNormalization")
def _layer_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes = tuple(graph.shapes[node.inputs[0]])
    axis = int(attribute(node, "axis", -1)) % len(sizes)
    return [*_statistics(node, sizes, axis), *_scaled(graph, node, axis, center=True)]


@converts("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    axis = int(attribute(node, "axis", -1)) % len(graph.shapes[node.inputs[0]])
    return _scaled(graph, node, axis, center=False)


def _scaled(graph: Graph, node: Node, axis: int, *, center: bool) -> list[ConvertedOp]:
    """A norm with its scale and bias, as steps of their own where the kernels cannot do them."""
    x, output = Operand.of(graph, node.inputs[0]), node.outputs[0]
    rank = len(x.sizes)
    scale = _led(Operand.of(graph, node.inputs[1]), rank)
    zeros = Operand(f"{output}.zeros", scale.sizes, np.zeros(scale.sizes, np.float32))
    bias = _led(Operand.of(graph, node.inputs[2]), rank) if has_input(node, 2) else zeros
    epsilon = _epsilon(node)
    if scale.sizes == bias.sizes and Channels.of(scale.sizes, x.sizes) is not None:
        op = Norm(
            shapes=(x.sizes, scale.sizes, bias.sizes), axis=axis, epsilon=epsilon, center=center
        )
        constants = {zeros.name: np.zeros(scale.sizes, np.float32)} if bias is zeros else {}
        return [ConvertedOp(op, (x.name, scale.name, bias.name), output, constants=constants)]
    plain = Norm(shapes=(x.sizes,), axis=axis, epsilon=epsilon, center=center)
    normal, product = Operand(f"{output}.normal", x.sizes), Operand(f"{output}.product", x.sizes)
    return [
        ConvertedOp(plain, (x.name,), normal.name),
        combine(node, "mul", (normal, scale), product.name),
        combine(node, "add", (product, bias), output),
    ]


def _led(operand: Operand, rank: int) -> Operand:
    """The operand with axes of size 1 in front, up to a rank."""
    sizes = (1,) * (rank - len(operand.sizes)) + operand.sizes
    return Operand(operand.name, sizes, operand.value)


def _statistics(node: Node, sizes: Sizes, axis: int) -> list[ConvertedOp]:
    """The optional outputs of a layer norm: the mean, and 1 over the standard deviation."""
    wanted = [*node.outputs[1:3], "", ""][:2]
    if not any(wanted):
        return []
    output, axes = node.outputs[0], tuple(range(axis, len(sizes)))
    few = tuple(1 if i in axes else size for i, size in enumerate(sizes))
    x, mean = Operand(node.inputs[0], sizes), Operand(wanted[0] or f"{output}.mean", few)
    steps = reduced(x.name, sizes, "mean", axes, mean.name, keepdims=True)
    if wanted[1]:
        apart, square = Operand(f"{output}.apart", sizes), Operand(f"{output}.square", sizes)
        names = ("variance", "wide", "root")
        variance, wide, root = (Operand(f"{output}.{name}", few) for name in names)
        steps += [
            combine(node, "sub", (x, mean), apart.name),
            combine(node, "mul", (apart, apart), square.name),
            *reduced(square.name, sizes, "mean", axes, variance.name, keepdims=True),
            combine(node, "add", (variance, Operand.number(_epsilon(node))), wide.name),
            function("sqrt", wide, root.name),
            function("reciprocal", root, wanted[1]),
        ]
    return steps


@converts("InstanceNormalization")
def _instance_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    return _grouped(graph, node, graph.shapes[node.inputs[0]][1])


@converts("GroupNormalization")
def _group_norm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Opset 18 has a scale and bias for each group, later ones for each channel."""
    return _grouped(graph, node, int(attribute(node, "num_groups", 1)))


def _grouped(graph: Graph, node: Node, groups: int) -> list[ConvertedOp]:
    sizes, output = tuple(graph.shapes[node.inputs[0]]), node.outputs[0]
    channels, names = sizes[1], list(node.inputs[1:3])
    affine = (1, channels, *[1] * (len(sizes) - 2))
    steps, constants = [], {}
    for index, name in enumerate(names):
        if graph.shapes[name] == (channels,):
            continue
        own = Operand.of(graph, name, (groups, 1))
        names[index] = f"{output}.channels{index}"
        if own.value is not None:
            constants[names[index]] = np.repeat(own.value, channels // groups)
            continue
        ones = np.ones((1, channels // groups), np.float32)
        each = Operand("ones", ones.shape, ones)
        steps.append(combine(node, "mul", (own, each), names[index]))
    shapes = (sizes, affine, affine)
    op = Norm(shapes=shapes, axis=1, groups=groups, epsilon=_epsilon(node))
    return [*steps, ConvertedOp(op, (node.inputs[0], *names), output, constants=constants)]


@converts("MeanVarianceNormalization")
def _mean_variance(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Over any axes, the batch's too: from the means of elements and of squares about them."""
    sizes, output = tuple(graph.shapes[node.inputs[0]]), node.outputs[0]
    axes = tuple(int(a) % len(sizes) for a in attribute(node, "axes", (0, 2, 3)))
    few = tuple(1 if i in axes else size for i, size in enumerate(sizes))
    x = Operand.of(graph, node.inputs[0])
    mean, spread, wide = (Operand(f"{output}.{n}", few) for n in ("mean", "spread", "wide"))
    variance = Operand(f"{output}.variance", few)
    apart, square = Operand(f"{output}.apart", sizes), Operand(f"{output}.square", sizes)
    return [
        *reduced(x.name, sizes, "mean", axes, mean.name, keepdims=True),
        combine(node, "sub", (x, mean), apart.name),
        combine(node, "mul", (apart, apart), square.name),
        *reduced(square.name, sizes, "mean", axes, variance.name, keepdims=True),
        function("sqrt", variance, spread.name),
        combine(node, "add", (spread, Operand.number(1e-9)), wide.name),
        combine(node, "div", (apart, wide), output),
    ]
