"""Ops like those of some models: with these measured, a predictor interpolates.

A few models have few fully connected layers, few poolings and few windows of each size, and their
maps and channels come in powers of two. Held out by shape, the next size must be extrapolated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from codl.errors import CodlError
from codl.ops import Conv2d, FullyConnected, Op, Pool2d, Shape
from codl.ops.concat import Concat
from codl.ops.eltwise import Eltwise
from codl.ops.region import Region

SEED = 20220627
#: How many of the ops are of each kind, where the models have all; kinds of no other are added.
WEIGHTS: Mapping[str, float] = {"conv2d": 6, "fc": 2, "pooling": 2, "eltwise": 1, "concat": 0.5}
#: Sizes lie between those of two ops, and spread around that by a factor of 2 to this power.
SPREAD = 0.5
#: Above this, channels are a multiple of the step below it, as models have them.
FEW_CHANNELS, STEP = 16, 8
#: This share of the ops has fewer rows than columns, as parts of a split have.
FLAT = 0.3
TRIES = 20


def similar_ops(ops: Sequence[Op], count: int) -> list[Op]:
    """About `count` new ops between those given and around them, the same ones every time.

    None larger than the largest of its kind, so that they cost no more than the models' own.
    """
    dice, classes = random.Random(SEED), _classes(ops)
    total = sum(_weight(own, classes) for own in classes.values())
    known = set(ops)
    found: dict[Op, None] = {}
    for own in classes.values():
        wanted = round(count * _weight(own, classes) / total)
        largest = (max(op.flops for op in own), max(op.bytes for op in own))
        for _ in range(wanted):
            for _ in range(TRIES):
                op = _between(dice.choice(own), dice.choice(own), dice)
                fits = op is not None and op.flops <= largest[0] and op.bytes <= largest[1]
                if op is not None and fits and op not in known and op not in found:
                    found[op] = None
                    break
    return list(found)


def _classes(ops: Sequence[Op]) -> dict[Hashable, list[Op]]:
    """Ops that can be interpolated between: of one kind and, for convolutions, one algorithm."""
    classes: dict[Hashable, list[Op]] = {}
    for op in ops:
        if op.kind in WEIGHTS:
            classes.setdefault(_class(op), []).append(op)
    return classes


def _class(op: Op) -> Hashable:
    if isinstance(op, Conv2d):
        single = op.kernel == (1, 1)
        return (op.kind, op.groups > 1, single, max(op.stride) > 1 or max(op.kernel) > 3)
    return (op.kind, op.flavor, len(op.inputs))


def _weight(own: Sequence[Op], classes: Mapping[Hashable, Sequence[Op]]) -> float:
    """A kind's weight, shared among its classes; of half that where channels come in groups."""

    def share(some: Sequence[Op]) -> float:
        return 0.5 if isinstance(some[0], Conv2d) and some[0].groups > 1 else 1.0

    kind = own[0].kind
    total = sum(share(some) for some in classes.values() if some[0].kind == kind)
    return WEIGHTS[kind] * share(own) / total


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
