"""Ops of convolutional networks of kinds that no model here is of, to be measured beside theirs.

What a network has is what its designers varied: the window of a depthwise convolution, the width of
groups, the function behind it, how wide a stem is, squeeze and excitation, concatenations. Where
none of it was measured, a kernel variant is extrapolated from others' windows, or only estimated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from codl.ir import Op, parse

SEED = 29
#: Rows and columns of maps, and of images; no tensor has more elements, no op more FLOPs.
SIDES, IMAGES = (7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 112), (160, 192, 224, 256, 320)
MOST_ELEMENTS, MOST_FLOPS = 1 << 20, 1 << 30
CHANNELS, STEP = (16, 1024), 8
#: Windows of depthwise convolutions, channels of a group, and times that a block is widened.
WINDOWS, GROUPS, WIDER = (3, 5, 7), (4, 8, 16, 24, 32, 64), (2, 3, 4, 6)
#: What first layers make of an image, and maps with so few channels.
STEMS, FEW, LARGE = (16, 24, 32, 48, 64), (8, 12, 16, 24, 32), (56, 80, 112, 160, 224)
FUNCTIONS = ("", "relu", "relu", "silu", "hard_swish", "clip:0:6", "leaky_relu:0.1")
GATES = ("sigmoid", "hard_sigmoid:0.1666667:0.5")


@dataclass(frozen=True)
class ConvBlock:
    """Maps of `side` x `side` pixels with some channels, and how often of what the block is."""

    side: int
    channels: int
    wider: int
    number: int


def conv_ops(blocks: int) -> list[Op]:
    """The distinct ops of `blocks` blocks; those of fewer blocks come first."""
    dice = random.Random(SEED)
    ops: dict[Op, None] = {}
    for number in range(blocks):
        ops.update(dict.fromkeys(map(parse, _texts(_block(number, dice), dice))))
    return [op for op in ops if op.flops <= MOST_FLOPS]


def _block(number: int, dice: random.Random) -> ConvBlock:
    side, wider = dice.choice(SIDES), dice.choice(WIDER)
    least, most = CHANNELS[0], min(CHANNELS[1], MOST_ELEMENTS // (side**2 * wider))
    channels = least * max(1.0, most / least) ** dice.random()
    return ConvBlock(side, max(STEP, round(channels / STEP) * STEP), wider, number)


def _texts(block: ConvBlock, dice: random.Random) -> Iterator[str]:
    def act() -> str:
        name = dice.choice(FUNCTIONS)
        return f" act={name}" if name else ""

    s, c, number = block.side, block.channels, block.number
    maps, wide = f"1x{c}x{s}x{s}", c * block.wider
    for stride in (1, 2):
        k = WINDOWS[(number + stride) % len(WINDOWS)]
        window = f"kernel={k}x{k} stride={stride}x{stride} pad={k // 2}"
        yield f"conv2d in=1x{wide}x{s}x{s} oc={wide} {window} groups={wide}{act()}"
    yield f"conv2d in={maps} oc={wide} kernel=1x1{act()}"
    yield f"conv2d in=1x{wide}x{s}x{s} oc={c} kernel=1x1"
    yield from _grouped(block, act(), dice)
    yield from _narrow(number, dice, act)
    # Squeeze and excitation.
    yield f"pooling in={maps} mode=avg kernel={s}x{s}"
    yield f"conv2d in=1x{c}x1x1 oc={max(STEP, c // 4)} kernel=1x1 act=relu"
    yield f"conv2d in=1x{max(STEP, c // 4)}x1x1 oc={c} kernel=1x1 act={dice.choice(GATES)}"
    yield f"eltwise in={maps},1x{c}x1x1 mode=mul"
    # Branches that meet.
    others = [max(STEP, round(c * dice.choice((0.25, 0.5, 1, 1.5)) / STEP) * STEP) for _ in "abc"]
    widths = (c, *others[: 1 + 2 * (number % 2)])
    yield f"concat in={','.join(f'1x{width}x{s}x{s}' for width in widths)}"
    yield f"eltwise in={maps},{maps}{act()}"
    mode = ("max", "avg")[number % 2]
    yield f"pooling in={maps} mode={mode} kernel=3x3 pad=1"
    yield f"pooling in={maps} mode={mode} kernel=2x2 stride=2x2"
    long, wing = (("1x7", "0,3,0,3"), ("7x1", "3,0,3,0"), ("1x3", "0,1,0,1"))[number % 3]
    yield f"conv2d in={maps} oc={c} kernel={long} pad={wing}{act()}"
    yield f"conv2d in={maps} oc={c} kernel=3x3 pad=2 dilation=2x2{act()}"


def _grouped(block: ConvBlock, act: str, dice: random.Random) -> Iterator[str]:
    """Groups of several channels, at both strides: as wide as such a network's, or the map's."""
    for stride in (1, 2):
        width = GROUPS[(block.number + 3 * (stride - 1)) % len(GROUPS)]
        groups = max(2, round(block.channels * dice.choice((1, 2)) / width))
        channels = groups * width
        window = f"kernel=3x3 stride={stride}x{stride} pad=1 groups={groups}"
        yield f"conv2d in=1x{channels}x{block.side}x{block.side} oc={channels} {window}{act}"


def _narrow(number: int, dice: random.Random, act: Callable[[], str]) -> Iterator[str]:
    """First layers, and those behind them: many pixels of few channels."""
    image, stem = IMAGES[number % len(IMAGES)], dice.choice(STEMS)
    k, stride = ((3, 2), (7, 2), (3, 1), (4, 4), (5, 2), (16, 16))[number % 6]
    pad = f" pad={k // 2}" if k % 2 else ""
    window = f"kernel={k}x{k} stride={stride}x{stride}{pad}"
    yield f"conv2d in=1x3x{image}x{image} oc={stem} {window}{act()}"
    few, large = FEW[number % len(FEW)], dice.choice(LARGE)
    for stride, times in ((1, 1), (2, 2)):
        window = f"kernel=3x3 stride={stride}x{stride} pad=1"
        yield f"conv2d in=1x{few}x{large}x{large} oc={few * times} {window}{act()}"
