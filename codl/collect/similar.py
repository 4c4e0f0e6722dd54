"""Ops like those of some models: with these measured, a predictor interpolates.

A few models have few fully connected layers, few poolings and few windows of each size, and their
maps and channels come in powers of two. Held out by shape, the next size must be extrapolated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ops import Conv2d, FullyConnected, Op, Pool2d, Shape
from codl.ops.concat import Concat
from codl.ops.eltwise import Eltwise
from codl.ops.region import Region

SEED = 20220627
#: How many of the ops are of each sort, where the models have all; sorts of no other are added.
#: Each has kernel variants of its own, which learn from no other sort.
WEIGHTS: Mapping[str, float] = {
    "conv2d, 3x3": 5,
    "conv2d, 1x1": 2,
    "conv2d, other": 2,
    "conv2d, groups": 5,
    "fc": 5,
    "pooling, max": 5,
    "pooling, avg": 4,
    "eltwise": 2,
    "concat": 1,
}
#: Sizes lie between those of two ops, and spread around that by a factor of 2 to this power.
SPREAD = 1.0
#: An op is that one of so many whose sizes are farthest from all others': they fill the range.
CANDIDATES = 12
#: Above this, channels are a multiple of the step below it, as models have them.
FEW_CHANNELS, STEP = 16, 8
#: This share of candidates has fewer rows than columns, as parts of a split have.
FLAT = 0.15

Sizes = NDArray[np.float64]


def similar_ops(ops: Sequence[Op], count: int) -> list[Op]:
    """About `count` new ops between those given and around them, the same ones every time.

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
        between = [_between(dice.choice(own), dice.choice(own), dice) for _ in range(CANDIDATES)]
        some = [op for op in between if op and op.flops <= largest[0] and op.bytes <= largest[1]]
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


def _between(a: Op, b: Op, dice: random.Random) -> Op | None:
    """An op with the attributes of `a` and sizes between those of both; None where it has none."""
    sizes = _sizes(a, b, dice)
    try:
        op = _KINDS[a.kind](a, b, sizes, dice)
        return None if Region.whole(op.output).is_empty else op
    except CodlError:
        return None


def _sizes(a: Op, b: Op, dice: random.Random) -> Callable[[int, int], int]:
    """A function to a size between two, at one place between both ops."""
    place = dice.random()

    def size(first: int, second: int) -> int:
        factor = float(2 ** dice.gauss(0, SPREAD))
        return max(1, round(float(first ** (1 - place) * second**place) * factor))

    return size


def _channels(size: int) -> int:
    return size if size < FEW_CHANNELS else STEP * round(size / STEP)


def _input(a: Op, b: Op, size: Callable[[int, int], int], dice: random.Random) -> Shape:
    c = _channels(size(a.input.c, b.input.c))
    w = size(a.input.w, b.input.w)
    h = max(1, round(w * 2 ** -dice.uniform(0, 3))) if dice.random() < FLAT else w
    return Shape(1, c, h, w)


def _conv(a: Op, b: Op, size: Callable[[int, int], int], dice: random.Random) -> Op:
    assert isinstance(a, Conv2d)
    assert isinstance(b, Conv2d)
    shape = _input(a, b, size, dice)
    if a.groups > 1:
        depthwise = a.groups == a.input.c == a.out_channels
        per_group = 1 if depthwise else a.input.c // a.groups
        c = max(1, shape.c // per_group) * per_group
        groups, out = c // per_group, c if depthwise else a.out_channels * (c // per_group)
        return replace(a, inputs=(shape._replace(c=c),), out_channels=out, groups=groups)
    return replace(a, inputs=(shape,), out_channels=_channels(size(a.out_channels, b.out_channels)))


def _fc(a: Op, b: Op, size: Callable[[int, int], int], dice: random.Random) -> Op:
    assert isinstance(a, FullyConnected)
    assert isinstance(b, FullyConnected)
    features = _channels(size(a.in_features, b.in_features))
    out = _channels(size(a.out_channels, b.out_channels))
    return replace(a, inputs=(Shape(1, features, 1, 1),), out_channels=out)


def _pool(a: Op, b: Op, size: Callable[[int, int], int], dice: random.Random) -> Op:
    assert isinstance(a, Pool2d)
    shape = _input(a, b, size, dice)
    if a.kernel == a.input[2:]:  # a global one
        return replace(a, inputs=(shape,), kernel=type(a.kernel)(*shape[2:]))
    return replace(a, inputs=(shape,))


def _alike(a: Op, b: Op, size: Callable[[int, int], int], dice: random.Random) -> Op:
    """All inputs of one shape."""
    shape = _input(a, b, size, dice)
    return replace(a, inputs=(shape,) * len(a.inputs))


def _concat(a: Op, b: Op, size: Callable[[int, int], int], dice: random.Random) -> Op:
    shape = _input(a, b, size, dice)
    others = [_channels(size(x.c, x.c)) for x in a.inputs[1:]]
    return replace(a, inputs=(shape, *(shape._replace(c=c) for c in others)))


_KINDS: Mapping[str, Callable[..., Op]] = {
    Conv2d.kind: _conv,
    FullyConnected.kind: _fc,
    Pool2d.kind: _pool,
    Eltwise.kind: _alike,
    Concat.kind: _concat,
}
