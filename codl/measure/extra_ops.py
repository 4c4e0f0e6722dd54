"""Ops beside those of the models: ones like them, and those that attention is made of.

A few models have few fully connected layers, few poolings and few windows of each size, and their
maps and channels come in powers of two. Held out by shape, the next size must be extrapolated. What
is added is what the same networks would have for another size of image, with other widths, or as a
part of such an op: sizes that no network has teach nothing that is asked for.

And models that are measured by default have no attention. A network with some is planned all the
same, and what nobody has measured of it could only be estimated (`codl.plan.coverage`). A few dozen
rows of each kernel variant take some tens of seconds, and such networks are planned by them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Op, parse, split
from codl.ir.ops.base import STEP, SyntheticGroup
from codl.ir.region import Region

SEED, ATTENTION_SEED = 20220627, 17
#: An op is the one of 12 candidates that is farthest in size from all others: they fill the range.
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
    for (group, inputs), members in classes.items():
        share = group.weight / sum(weights.values()) * _share((group, inputs), classes)
        made += _spread(members, round(count * share), dice)
    return made


def _spread(members: Sequence[Op], wanted: int, dice: random.Random) -> list[Op]:
    """New ops of a class, each as far from all others as the best of some candidates."""
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


def _share(which: _Class, classes: Mapping[_Class, Sequence[Op]]) -> float:
    """A class's share of the ops of its group: as many as it has, but not next to none."""
    counts = {key: len(members) for key, members in classes.items() if key[0].name == which[0].name}
    least = sum(counts.values()) / (2 * len(counts))
    return max(counts[which], least) / sum(max(count, least) for count in counts.values())


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


#: Maps of tokens, channels for each head, and heads.
SIDES = (4, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
HEAD, HEADS = (8, 64), (2, 3, 4, 6, 8, 12)
#: No tensor of a block has more elements, and its tokens meet in no more pairs for all heads; in
#: attention as one op, which keeps no scores, in no more than the last.
MOST_ELEMENTS, MOST_PAIRS, ATTENTION_PAIRS = 1 << 20, 1 << 19, 1 << 22
#: Elements of matrices that one row is multiplied by, by turns: the large ones stream from memory.
#: The matrix of the first block has the first depth, that of each further one the second more.
STREAMED = (1 << 19, 1 << 21, 1 << 23)
LEAST_DEPTH, MORE_DEPTH = 256, 64
#: The sizes of models, by turns: pairs in which tokens of all heads meet (1,500 tokens of 6 heads
#: make 13 million), features of a head, and multiplications of a product.
LARGE_PAIRS = (1 << 24, 1 << 22, 1 << 20, 1 << 23, 1 << 21)
LARGE_HEADS = (64, 32, 80, 64, 128, 96, 48)
LARGE_PRODUCTS = (1 << 29, 1 << 28, 1 << 27, 1 << 26)
MODES = ("mean", "sum", "l2")
#: Functions behind its products and copies; most have none.
FUNCTIONS = ("", "", "", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hard_swish", "relu")


@dataclass(frozen=True)
class Block:
    """`side` x `side` tokens of `heads` heads, each of `head` channels, widened `wider` times."""

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


def attention_ops(blocks: int) -> list[Op]:
    """The distinct ops of `blocks` blocks; those of fewer blocks come first."""
    dice = random.Random(ATTENTION_SEED)
    ops: dict[Op, None] = {}
    for number in range(blocks):
        ops.update(dict.fromkeys(_ops(_block(dice), number, dice)))
    return list(ops)


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
    """Each form of attention among the block's tokens, and with more of them."""
    n, h, d = block.tokens, block.heads, block.head
    keys = min(4 * n, ATTENTION_PAIRS // (h * n))
    tokens = min(2 * n, isqrt(ATTENTION_PAIRS // h))
    mask = ("", f",1x1x{n}x{n}")[number % 2]
    for queries, seen, more in ((n, n, mask), (n, keys, ""), (n, n, " causal=1"),
                                (tokens, tokens, " causal=1")):  # fmt: skip
        q, k = f"1x{h}x{queries}x{d}", f"1x{h}x{seen}x{d}"
        yield parse(f"attention in={q},{k},{k}{more} scale={d**-0.5:.6g}")


def _of_one_token(block: Block, number: int) -> Iterator[Op]:
    """A row of a table, and products of one row, which read their matrix once."""
    n, c = block.tokens, block.channels
    yield parse(f"gather in={n}x{c},1x1 axis=0")
    yield parse(f"matmul in=1x{c} matrix={c}x{c * block.wider}")
    deep = LEAST_DEPTH + MORE_DEPTH * number
    matrix = f"{deep}x{STREAMED[number % len(STREAMED)] // deep}"
    yield parse(f"matmul in=1x{deep} matrix={matrix}")


def _of_a_model(block: Block, number: int) -> Iterator[Op]:
    """What takes longest, as large as models have it: one of each, since it takes long."""
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
    """What a block has at most one of."""
    s, n, c = block.side, block.tokens, block.channels
    ways = (
        f"concat in=1x{c}x{s}x{s},1x{c}x{s}x{s}",
        f"slice in=1x{n}x{c} starts=0x0x0 steps=1x1x1 to=1x{n}x{max(1, c // 2)}",
    )
    return parse(dice.choice(ways))
