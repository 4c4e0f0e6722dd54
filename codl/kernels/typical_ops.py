"""Convolutions whose register tiles stand for those of others: small, and of every kind of loop.

How many blocks of output channels should share a pixel depends on the device and its compiler far
more than on the op. So what is found for these holds for ops that were not tuned themselves. Those
of a kind have the same tiles, so that their kernels are compiled once.
"""

from __future__ import annotations

from functools import cache

from codl.ir import Op, parse

#: Output channels are whole blocks of any width, and any number of up to four of them.
TEXTS = (
    "conv2d in=1x128x28x28 oc=192 kernel=1x1",
    "conv2d in=1x192x14x14 oc=192 kernel=1x1",
    "conv2d in=1x64x28x28 oc=192 kernel=3x3 pad=1",
    "conv2d in=1x128x28x28 oc=192 kernel=3x3 pad=1",
)


@cache
def typical_ops() -> tuple[Op, ...]:
    return tuple(map(parse, TEXTS))
