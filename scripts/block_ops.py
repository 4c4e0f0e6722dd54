"""Write the ops of random attention and convolutional blocks that `codl collect` measures.

`codl/measure/attention_ops.csv` and `conv_ops.csv` have an op a line, with the number of its block.
A network's blocks vary in what its designers vary: tokens, heads, activations and forms of masks;
depthwise windows, group widths, stem widths, squeeze and excitation, concatenations.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

from codl.ir import Op, parse, to_text
from codl.ir.ops.base import STEP
from codl.measure import extra_ops

BLOCKS, ATTENTION_SEED = 16, 17
#: Edges of token maps, least and most channels of a head, and numbers of heads.
SIDES = (4, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
HEAD, HEADS = (8, 64), (2, 3, 4, 6, 8, 12)
#: Largest tensor of a block in elements, and most query-key pairs over all heads: with stored
#: scores, and in fused attention ops.
MOST_ELEMENTS, MOST_PAIRS, ATTENTION_PAIRS = 1 << 20, 1 << 19, 1 << 22
#: Elements of matrices multiplied by one row, in rotation; large ones stream from memory.
#: Their depth is the first number for the first block, and grows by the second for each further.
STREAMED = (1 << 19, 1 << 21, 1 << 23)
LEAST_DEPTH, MORE_DEPTH = 256, 64
#: Sizes of large models, in rotation: query-key pairs over all heads (1,500 tokens of 6 heads make
#: 13 million), channels of a head, and multiplications of a product.
LARGE_PAIRS = (1 << 24, 1 << 22, 1 << 20, 1 << 23, 1 << 21)
LARGE_HEADS = (64, 32, 80, 64, 128, 96, 48)
LARGE_PRODUCTS = (1 << 29, 1 << 28, 1 << 27, 1 << 26)
MODES = ("mean", "sum", "l2")
#: Activations of products and copies; empty for none.
FUNCTIONS = ("", "", "", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hard_swish", "relu")


@dataclass(frozen=True)
class Block:
    """An attention block: `side` x `side` tokens, `heads` of `head` channels, expansion `wider`."""

    side: int
    heads: int
    head: int
    wider: int

    @property
    def tokens(self) -> int:
        return self.side**2

    @property
    def channels(self) -> int:
        return self.heads * self.head

    @property
    def is_small(self) -> bool:
        widest = self.tokens * self.channels * max(self.wider, 3)
        return widest <= MOST_ELEMENTS and self.heads * self.tokens**2 <= MOST_PAIRS


def attention_ops() -> Iterator[tuple[int, Op]]:
    """The ops of random attention blocks, with their block."""
    dice = random.Random(ATTENTION_SEED)
    for number in range(BLOCKS):
        for op in _ops(_block(dice), number, dice):
            yield number, op


def _block(dice: random.Random) -> Block:
    while True:
        head = round(HEAD[0] * (HEAD[1] / HEAD[0]) ** dice.random() / 4) * 4
        block = Block(dice.choice(SIDES), dice.choice(HEADS), head, dice.choice((1, 2, 3, 4)))
        if block.is_small:
            return block


def _ops(block: Block, number: int, dice: random.Random) -> Iterator[Op]:
    def function() -> str:
        name = dice.choice(FUNCTIONS)
        return f" act={name}" if name else ""

    s, n, c, h, d = block.side, block.tokens, block.channels, block.heads, block.head
    m = c * block.wider
    yield parse(f"norm in=1x{s}x{s}x{c},1x1x1x{c},1x1x1x{c} axis=3")
    yield parse(f"norm in=1x{n}x{c},1x1x{c},1x1x{c} axis=2 center={number % 2}")
    yield parse(f"matmul in={n}x{c} matrix={c}x{m}{function()}")
    yield parse(f"matmul in=1x{n}x{m} matrix={m}x{c}")
    yield parse(f"matmul in=1x{h}x{n}x{d},1x{h}x{d}x{n} alpha={d**-0.5:.6g}")
    yield parse(f"softmax in=1x{h}x{n}x{n} axes=3")
    yield parse(f"matmul in=1x{h}x{n}x{n},1x{h}x{n}x{d}")
    yield from _attention(block, number)
    yield parse(f"eltwise in=1x{h}x{n}x{n},1x{h}x{n}x{n}")
    for modes in (("add", "mul"), ("div", "max")):
        yield parse(f"eltwise in=1x{n}x{c}x1,1x{n}x{c}x1 mode={dice.choice(modes)}")
    yield parse(f"eltwise in=1x{c}x{s}x{s} mode=identity{function()}")
    yield parse(f"conv2d in=1x{c}x{s}x{s} oc={c} kernel=1x1{function()}")
    yield _transpose(block, dice)
    yield _transpose(block, dice)
    yield parse(f"reshape in={n}x{m} to=1x{s}x{s}x{m}{function()}")
    yield parse(f"reshape in=1x{n}x{c} to=1x{n}x{h}x{d}")
    which = dice.randrange(3)
    yield parse(
        f"slice in=1x{n}x3x{h}x{d} starts=0x0x{which}x0x0 steps=1x1x1x1x1 to=1x{n}x1x{h}x{d}"
    )
    for more, axis in enumerate((1, 2)):
        mode = MODES[(number + more) % len(MODES)]
        yield parse(f"reduce in=1x{n}x{c} mode={mode} axes={axis} keepdims=1")
    repeated = (f"1x{h}x{d}x1 repeats=1x1x1x{n}", f"1x1x{c} repeats=1x{n}x1")[number % 2]
    yield parse(f"tile in={repeated}")
    yield _rare(block, dice)
    yield from _of_one_token(block, number)
    yield from _of_a_model(block, number)


def _attention(block: Block, number: int) -> Iterator[Op]:
    """Forms of attention with the block's tokens, and with more queries or keys."""
    n, h, d = block.tokens, block.heads, block.head
    keys = min(4 * n, ATTENTION_PAIRS // (h * n))
    tokens = min(2 * n, isqrt(ATTENTION_PAIRS // h))
    mask = ("", f",1x1x{n}x{n}")[number % 2]
    for queries, seen, more in ((n, n, mask), (n, keys, ""), (n, n, " causal=1"),
                                (tokens, tokens, " causal=1")):  # fmt: skip
        q, k = f"1x{h}x{queries}x{d}", f"1x{h}x{seen}x{d}"
        yield parse(f"attention in={q},{k},{k}{more} scale={d**-0.5:.6g}")


def _of_one_token(block: Block, number: int) -> Iterator[Op]:
    """Ops on one token: an embedding lookup, and vector-matrix products."""
    n, c = block.tokens, block.channels
    yield parse(f"gather in={n}x{c},1x1 axis=0")
    yield parse(f"matmul in=1x{c} matrix={c}x{c * block.wider}")
    deep = LEAST_DEPTH + MORE_DEPTH * number
    matrix = f"{deep}x{STREAMED[number % len(STREAMED)] // deep}"
    yield parse(f"matmul in=1x{deep} matrix={matrix}")


def _of_a_model(block: Block, number: int) -> Iterator[Op]:
    """One attention op and one product of the sizes in large models; slow, so one of each."""
    h, d = block.heads, LARGE_HEADS[number % len(LARGE_HEADS)]
    n = isqrt(LARGE_PAIRS[number % len(LARGE_PAIRS)] // h)
    form = ("", " causal=1", f",1x1x{n}x{n}")[number % 3]
    yield parse(f"attention in={','.join([f'1x{h}x{n}x{d}'] * 3)}{form} scale={d**-0.5:.6g}")
    elements = STREAMED[number % len(STREAMED)]
    rows = LARGE_PRODUCTS[number % len(LARGE_PRODUCTS)] // elements
    deep = LEAST_DEPTH + MORE_DEPTH * number
    product = f"in={'1x' * (number % 2)}{rows}x{deep} matrix={deep}x{elements // deep}"
    yield parse(f"matmul {product}")


def _transpose(block: Block, dice: random.Random) -> Op:
    s, n, c, h, d = block.side, block.tokens, block.channels, block.heads, block.head
    ways = (
        f"1x{s}x{s}x{c} perm=0x3x1x2",
        f"1x{c}x{s}x{s} perm=0x2x3x1",
        f"1x{n}x{h}x{d} perm=0x2x1x3",
        f"1x{h}x{n}x{d} perm=0x2x1x3",
        f"1x{n}x{h}x{d} perm=0x2x3x1",
        f"1x{n}x{c} perm=0x2x1",
        f"1x{n}x3x{h}x{d} perm=2x0x3x1x4",
    )
    return parse(f"transpose in={dice.choice(ways)}")


def _rare(block: Block, dice: random.Random) -> Op:
    """A random op of a kind that a block has at most once: concatenation or slice."""
    s, n, c = block.side, block.tokens, block.channels
    ways = (
        f"concat in=1x{c}x{s}x{s},1x{c}x{s}x{s}",
        f"slice in=1x{n}x{c} starts=0x0x0 steps=1x1x1 to=1x{n}x{max(1, c // 2)}",
    )
    return parse(dice.choice(ways))


# Convolutional blocks.

CONV_SEED = 29
#: Edges of maps and of images; most FLOPs of an op.
MAPS, IMAGES = (7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 112), (160, 192, 224, 256, 320)
MOST_FLOPS = 1 << 30
#: Least and most channels of a block.
CHANNELS = (16, 1024)
#: Edges of depthwise windows, channels of a group, and expansion factors of a block.
WINDOWS, GROUPS, WIDER = (3, 5, 7), (4, 8, 16, 24, 32, 64), (2, 3, 4, 6)
#: Output channels of first layers; channels and edges of the maps behind them.
STEMS, FEW, LARGE = (16, 24, 32, 48, 64), (8, 12, 16, 24, 32), (56, 80, 112, 160, 224)
CONV_FUNCTIONS = ("", "relu", "relu", "silu", "hard_swish", "clip:0:6", "leaky_relu:0.1")
GATES = ("sigmoid", "hard_sigmoid:0.1666667:0.5")


@dataclass(frozen=True)
class ConvBlock:
    """A block of `channels` maps of `side` x `side` pixels, its expansion and its index."""

    side: int
    channels: int
    wider: int
    number: int


def conv_ops() -> Iterator[tuple[int, Op]]:
    """The ops of random blocks up to `MOST_FLOPS`, with their block."""
    dice = random.Random(CONV_SEED)
    for number in range(BLOCKS):
        for op in map(parse, _conv_texts(_conv_block(number, dice), dice)):
            if op.flops <= MOST_FLOPS:
                yield number, op


def _conv_block(number: int, dice: random.Random) -> ConvBlock:
    side, wider = dice.choice(MAPS), dice.choice(WIDER)
    least, most = CHANNELS[0], min(CHANNELS[1], MOST_ELEMENTS // (side**2 * wider))
    channels = least * max(1.0, most / least) ** dice.random()
    return ConvBlock(side, max(STEP, round(channels / STEP) * STEP), wider, number)


def _conv_texts(block: ConvBlock, dice: random.Random) -> Iterator[str]:
    def act() -> str:
        name = dice.choice(CONV_FUNCTIONS)
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
    """Grouped convolutions at strides 1 and 2, about as wide as the block or twice."""
    for stride in (1, 2):
        width = GROUPS[(block.number + 3 * (stride - 1)) % len(GROUPS)]
        groups = max(2, round(block.channels * dice.choice((1, 2)) / width))
        channels = groups * width
        window = f"kernel=3x3 stride={stride}x{stride} pad=1 groups={groups}"
        yield f"conv2d in=1x{channels}x{block.side}x{block.side} oc={channels} {window}{act}"


def _narrow(number: int, dice: random.Random, act: Callable[[], str]) -> Iterator[str]:
    """First layers and their successors: many pixels, few channels."""
    image, stem = IMAGES[number % len(IMAGES)], dice.choice(STEMS)
    k, stride = ((3, 2), (7, 2), (3, 1), (4, 4), (5, 2), (16, 16))[number % 6]
    pad = f" pad={k // 2}" if k % 2 else ""
    window = f"kernel={k}x{k} stride={stride}x{stride}{pad}"
    yield f"conv2d in=1x3x{image}x{image} oc={stem} {window}{act()}"
    few, large = FEW[number % len(FEW)], dice.choice(LARGE)
    for stride, times in ((1, 1), (2, 2)):
        window = f"kernel=3x3 stride={stride}x{stride} pad=1"
        yield f"conv2d in=1x{few}x{large}x{large} oc={few * times} {window}{act()}"


def main(folder: Path = Path(extra_ops.__file__).parent) -> None:
    """Write both files; an op that several blocks have is of the first."""
    for name, found in (("attention", attention_ops()), ("conv", conv_ops())):
        blocks: dict[Op, int] = {}
        for number, op in found:
            blocks.setdefault(op, number)
        with (folder / f"{name}_ops.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("block", "op"))
            writer.writerows((number, to_text(op)) for op, number in blocks.items())


if __name__ == "__main__":
    main()
