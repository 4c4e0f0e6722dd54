"""Random networks of convolutions, residuals and ops of any rank, and random plans of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import strategies as st

from codl.ir.network import Layer, Network
from codl.ir.op_text import parse
from codl.ir.ops.base import Array
from codl.ir.plan import Plan, Sharing
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from support.random_plans import random_plan

CHANNELS = (1, 3, 4, 8, 12, 20)
ACTIVATIONS = ("", "act=relu", "act=leaky_relu:0.1")
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

    def one_of(self, *values: object) -> object:
        return self.draw(st.sampled_from(values))

    def add(self, text: str, *inputs: str) -> str:
        """A layer of an op's text, with weights of its own; the name of its output."""
        op, index = parse(text), len(self.layers)
        weights = {
            name: self.values(shape, prod(shape[1:])) for name, shape in op.weight_shapes.items()
        }
        self.layers.append(Layer(f"{op.kind}{index}", op, inputs, f"t{index}", weights))
        self.shapes[f"t{index}"] = op.output
        return f"t{index}"

    def norm(self, x: str, sizes: tuple[int, ...], axis: int) -> str:
        """A norm with a scale and a bias that never change."""
        ones = [size if at == axis else 1 for at, size in enumerate(sizes)]
        names = [f"c{len(self.constants)}", f"c{len(self.constants) + 1}"]
        for name, around in zip(names, (1.0, 0.0), strict=True):
            self.constants[name] = around + self.values((*ones, *[1] * (4 - len(ones))), 16)
        texts = ",".join("x".join(map(str, own)) for own in (sizes, ones, ones))
        return self.add(f"norm in={texts} axis={axis} epsilon=0.01", x, *names)

    def values(self, shape: tuple[int, ...], terms: int) -> Array:
        """Numbers of which as many products as `terms` sum up to about 1."""
        return (self.dice.standard_normal(shape) / max(terms, 1) ** 0.5).astype(np.float32)

    def any_tensor(self) -> tuple[str, Shape]:
        """One of those that a layer or a caller makes, rather a late one."""
        names = list(self.shapes)
        name = self.draw(st.sampled_from([*names, *names[-3:], *names[-1:]]))
        return name, self.shapes[name]


def _convolution(net: _Drawn) -> None:
    """Plain, depthwise or in groups; strided or not, dilated or not."""
    x, shape = net.any_tensor()
    kernel = int(net.one_of(1, 1, 3, 3, 5))
    pad, least = int(net.one_of(kernel // 2, kernel // 2, 0)), min(shape.h, shape.w)
    if least + 2 * pad < kernel:
        pad = kernel // 2
    room = (least + 2 * pad - 1) // max(kernel - 1, 1)
    dilation = min(int(net.one_of(1, 1, 1, 2, 3)), room) if kernel > 1 else 1
    form, channels = net.one_of("plain", "plain", "depthwise", "groups"), int(net.one_of(*CHANNELS))
    groups = {"plain": 1, "depthwise": shape.c, "groups": 2 - shape.c % 2}[str(form)]
    channels = shape.c if form == "depthwise" else groups * channels
    net.add(
        f"conv2d in={shape} oc={channels} groups={groups} kernel={kernel} pad={pad} "
        f"dilation={dilation} stride={net.one_of(1, 1, 1, 2)} {net.one_of(*ACTIVATIONS)}",
        x,
    )


def _pooling(net: _Drawn) -> None:
    x, shape = net.any_tensor()
    mode = f"mode={net.one_of('max', 'avg')} count_pad={net.one_of(0, 1)}"
    if net.one_of(False, False, False, True):  # of all of an image
        net.add(f"pooling in={shape} {mode} kernel={shape.h}x{shape.w}", x)
        return
    windows = ((2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 2, 0))
    size, stride, pad = windows[int(net.one_of(*range(len(windows))))]
    if min(shape.h, shape.w) < size:
        size, stride, pad = 1, 1, 0
    net.add(f"pooling in={shape} {mode} kernel={size} stride={stride} pad={pad}", x)


def _residual(net: _Drawn) -> None:
    """An add to a tensor of the same shape; where there is none, a convolution makes one."""
    x, shape = net.any_tensor()
    others = [name for name, own in net.shapes.items() if name != x and own == shape]
    if not others:
        others = [net.add(f"conv2d in={shape} oc={shape.c} kernel=3 pad=1", x)]
    mode, act = net.one_of("add", "add", "add", "mul", "max"), net.one_of(*ACTIVATIONS)
    names = net.draw(st.permutations([x, net.one_of(*others)]))
    net.add(f"eltwise in={shape},{shape} mode={mode} {act}", *names)


def _gate(net: _Drawn) -> None:
    """A factor for every channel, by a pooling of all of the image."""
    x, shape = net.any_tensor()
    factors = net.add(f"pooling in={shape} mode=avg kernel={shape.h}x{shape.w}", x)
    net.add(f"eltwise in={shape},{net.shapes[factors]} mode=mul", x, factors)


def _concat(net: _Drawn) -> None:
    x, shape = net.any_tensor()
    fitting = [name for name, own in net.shapes.items() if own._replace(c=shape.c) == shape]
    names = [x, *net.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=2))]
    net.add(f"concat in={','.join(str(net.shapes[name]) for name in names)}", *names)


def _fully_connected(net: _Drawn) -> None:
    x, shape = net.any_tensor()
    net.add(f"fc in={shape} oc={net.one_of(*CHANNELS)} act=relu", x)


def _softmax(net: _Drawn) -> None:
    x, shape = net.any_tensor()
    net.add(f"softmax in={shape} axes={net.one_of('1', '2x3', '3')}", x)


def _norm(net: _Drawn) -> None:
    x, shape = net.any_tensor()
    net.norm(x, tuple(shape), 1)


def _reshape(net: _Drawn) -> None:
    """Channels and pixels in one axis: nothing but images is left to cut."""
    x, shape = net.any_tensor()
    net.add(f"reshape in={shape} to={shape.n}x{shape.elements // shape.n}x1x1", x)


def _attention(net: _Drawn) -> None:
    """Pixels as tokens that look at each other, by heads, in half of them with an add behind it."""
    x, (n, c, h, w) = net.any_tensor()
    tokens, heads, each = h * w, int(net.one_of(1, 2, 3)), int(net.one_of(2, 4))
    wide, by_head = heads * each, f"{n}x{heads}x{tokens}x{each}"
    flat = f"{n}x{tokens}x{c}"
    x = net.add(f"transpose in={n}x{c}x{h}x{w} axes={n}x{c}x{tokens} perm=0x2x1 to={flat}", x)
    q = net.add(f"matmul in={flat} matrix={c}x{wide}", x)
    q = net.add(f"reshape in={n}x{tokens}x{wide} to={n}x{tokens}x{heads}x{each}", q)
    q = net.add(f"transpose in={n}x{tokens}x{heads}x{each} perm=0x2x1x3", q)
    scale = f"alpha={each**-0.5}"
    if net.one_of(False, True):
        k = net.add(f"transpose in={by_head} perm=0x1x3x2", q)
        s = net.add(f"matmul in={by_head},{n}x{heads}x{each}x{tokens} {scale}", q, k)
    else:
        s = net.add(f"matmul in={by_head},{by_head} trans_b=1 {scale}", q, q)
    scores = f"{n}x{heads}x{tokens}x{tokens}"
    s = net.add(f"softmax in={scores} axes=3", s)
    y = net.add(f"matmul in={scores},{by_head}", s, q)
    y = net.add(f"transpose in={by_head} perm=0x2x1x3 to={n}x{tokens}x{wide}", y)
    y = net.add(f"matmul in={n}x{tokens}x{wide} matrix={wide}x{c}", y)
    if net.one_of(False, True):
        y = net.add(f"eltwise in={net.shapes[x]},{net.shapes[y]}", x, y)
    net.norm(y, (n, tokens, c), 2)


#: What is added next, the usual ones oftener.
STEPS: tuple[Callable[[_Drawn], None], ...] = (
    *(_convolution,) * 5,
    *(_residual,) * 3,
    *(_pooling, _concat, _attention) * 2,
    *(_fully_connected, _softmax, _norm, _gate, _reshape),
)


@st.composite
def random_networks(draw: st.DrawFn, most_layers: int = MOST_LAYERS) -> Network:
    """Convolutions, poolings, residuals, concats, products and ops of any rank, of 1-3 images."""
    net = _Drawn(draw)
    images = net.one_of(1, 1, 2, 3)
    for index in range(draw(st.sampled_from([1, 1, 1, 2]))):
        sizes = draw(st.integers(3, 13)), draw(st.integers(3, 11))
        net.shapes[f"x{index}"] = Shape(images, net.one_of(*CHANNELS), *sizes)  # type: ignore[arg-type]
    given = dict(net.shapes)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=most_layers)):
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
