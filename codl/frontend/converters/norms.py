"""Normalizations: of batches as an affine function, of layers, instances and groups as one op."""

from __future__ import annotations

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    converts,
    has_input,
    number,
    unsupported,
)
from codl.frontend.converters.operands import Operand, combine, function
from codl.frontend.converters.reductions import reduced
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.nd import Sizes
from codl.ir.ops.norm import Channels, Norm
from codl.ir.ops.window import Size2
from codl.ir.region import as_nchw


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
