"""Random networks and plans for property tests, and what networks compute, in float64.

Networks are small DAGs of layers, with skips and several outputs; nothing here needs a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from codl.ir.network import Layer, Network
from codl.ir.ops.base import Activation, Array, Op, Pad
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.matmul import FullyConnected, MatMul
from codl.ir.ops.movement import Concat, Reshape, Transpose
from codl.ir.ops.reductions import Norm, Softmax
from codl.ir.ops.window import Pool2d, Size2
from codl.ir.plan import Plan, Sharing
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from support.random_plans import random_plan

Exact = NDArray[np.float64]

CHANNELS = st.sampled_from([1, 3, 4, 8, 12, 20])
ACTIVATIONS = st.sampled_from([Activation(), Activation("relu"), Activation("leaky_relu", 0.1)])
#: How many layers a network has at most.
MOST_LAYERS = 9


@dataclass
class _Drawn:
    """The part of a network that is drawn so far."""

    draw: st.DrawFn
    shapes: dict[str, Shape] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    dice: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, op: Op, *inputs: str) -> str:
        """A layer with weights of its own; the name of its output."""
        index = len(self.layers)
        weights = {
            name: _values(self.dice, shape, prod(shape[1:]))
            for name, shape in op.weight_shapes.items()
        }
        self.layers.append(Layer(f"{op.kind}{index}", op, inputs, f"t{index}", weights))
        self.shapes[f"t{index}"] = op.output
        return f"t{index}"

    def constant(self, shape: tuple[int, ...], around: float) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = around + _values(self.dice, shape, 16)
        return name

    def any_tensor(self) -> str:
        """One of those that a layer or a caller makes, rather a late one."""
        names = list(self.shapes)
        return self.draw(st.sampled_from([*names, *names[-3:], *names[-1:]]))

    def like(self, tensor: str, same: Callable[[Shape, Shape], bool]) -> list[str]:
        """Other tensors whose shapes fit one's."""
        shape = self.shapes[tensor]
        return [n for n, own in self.shapes.items() if n != tensor and same(shape, own)]


def _values(dice: np.random.Generator, shape: tuple[int, ...], terms: int) -> Array:
    """Numbers of which as many products as `terms` sum up to about 1."""
    return (dice.standard_normal(shape) / max(terms, 1) ** 0.5).astype(np.float32)


def _convolution(net: _Drawn) -> None:
    """Plain, depthwise or in groups; strided or not, dilated or not."""
    tensor = net.any_tensor()
    shape = net.shapes[tensor]
    kernel = net.draw(st.sampled_from([1, 1, 3, 3, 5]))
    pad = net.draw(st.sampled_from([kernel // 2, kernel // 2, 0]))
    if min(shape.h, shape.w) + 2 * pad < kernel:
        pad = kernel // 2
    room = (min(shape.h, shape.w) + 2 * pad - 1) // max(kernel - 1, 1)
    dilation = min(net.draw(st.sampled_from([1, 1, 1, 2, 3])), room) if kernel > 1 else 1
    form = net.draw(st.sampled_from(["plain", "plain", "depthwise", "groups"]))
    groups = {"plain": 1, "depthwise": shape.c, "groups": 2 - shape.c % 2}[form]
    channels = shape.c if form == "depthwise" else groups * net.draw(CHANNELS)
    stride = net.draw(st.sampled_from([1, 1, 1, 2]))
    op = Conv2d(
        inputs=(shape,),
        out_channels=channels,
        groups=groups,
        kernel=Size2(kernel, kernel),
        stride=Size2(stride, stride),
        pad=Pad(pad, pad, pad, pad),
        dilation=Size2(dilation, dilation),
        activation=net.draw(ACTIVATIONS),
    )
    net.add(op, tensor)


def _pooling(net: _Drawn) -> None:
    tensor = net.any_tensor()
    shape = net.shapes[tensor]
    size, stride, pad = net.draw(st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 2, 0)]))
    if min(shape.h, shape.w) < size:
        size, stride, pad = 1, 1, 0
    if net.draw(st.sampled_from([False, False, False, True])):  # of all of an image
        kernel, stride, pad = Size2(shape.h, shape.w), 1, 0
    else:
        kernel = Size2(size, size)
    op = Pool2d(
        inputs=(shape,),
        mode=net.draw(st.sampled_from(["max", "avg"])),
        count_pad=net.draw(st.booleans()),
        kernel=kernel,
        stride=Size2(stride, stride),
        pad=Pad(pad, pad, pad, pad),
    )
    net.add(op, tensor)


def _residual(net: _Drawn) -> None:
    """An add to a tensor of the same shape; where there is none, a convolution makes one."""
    tensor = net.any_tensor()
    shape = net.shapes[tensor]
    others = net.like(tensor, lambda one, other: one == other)
    if others:
        other = net.draw(st.sampled_from(others))
    else:
        conv = Conv2d(
            inputs=(shape,), out_channels=shape.c, kernel=Size2(3, 3), pad=Pad(1, 1, 1, 1)
        )
        other = net.add(conv, tensor)
    mode = net.draw(st.sampled_from(["add", "add", "add", "mul", "max"]))
    op = Eltwise(inputs=(shape, shape), mode=mode, activation=net.draw(ACTIVATIONS))
    net.add(op, *net.draw(st.permutations([tensor, other])))


def _gate(net: _Drawn) -> None:
    """A factor for every channel, by a pooling of all of the image."""
    tensor = net.any_tensor()
    shape = net.shapes[tensor]
    pool = Pool2d(inputs=(shape,), mode="avg", kernel=Size2(shape.h, shape.w))
    factors = net.add(pool, tensor)
    net.add(Eltwise(inputs=(shape, pool.output), mode="mul"), tensor, factors)


def _concat(net: _Drawn) -> None:
    tensor = net.any_tensor()
    fitting = net.like(tensor, lambda one, other: one._replace(c=0) == other._replace(c=0))
    others = net.draw(st.lists(st.sampled_from(fitting or [tensor]), min_size=1, max_size=2))
    names = [tensor, *others]
    op = Concat(inputs=tuple(net.shapes[name] for name in names))
    net.add(op, *names)


def _fully_connected(net: _Drawn) -> None:
    tensor = net.any_tensor()
    op = FullyConnected(
        inputs=(net.shapes[tensor],), out_channels=net.draw(CHANNELS), activation=Activation("relu")
    )
    net.add(op, tensor)


def _softmax(net: _Drawn) -> None:
    tensor = net.any_tensor()
    axes = net.draw(st.sampled_from([(1,), (2, 3), (3,)]))
    net.add(Softmax(shapes=(tuple(net.shapes[tensor]),), axes=axes), tensor)


def _norm(net: _Drawn) -> None:
    """Of every image, with a scale and a bias for every channel that never change."""
    tensor = net.any_tensor()
    sizes = tuple(net.shapes[tensor])
    ones = (1, sizes[1], 1, 1)
    op = Norm(shapes=(sizes, ones, ones), axis=1, epsilon=1e-2)
    net.add(op, tensor, net.constant(ones, 1.0), net.constant(ones, 0.0))


def _reshape(net: _Drawn) -> None:
    """Channels and pixels in one axis: nothing but images is left to cut."""
    tensor = net.any_tensor()
    shape = net.shapes[tensor]
    net.add(Reshape(shapes=(tuple(shape),), to=(shape.n, shape.elements // shape.n, 1, 1)), tensor)


def _attention(net: _Drawn) -> None:
    """Pixels as tokens that look at each other, by heads, in half of them with an add behind it."""
    tensor = net.any_tensor()
    n, c, h, w = net.shapes[tensor]
    tokens, heads = h * w, net.draw(st.sampled_from([1, 2, 3]))
    each = net.draw(st.sampled_from([2, 4]))
    flat, features = (n, c, tokens), heads * each
    x = net.add(
        Transpose(shapes=((n, c, h, w),), perm=(0, 2, 1), axes=flat, to=(n, tokens, c)), tensor
    )
    q = _linear(net, x, (n, tokens, c), features)
    seen, by_head = (n, tokens, heads, each), (n, heads, tokens, each)
    q = net.add(Reshape(shapes=((n, tokens, features),), to=seen), q)
    q = net.add(Transpose(shapes=(seen,), perm=(0, 2, 1, 3)), q)
    is_turned = net.draw(st.booleans())
    k = net.add(Transpose(shapes=(by_head,), perm=(0, 1, 3, 2)), q) if is_turned else q
    other = (n, heads, each, tokens) if is_turned else by_head
    scores = MatMul(shapes=(by_head, other), trans_b=not is_turned, alpha=each**-0.5)
    s = net.add(scores, q, k)
    s = net.add(Softmax(shapes=(scores.out_sizes,), axes=(3,)), s)
    mixed = net.add(MatMul(shapes=(scores.out_sizes, by_head)), s, q)
    joined = Transpose(shapes=(by_head,), perm=(0, 2, 1, 3), to=(n, tokens, features))
    y = _linear(net, net.add(joined, mixed), (n, tokens, features), c)
    if net.draw(st.booleans()):
        y = net.add(Eltwise(inputs=(net.shapes[x], net.shapes[y])), x, y)
    ones = (1, 1, c)
    norm = Norm(shapes=((n, tokens, c), ones, ones), axis=2, epsilon=1e-2)
    net.add(norm, y, net.constant((1, 1, c, 1), 1.0), net.constant((1, 1, c, 1), 0.0))


def _linear(net: _Drawn, x: str, sizes: tuple[int, int, int], features: int) -> str:
    return net.add(MatMul(shapes=(sizes,), matrix=(sizes[2], features)), x)


#: What is added next, the usual ones oftener.
STEPS: tuple[Callable[[_Drawn], None], ...] = (
    *(_convolution,) * 5,
    *(_residual,) * 3,
    *(_pooling,) * 2,
    *(_concat,) * 2,
    _fully_connected,
    _softmax,
    _norm,
    _gate,
    _reshape,
    *(_attention,) * 2,
)


@st.composite
def random_networks(draw: st.DrawFn, most_layers: int = MOST_LAYERS) -> Network:
    """Convolutions, poolings, residuals, concats, products and ops of any rank, of 1-3 images."""
    net = _Drawn(draw)
    images = draw(st.sampled_from([1, 1, 2, 3]))
    for index in range(draw(st.sampled_from([1, 1, 1, 2]))):
        height, width = draw(st.integers(3, 13)), draw(st.integers(3, 11))
        net.shapes[f"x{index}"] = Shape(images, draw(CHANNELS), height, width)
    given = dict(net.shapes)
    steps = draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=most_layers))
    for step in steps:
        if len(net.layers) < most_layers:
            step(net)
    read = {name for layer in net.layers for name in layer.inputs}
    inputs = {name: shape for name, shape in given.items() if name in read}
    ends = [x.output for x in net.layers if x.output not in read or draw(st.integers(0, 5)) == 0]
    outputs = {f"y_{name}": (name, tuple(net.shapes[name])) for name in ends}
    return Network("random", tuple(net.layers), inputs, outputs, net.constants)


@st.composite
def random_plans(
    draw: st.DrawFn, network: Network, soc: Soc, sharing: Sharing | None = None
) -> Plan:
    """Chains of any length, each cut where its outputs can be, in any variants of the SoC."""
    return random_plan(network, soc, draw(st.randoms(use_true_random=False)), sharing)


def random_inputs(network: Network, seed: int = 1) -> dict[str, Array]:
    """Standard normal values of every input."""
    dice = np.random.default_rng(seed)
    return {name: dice.standard_normal(s, np.float32) for name, s in network.inputs.items()}


def reference_tensors(network: Network, inputs: Mapping[str, Array]) -> dict[str, Exact]:
    """Every tensor of a network by its ops' references, shaped nchw, in float64."""
    values = {n: np.asarray(v, np.float64) for n, v in {**network.constants, **inputs}.items()}
    for layer in network.layers:
        taken = [values[name] for name in layer.inputs]
        values[layer.output] = layer.op.reference(taken, layer.weights)
    return values


def reference_outputs(network: Network, inputs: Mapping[str, Array]) -> dict[str, Exact]:
    """A network's outputs in the shapes that it declares, in float64."""
    values = reference_tensors(network, inputs)
    return {name: values[holder].reshape(s) for name, (holder, s) in network.outputs.items()}
