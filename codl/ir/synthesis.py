"""How the sizes of a layer vary from network to network, for ops that no model has.

A network is made for images of other sizes, and with more or fewer channels in every layer.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import NamedTuple

from codl.ir.region import Shape

#: Maps and channels grow by 2 to a power up to these.
RESOLUTION, WIDTH = 1.0, 1.0
#: Columns for every row of an image; most are square.
ASPECTS = (1.0, 1.0, 1.0, 1.0, 4 / 3, 3 / 4, 16 / 9)
#: Maps do not get smaller than this, unless a model has such.
LEAST_MAP = 4
#: Above this, channels are a multiple of the step below it, as models have them.
FEW_CHANNELS, STEP = 16, 8


class SyntheticGroup(NamedTuple):
    """Ops that new ones are made among, as they have kernel variants of their own.

    Groups get new ops by their `weight`; within one, ops that differ in `algorithm` do not vary
    into each other.
    """

    name: str
    weight: float
    algorithm: Hashable = None


def factor(dice: Random, power: float) -> float:
    """2 to a power between -`power` and `power`."""
    return float(2 ** dice.uniform(-power, power))


def width(dice: Random) -> float:
    """How many times as many channels another network has."""
    return factor(dice, WIDTH)


def channels(size: float) -> int:
    """The number of channels nearest to `size` that models have."""
    return max(1, round(size)) if size < FEW_CHANNELS else STEP * round(size / STEP)


def map_size(shape: Shape, dice: Random, least: int = 1) -> tuple[int, int]:
    """Rows and columns of a map for an image of another size and shape, `least` at least."""
    h = shape.h * factor(dice, RESOLUTION)
    w = h * shape.w / shape.h * dice.choice(ASPECTS)
    return (
        max(round(h), min(shape.h, LEAST_MAP), least),
        max(round(w), min(shape.w, LEAST_MAP), least),
    )
