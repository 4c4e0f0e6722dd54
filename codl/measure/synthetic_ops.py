"""Ops like those of some models: with these measured, a predictor interpolates.

A few models have few fully connected layers, few poolings and few windows of each size, and their
maps and channels come in powers of two. Held out by shape, the next size must be extrapolated.
What is added is what the same networks would have for another size of image, with other widths, or
as a part of such an op: sizes that no network has teach nothing that is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Op, Shape, split
from codl.ir.ops.concat import Concat
from codl.ir.ops.conv2d import Conv2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pool2d import Pool2d
from codl.ir.region import Region

SEED = 20220627
#: How many of the ops are of each sort, where the models have all; sorts of no other are added.
#: Each has kernel variants of its own, which learn from no other sort.
WEIGHTS: Mapping[str, float] = {
    "conv2d, 3x3": 9,
    "conv2d, 1x1": 3,
    "conv2d, other": 4,
    "conv2d, groups": 4,
    "fc": 5,
    "pooling, max": 4,
    "pooling, avg": 3,
    "eltwise": 2,
    "concat": 1,
}
#: A network is made for images of other sizes, and with more or fewer channels in every layer: maps
#: and channels grow by 2 to a power up to these.
RESOLUTION, WIDTH = 1.0, 1.0
#: And an op's output channels are changed by 2 to this power more, its standard deviation.
OWN_WIDTH = 0.4
#: A fully connected layer lies between two, and is changed by 2 to this power.
SPREAD = 1.0
#: Columns for every row of an image; most are square.
ASPECTS = (1.0, 1.0, 1.0, 1.0, 4 / 3, 3 / 4, 16 / 9)
#: Maps do not get smaller than this, unless a model has such.
LEAST_MAP = 4
#: An op has at most so many times as many channels on one side as on the other, or as its model's
#: has; images have `IMAGE` channels at most, and keep them.
CHANNEL_RATIO, IMAGE = 8.0, 4
#: An op is that one of so many whose sizes are farthest from all others': they fill the range.
CANDIDATES = 12
#: Above this, channels are a multiple of the step below it, as models have them.
FEW_CHANNELS, STEP = 16, 8
#: This share of candidates are parts of a split, of one of these shares of the output.
PARTS, SHARES = 0.3, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Sizes = NDArray[np.float64]


def similar_ops(ops: Sequence[Op], count: int) -> list[Op]:
    """About `count` new ops around those given, the same ones every time.

    Their sizes are spread evenly over the range of sizes, on a logarithmic scale. None is larger
    than the largest of its class, so that they cost no more than the models' own.
    """
    dice, classes = random.Random(SEED), _classes(ops)
    total = sum(WEIGHTS[sort] for sort in {_sort(own[0]) for own in classes.values()})
    found: list[Op] = []
    for own in classes.values():
        wanted = count * WEIGHTS[_sort(own[0])] / total * _share(own, classes)
        found += _spread(own, round(wanted), dice)
    return found


def _spread(own: Sequence[Op], wanted: int, dice: random.Random) -> list[Op]:
    """New ops of a class, each as far from all others as the best of some candidates."""
    largest = (max(op.flops for op in own), max(op.bytes for op in own))
    found: list[Op] = []
    taken = [_sizes_of(op) for op in own]
    for _ in range(wanted):
        around = [_another(dice.choice(own), dice.choice(own), dice) for _ in range(CANDIDATES)]
        some = [op for op in around if op and op.flops <= largest[0] and op.bytes <= largest[1]]
        if not some:
            continue
        away = [float(np.abs(np.array(taken) - _sizes_of(op)).sum(1).min()) for op in some]
        best = int(np.argmax(away))
        if away[best] > 0:
            found.append(some[best])
            taken.append(_sizes_of(some[best]))
    return found


def _sizes_of(op: Op) -> Sizes:
    """Logarithms of channels in and out, rows and columns, and of a window's rows."""
    sizes = [op.output.c, op.input.h, op.input.w, *(shape.c for shape in op.inputs)]
    return np.log2([*sizes, op.kernel.h] if isinstance(op, Conv2d | Pool2d) else sizes)


def _classes(ops: Sequence[Op]) -> dict[Hashable, list[Op]]:
    """Ops that can be interpolated between: of one kind and, for convolutions, one algorithm."""
    classes: dict[Hashable, list[Op]] = {}
    for op in ops:
        if op.kind in _KINDS:
            classes.setdefault(_class(op), []).append(op)
    return classes


def _class(op: Op) -> Hashable:
    strided = isinstance(op, Conv2d) and max(op.stride) > 1
    return (_sort(op), strided, len(op.inputs))


def _sort(op: Op) -> str:
    if isinstance(op, Pool2d):
        return f"{op.kind}, {op.mode}"
    if not isinstance(op, Conv2d):
        return op.kind
    if op.groups > 1:
        return f"{op.kind}, groups"
    is_plain = max(op.stride) == 1 and op.kernel == (3, 3)
    return f"{op.kind}, " + ("1x1" if op.kernel == (1, 1) else "3x3" if is_plain else "other")


def _share(own: Sequence[Op], classes: Mapping[Hashable, Sequence[Op]]) -> float:
    """A class's share of the ops of its sort: as many as it has, but not next to none."""
    counts = [len(some) for some in classes.values() if _sort(some[0]) == _sort(own[0])]
    least = sum(counts) / (2 * len(counts))
    return max(len(own), least) / sum(max(count, least) for count in counts)


def _another(a: Op, b: Op, dice: random.Random) -> Op | None:
    """The op of another network in the place of `a`, or a part of it; None where it has none.

    `b` is another of its class, for what has neither maps nor widths.
    """
    try:
        op = _KINDS[a.kind](a, b, dice)
        op = _part(op, dice) if dice.random() < PARTS else op
        return None if Region.whole(op.output).is_empty else op
    except CodlError:
        return None


def _part(op: Op, dice: random.Random) -> Op:
    """One side's part of a split, an ordinary op with padding at its outer edges only."""
    if not op.dims:
        return op
    sides = split(op, dice.choice(op.dims), dice.choice(SHARES), align=STEP)
    return op.restrict(dice.choice([side for side in sides if not side.is_empty]))


def _factor(dice: random.Random, power: float) -> float:
    return float(2 ** dice.uniform(-power, power))


def _channels(size: float) -> int:
    return max(1, round(size)) if size < FEW_CHANNELS else STEP * round(size / STEP)


def _map(a: Shape, dice: random.Random, least: int = 1) -> tuple[int, int]:
    """Rows and columns of a map for an image of another size and shape, `least` at least."""
    h = a.h * _factor(dice, RESOLUTION)
    w = h * a.w / a.h * dice.choice(ASPECTS)
    return max(round(h), min(a.h, LEAST_MAP), least), max(round(w), min(a.w, LEAST_MAP), least)


def _conv(a: Op, b: Op, dice: random.Random) -> Op:
    assert isinstance(a, Conv2d)
    h, w = _map(a.input, dice)
    width = _factor(dice, WIDTH)
    if a.groups > 1:
        depthwise = a.groups == a.input.c == a.out_channels
        per_group = 1 if depthwise else a.input.c // a.groups
        c = max(1, _channels(a.input.c * width) // per_group) * per_group
        groups = c // per_group
        out = c if depthwise else a.out_channels // a.groups * groups
        return replace(a, inputs=(Shape(1, c, h, w),), out_channels=out, groups=groups)
    is_image = a.input.c <= IMAGE
    c = a.input.c if is_image else _channels(a.input.c * width)
    out = _channels(a.out_channels * width * 2 ** dice.gauss(0, OWN_WIDTH))
    if not is_image:
        own = a.out_channels / a.input.c
        most = max(CHANNEL_RATIO, own, 1 / own)
        out = _channels(min(max(out, c / most), c * most))
    return replace(a, inputs=(Shape(1, c, h, w),), out_channels=out)


def _fc(a: Op, b: Op, dice: random.Random) -> Op:
    """Between two, at one place for both sizes, and around that."""
    assert isinstance(a, FullyConnected)
    assert isinstance(b, FullyConnected)
    place = dice.random()

    def size(first: int, second: int) -> int:
        between = first ** (1 - place) * second**place
        return max(1, _channels(between * 2 ** dice.gauss(0, SPREAD)))

    shape = Shape(1, size(a.in_features, b.in_features), 1, 1)
    return replace(a, inputs=(shape,), out_channels=size(a.out_channels, b.out_channels))


def _pool(a: Op, b: Op, dice: random.Random) -> Op:
    assert isinstance(a, Pool2d)
    is_global = a.kernel == a.input[2:]
    h, w = _map(a.input, dice, least=1 if is_global else max(a.kernel))
    shape = Shape(1, _channels(a.input.c * _factor(dice, WIDTH)), h, w)
    return replace(a, inputs=(shape,), kernel=type(a.kernel)(h, w) if is_global else a.kernel)


def _eltwise(a: Op, b: Op, dice: random.Random) -> Op:
    """Sizes that the inputs share still are shared, and what is stretched still is."""
    h, w = _map(a.output, dice)
    c = _channels(a.output.c * _factor(dice, WIDTH))
    full = Shape(1, c, h, w)
    shapes = (
        Shape(*(new if old > 1 else 1 for old, new in zip(shape, full, strict=True)))
        for shape in a.inputs
    )
    return replace(a, inputs=tuple(shapes))


def _concat(a: Op, b: Op, dice: random.Random) -> Op:
    h, w = _map(a.input, dice)
    width = _factor(dice, WIDTH)
    return replace(a, inputs=tuple(Shape(1, _channels(x.c * width), h, w) for x in a.inputs))


_KINDS: Mapping[str, Callable[[Op, Op, random.Random], Op]] = {
    Conv2d.kind: _conv,
    FullyConnected.kind: _fc,
    Pool2d.kind: _pool,
    Eltwise.kind: _eltwise,
    Concat.kind: _concat,
}
