"""Additional ops to measure: ops similar to those of the models, and ops of random blocks.

A few models have few fully connected layers, poolings and kernel sizes, mostly with sizes in powers
of two, so other sizes would be extrapolated. `similar_ops` are ops of the same networks at
other image sizes or widths, or parts of these; sizes without a network would teach nothing useful.

The default models have no attention. Without rows, latencies of networks with attention are only
estimates (`codl.plan.coverage`). A few dozen rows of each kernel variant take some tens of seconds.
Convolutional blocks vary what designers of networks vary: depthwise windows, group widths,
activations, stem widths, squeeze and excitation, concatenations. `scripts/block_ops.py` drew both.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Op, parse, split
from codl.ir.ops.base import STEP, SyntheticGroup
from codl.ir.region import Region

SEED = 20220627
#: Random candidates for each new op; the one farthest in size from all other ops is taken.
CANDIDATES = 12
#: Share of candidates that are parts of a split, and the parts' shares of the output.
PARTS, SHARES = 0.3, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

_Class: TypeAlias = tuple[SyntheticGroup, int]


def similar_ops(ops: Sequence[Op], count: int) -> list[Op]:
    """About `count` new ops similar to `ops`, deterministic.

    Log sizes are spread evenly over the range of `ops`. No new op is larger than the largest of
    its class, to limit measuring time.
    """
    dice, classes = random.Random(SEED), _classes(ops)
    weights = {group.name: group.weight for group, _ in classes}
    made: list[Op] = []
    for (group, inputs), members in classes.items():
        share = group.weight / sum(weights.values()) * _share((group, inputs), classes)
        made += _spread(members, round(count * share), dice)
    return made


def _spread(members: Sequence[Op], wanted: int, dice: random.Random) -> list[Op]:
    """Up to `wanted` new ops of a class, each the candidate farthest in size from the others."""
    largest = (max(op.flops for op in members), max(op.bytes for op in members))
    made: list[Op] = []
    taken = [_sizes_of(op) for op in members]
    for _ in range(wanted):
        around = [
            _another(dice.choice(members), dice.choice(members), dice) for _ in range(CANDIDATES)
        ]
        some = [op for op in around if op and op.flops <= largest[0] and op.bytes <= largest[1]]
        if not some:
            continue
        away = [float(np.abs(np.array(taken) - _sizes_of(op)).sum(1).min()) for op in some]
        best = int(np.argmax(away))
        if away[best] > 0:
            made.append(some[best])
            taken.append(_sizes_of(some[best]))
    return made


def _sizes_of(op: Op) -> NDArray[np.float64]:
    """Logarithms (base 2) of an op's sizes, the space in which new ops are spread."""
    sizes: NDArray[np.float64] = np.log2(op.synthetic_sizes)
    return sizes


def _classes(ops: Sequence[Op]) -> dict[_Class, list[Op]]:
    """Ops by class: synthetic group and number of inputs; sizes interpolate within a class."""
    classes: dict[_Class, list[Op]] = {}
    for op in ops:
        group = op.synthetic_group
        if group is not None:
            classes.setdefault((group, len(op.inputs)), []).append(op)
    return classes


def _share(which: _Class, classes: Mapping[_Class, Sequence[Op]]) -> float:
    """A class's share of new ops in its group, by its number of ops, with a lower bound."""
    counts = {key: len(members) for key, members in classes.items() if key[0].name == which[0].name}
    least = sum(counts.values()) / (2 * len(counts))
    return max(counts[which], least) / sum(max(count, least) for count in counts.values())


def _another(a: Op, b: Op, dice: random.Random) -> Op | None:
    """A variation of `a` or a part of one, None if invalid; `b` is another op of its class."""
    try:
        op = a.synthesize(b, dice)
        op = _part(op, dice) if dice.random() < PARTS else op
        return None if Region.whole(op.output).is_empty else op
    except CodlError:
        return None


def _part(op: Op, dice: random.Random) -> Op:
    """A random processor's part of a random split, padded at its outer edges only."""
    if not op.dims:
        return op
    sides = split(op, dice.choice(op.dims), dice.choice(SHARES), align=STEP)
    return op.restrict(dice.choice([side for side in sides if not side.is_empty]))


def block_ops(kind: Literal["attention", "conv"], blocks: int) -> list[Op]:
    """The distinct ops of the first random blocks of a kind."""
    with Path(__file__).with_name(f"{kind}_ops.csv").open(newline="") as file:
        return [parse(row["op"]) for row in csv.DictReader(file) if int(row["block"]) < blocks]
