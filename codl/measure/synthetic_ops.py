"""Ops like those of some models: with these measured, a predictor interpolates.

A few models have few fully connected layers, few poolings and few windows of each size, and their
maps and channels come in powers of two. Held out by shape, the next size must be extrapolated.
What is added is what the same networks would have for another size of image, with other widths, or
as a part of such an op: sizes that no network has teach nothing that is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Op, split
from codl.ir.ops.base import STEP, SyntheticGroup
from codl.ir.region import Region

SEED = 20220627
#: An op is that one of so many whose sizes are farthest from all others': they fill the range.
CANDIDATES = 12
#: This share of candidates are parts of a split, of one of these shares of the output.
PARTS, SHARES = 0.3, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_Class: TypeAlias = tuple[SyntheticGroup, int]


def similar_ops(ops: Sequence[Op], count: int) -> list[Op]:
    """About `count` new ops around those given, the same ones every time.

    Their sizes are spread evenly over the range of sizes, on a logarithmic scale. None is larger
    than the largest of its class, so that they cost no more than the models' own.
    """
    dice, classes = random.Random(SEED), _classes(ops)
    weights = {group.name: group.weight for group, _ in classes}
    made: list[Op] = []
    for (group, inputs), own in classes.items():
        share = group.weight / sum(weights.values()) * _share((group, inputs), classes)
        made += _spread(own, round(count * share), dice)
    return made


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


def _sizes_of(op: Op) -> NDArray[np.float64]:
    """Logarithms of the sizes over whose range ops are spread."""
    sizes: NDArray[np.float64] = np.log2(op.synthetic_sizes)
    return sizes


def _classes(ops: Sequence[Op]) -> dict[_Class, list[Op]]:
    """Ops that can be interpolated between: of one group and algorithm, with as many inputs."""
    classes: dict[_Class, list[Op]] = {}
    for op in ops:
        group = op.synthetic_group
        if group is not None:
            classes.setdefault((group, len(op.inputs)), []).append(op)
    return classes


def _share(one: _Class, classes: Mapping[_Class, Sequence[Op]]) -> float:
    """A class's share of the ops of its group: as many as it has, but not next to none."""
    counts = {key: len(own) for key, own in classes.items() if key[0].name == one[0].name}
    least = sum(counts.values()) / (2 * len(counts))
    return max(counts[one], least) / sum(max(count, least) for count in counts.values())


def _another(a: Op, b: Op, dice: random.Random) -> Op | None:
    """The op of another network in the place of `a`, or a part of it; None where it has none.

    `b` is another of its class, for what has neither maps nor widths.
    """
    try:
        op = a.synthesize(b, dice)
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
