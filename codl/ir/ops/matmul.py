"""Products: of matrices with broadcast batch axes, fully connected layers, and attention.

Attention is that of Vaswani et al. 2017.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from operator import attrgetter
from random import Random
from typing import Any, ClassVar, NamedTuple

import numpy as np

from codl.ir.columns import Column, Columns, FeatureColumns, ceil_div
from codl.ir.ops.base import Array, Op, SyntheticGroup, Values, Weights, channels
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.nd import NdOp, Sizes, cuts_of, resized
from codl.ir.ops.reductions import Softmax
from codl.ir.region import Region, Shape, Span, as_nchw


class BatchAxis(NamedTuple):
    """Merged neighbouring batch axes: their size, and the operands that have them."""

    size: int
    in_a: bool
    in_b: bool


def merged(op: MatMul) -> tuple[int, list[BatchAxis]]:
    """Rows of a matrix of a, and the merged batch axes, outermost first.

    Neighbouring axes merge if the same operands have both. If b is broadcast along the innermost,
    a's matrices there become one matrix with more rows.
    """
    a, b = op.sizes
    if len(a) == len(b) == 2:
        return op.m, []
    rank = max(len(a), len(b)) - 2
    left, right = (((1,) * rank + sizes[:-2])[-rank:] for sizes in (a, b))
    axes: list[BatchAxis] = []
    for in_a, in_b in zip(left, right, strict=True):
        axis = BatchAxis(max(in_a, in_b), in_a > 1, in_b > 1)
        if axis.size == 1:
            continue
        if axes and axes[-1][1:] == axis[1:]:
            axis = axis._replace(size=axis.size * axes.pop().size)
        axes.append(axis)
    if axes and not axes[-1].in_b and not op.trans_a:
        return op.m * axes[-1].size, axes[:-1]
    return op.m, axes


@dataclass(frozen=True)
class MatMulColumns(Columns):
    """Columns of `products` products of (m, k) and (k, n) matrices.

    `m` counts the rows of all matrices of a that `merged` joins.
    """

    oc: Column
    m: Column
    n: Column
    k: Column
    products: Column
    a_matrices: Column
    b_matrices: Column
    is_constant: Column
    trans_a: Column
    trans_b: Column
    rank: Column

    @staticmethod
    def _rows(ops: Sequence[MatMul]) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        for op in ops:
            m, axes = merged(op)
            a, b = (prod(axis.size for axis in axes if axis[1 + i]) for i in (0, 1))
            sizes = (m, op.n, op.k, prod(axis.size for axis in axes), a, b)
            form = (bool(op.matrix), op.trans_a, op.trans_b, len(op.out_sizes))
            rows.append((op.input.n, op.output.c, *sizes, *form))
        return rows

    @property
    def input_elements(self) -> Column:
        of_b = (1 - self.is_constant) * self.b_matrices * self.n
        return (self.a_matrices * self.m + of_b) * self.k

    @property
    def weight_elements(self) -> Column:
        return self.is_constant * (self.k + 1) * self.n

    @property
    def output_elements(self) -> Column:
        return self.products * self.m * self.n

    @property
    def flops(self) -> Column:
        return 2 * self.k * self.output_elements


@dataclass(frozen=True, kw_only=True)
class MatMul(NdOp):
    """`alpha * a @ b`, each of at least two axes; the last two are a matrix.

    `shapes` has a and, unless constant, b. A constant b has sizes `matrix` (two axes), and is a
    weight with a bias per column. `trans_a` and `trans_b` mark operands stored transposed.
    """

    matrix: Sizes = ()
    trans_a: bool = False
    trans_b: bool = False
    alpha: float = 1.0

    kind: ClassVar[str] = "matmul"
    examples: ClassVar[tuple[str, ...]] = (
        "matmul in=64x32,32x48",
        "matmul in=2x32,48x32 trans_b=1",
        "matmul in=5x32 matrix=32x48",
        "matmul in=2x32 matrix=32x48",
    )
    is_product: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = MatMulColumns

    @property
    def flavor(self) -> str:
        return "constant" if self.matrix else ""

    @property
    def sizes(self) -> tuple[Sizes, Sizes]:
        return self.shapes[0], self.matrix or self.shapes[1]

    @property
    def m(self) -> int:
        return self.shapes[0][-1 if self.trans_a else -2]

    @property
    def k(self) -> int:
        return self.shapes[0][-2 if self.trans_a else -1]

    @property
    def n(self) -> int:
        return self.sizes[1][-2 if self.trans_b else -1]

    @cached_property
    def batch(self) -> Sizes:
        """Sizes of the output's batch axes."""
        a, b = self.sizes
        return np.broadcast_shapes(a[:-2], b[:-2])

    @cached_property
    def out_sizes(self) -> Sizes:
        return (*self.batch, self.m, self.n)

    @property
    def free_axes(self) -> Iterable[int]:
        """All output axes, as k is none of them."""
        return range(len(self.out_sizes))

    def source(self, axis: int, index: int) -> int | None:
        """Rows come from a, columns from b, batch axes from operands not broadcast there."""
        sizes, rank = self.shapes[index], len(self.out_sizes)
        if axis >= rank - 2:
            is_own = index == axis - (rank - 2)
            is_turned = (self.trans_a, self.trans_b)[index]
            return len(sizes) - 2 + (index != is_turned) if is_own else None
        place = axis - (rank - len(sizes))
        return place if place >= 0 and sizes[place] == self.out_sizes[axis] else None

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        columns = cuts.get(len(self.out_sizes) - 1)
        if not self.matrix or columns is None:
            return {}
        return {"matrix": resized(self.matrix, {0 if self.trans_b else 1: columns})}

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, Array]:
        """Views of the weights of the part's columns."""
        sizes = self.out_sizes
        columns = cuts_of(part, sizes).get(len(sizes) - 1)
        if not self.matrix or columns is None:
            return dict(weights)
        matrix, part_of_columns = weights["weight"], slice(*columns)
        taken = matrix[part_of_columns] if self.trans_b else matrix[:, part_of_columns]
        return {"weight": taken, "bias": weights["bias"][part_of_columns]}

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": self.matrix, "bias": (self.n,)} if self.matrix else {}

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        a = inputs[0]
        b = weights["weight"].astype(np.float64) if self.matrix else inputs[1]
        a = a.swapaxes(-1, -2) if self.trans_a else a
        b = b.swapaxes(-1, -2) if self.trans_b else b
        value = self.alpha * (a @ b)
        if self.matrix:
            value = value + weights["bias"]
        return value


#: Reads these attributes in one call per op.
_SIZES = attrgetter("inputs", "out_channels")
#: Standard deviation of the power of 2 that changes sizes of synthetic layers.
SPREAD = 1.0


@dataclass(frozen=True)
class FcColumns(Columns):
    """Columns of fully connected layers, with inputs of `ic` x `ih` x `iw`."""

    ic: Column
    ih: Column
    iw: Column
    oc: Column

    @staticmethod
    def _rows(ops: Sequence[FullyConnected]) -> list[tuple[int, ...]]:
        return [(*shape, oc) for (shape,), oc in map(_SIZES, ops)]

    @cached_property
    def in_features(self) -> Column:
        return self.ic * self.ih * self.iw

    @property
    def input_elements(self) -> Column:
        return self.images * self.in_features

    @property
    def weight_elements(self) -> Column:
        return self.oc * (self.in_features + 1)

    @property
    def output_elements(self) -> Column:
        return self.images * self.oc

    @property
    def mulayer_features(self) -> FeatureColumns:
        return {"flops": self.flops, "in_features": self.in_features, "out_features": self.oc}

    @property
    def flops(self) -> Column:
        return 2 * self.in_features * self.images * self.oc


@dataclass(frozen=True, kw_only=True)
class FullyConnected(Op):
    """`weight` is (out_channels, c * h * w of the input in nchw order), `bias` (out_channels)."""

    out_channels: int

    kind: ClassVar[str] = "fc"
    examples: ClassVar[tuple[str, ...]] = ("fc in=1x64x1x1 oc=64",)
    is_product: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = FcColumns
    inner_dims = ("OC",)
    synthetic_group = SyntheticGroup("fc", 5)

    @property
    def in_features(self) -> int:
        return self.input.c * self.input.h * self.input.w

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, 1, 1)

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.out_channels, self.in_features), "bias": (self.out_channels,)}

    def synthesize(self, other: Op, dice: Random) -> FullyConnected:
        """Features in and out between two layers' at one random place, then varied."""
        assert isinstance(other, FullyConnected)
        place = dice.random()

        def size(first: int, second: int) -> int:
            between = first ** (1 - place) * second**place
            return max(1, channels(between * 2 ** dice.gauss(0, SPREAD)))

        shape = Shape(1, size(self.in_features, other.in_features), 1, 1)
        out = size(self.out_channels, other.out_channels)
        return replace(self, inputs=(shape,), out_channels=out)

    def needs(self, part: Region, index: int = 0) -> Region:
        return Region.whole(self.input)._replace(images=part.images)

    def restrict(self, part: Region) -> FullyConnected:
        inputs = (self.input._replace(n=part.images.size),)
        return replace(self, inputs=inputs, out_channels=part.channels.size)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        weight, bias = (weights[name].astype(np.float64) for name in ("weight", "bias"))
        return np.asarray(inputs[0].reshape(self.input.n, -1) @ weight.T + bias)


#: Axes of heads and tokens. Operands are (images, heads, tokens, features); a bias ends in keys.
HEADS, TOKENS = 1, 2
#: FLOPs of softmax per query and key: maximum, difference, exponential, sum and product.
SOFTMAX_FLOPS = 5


@dataclass(frozen=True)
class AttentionColumns(Columns):
    """Columns of attention ops; `heads` and `groups` count all images."""

    oc: Column
    heads: Column
    groups: Column
    queries: Column
    keys: Column
    features: Column
    value_features: Column
    causal: Column
    first: Column
    bias_elements: Column

    @staticmethod
    def _rows(ops: Sequence[Attention]) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        for op in ops:
            n, heads, queries, features = op.shapes[0]
            bias = prod(op.shapes[3]) if op.has_bias else 0
            sizes = (heads, n * heads, n * op.groups, queries, op.keys, features, op.shapes[2][3])
            rows.append((n, *sizes, op.causal, op.first, bias))
        return rows

    @property
    def pairs(self) -> Column:
        """Pairs of a query and a visible key in one head."""
        full = np.clip(self.keys - self.first, 0, self.queries)
        seen = full * self.first + full * (full + 1) / 2 + (self.queries - full) * self.keys
        return np.where(self.causal > 0, seen, self.queries * self.keys)

    def seen(self, rows: Column | float) -> Column:
        """Mean number of keys visible to a block of `rows` neighbouring queries."""
        more = self.causal * (np.minimum(rows, self.queries) - 1) / 2
        result: Column = np.minimum(self.pairs / self.queries + more, self.keys)
        return result

    def blocks(self, rows: Column | float, size: Column | float) -> Column:
        """Mean number of key blocks of `size` that `rows` queries visit; a causal mask cuts one."""
        whole = ceil_div(self.keys, size)
        cut = np.clip(self.seen(rows) / size + 0.5, 1, whole)
        result: Column = np.where(self.causal > 0, cut, whole)
        return result

    @property
    def input_elements(self) -> Column:
        of_keys = self.groups * self.keys * (self.features + self.value_features)
        return self.heads * self.queries * self.features + of_keys + self.bias_elements

    @property
    def output_elements(self) -> Column:
        return self.heads * self.queries * self.value_features

    @property
    def flops(self) -> Column:
        each = 2 * (self.features + self.value_features) + SOFTMAX_FLOPS
        return self.heads * self.pairs * each


@dataclass(frozen=True, kw_only=True)
class Attention(NdOp):
    """softmax(scale * q @ k^T + bias) @ v for each head.

    `shapes` are q (images, heads, queries, features), k (images, groups, keys, features) and v
    (images, groups, keys, value features). A fourth is a bias (images or 1, heads or 1, queries or
    1, keys). `heads / groups` consecutive heads share keys and values. If `causal`, query i sees
    keys up to `first + i`. A query whose bias is -inf for all keys gives 0 with `zeros`, as ONNX's
    node, else NaN, as softmax.
    """

    scale: float = 1.0
    causal: bool = False
    first: int = 0
    zeros: bool = False

    kind: ClassVar[str] = "attention"
    examples: ClassVar[tuple[str, ...]] = (
        "attention in=1x3x37x24,1x3x41x24,1x3x41x20 scale=0.2",
        "attention in=1x4x21x16,1x2x29x16,1x2x29x16,1x1x21x29 scale=0.25",
        "attention in=1x4x21x16,1x2x29x16,1x2x29x16,1x1x21x29 scale=0.25 zeros=1",
        "attention in=2x2x70x16,2x2x77x16,2x2x77x16 scale=0.25 causal=1 first=7",
    )
    is_product: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = AttentionColumns
    free_axes = (0, HEADS, TOKENS)

    @property
    def flavor(self) -> str:
        return "causal" if self.causal else ""

    @property
    def has_bias(self) -> bool:
        return len(self.shapes) > 3

    @property
    def heads(self) -> int:
        return self.shapes[0][HEADS]

    @property
    def groups(self) -> int:
        return self.shapes[1][HEADS]

    @property
    def queries(self) -> int:
        return self.shapes[0][TOKENS]

    @property
    def keys(self) -> int:
        return self.shapes[1][TOKENS]

    @property
    def out_sizes(self) -> Sizes:
        return (*self.shapes[0][:3], self.shapes[2][3])

    @property
    def problem(self) -> str | None:
        if len(self.shapes) not in (3, 4) or any(len(sizes) != 4 for sizes in self.shapes):
            return f"q, k, v and a bias must have 4 axes each, got {self.shapes}."
        q, k, v, *bias = self.shapes
        if k[:3] != v[:3] or k[0] != q[0] or k[3] != q[3] or q[1] % k[1]:
            return f"q, k and v do not fit together: {q}, {k}, {v}."
        full = (*q[:3], k[2])
        for shape in bias:
            if shape[3] != k[2] or any(a not in (1, b) for a, b in zip(shape, full, strict=True)):
                return f"the bias must have all keys and stretch to {full}, got {shape}."
        if not self.scale:
            return "scale must not be 0, which libraries take for the usual one."
        return None if self.first >= 0 else f"first must not be negative, got {self.first}."

    @property
    def channel_step(self) -> int:
        """Heads that share keys stay together; with one group they may be cut anywhere."""
        return 1 if self.groups == 1 else self.heads // self.groups

    def source(self, axis: int, index: int) -> int | None:
        """Keys and values have an axis of groups; a range of queries needs all tokens of both."""
        if index in (1, 2):
            has_axis = axis == 0 or (axis == HEADS and self.groups > 1)
            return axis if has_axis else None
        return axis if self.shapes[index][axis] > 1 else None

    def _needs(self, cuts: Mapping[int, Span], index: int) -> dict[int, Span]:
        """Regions as of any op; a causal mask needs only keys up to the last query's."""
        needed = super()._needs(cuts, index)
        if index not in (1, 2):
            return needed
        if HEADS in needed:
            step = self.heads // self.groups
            needed[HEADS] = Span(needed[HEADS].start // step, -(-needed[HEADS].stop // step))
        if self.causal and TOKENS in cuts and not self.has_bias:
            needed[TOKENS] = Span(0, min(self.first + cuts[TOKENS].stop, self.keys))
        return needed

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        queries = cuts.get(TOKENS)
        return {"first": self.first + queries.start} if self.causal and queries else {}

    @property
    def stands_for(self) -> tuple[Op, ...]:
        """Scores, sum with the bias, softmax, and product with the values."""
        n, heads, queries, features = self.shapes[0]
        rows = heads // self.groups * queries
        q, scores = (n, self.groups, rows, features), (n, self.groups, rows, self.keys)
        full = (n, heads, queries, self.keys)
        added = [
            Eltwise(inputs=(as_nchw(full), as_nchw(bias)), mode="add") for bias in self.shapes[3:]
        ]
        return (
            MatMul(shapes=(q, self.shapes[1]), trans_b=True, alpha=self.scale),
            *added,
            Softmax(shapes=(scores,), axes=(3,)),
            MatMul(shapes=(scores, self.shapes[2])),
        )

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        q, k, v, *bias = inputs
        k, v = (np.repeat(x, self.heads // self.groups, axis=HEADS) for x in (k, v))
        scores = self.scale * (q @ k.swapaxes(2, 3))
        if bias:
            scores = scores + bias[0]
        if self.causal:
            distance = np.arange(self.keys) - np.arange(self.queries)[:, None] - self.first
            scores = np.where(distance <= 0, scores, -np.inf)
        most = scores.max(axis=3, keepdims=True)
        if self.zeros:
            most = np.where(np.isneginf(most), 0, most)
        odds = np.exp(scores - most)
        total = odds.sum(axis=3, keepdims=True)
        if self.zeros:
            total = np.where(total == 0, 1, total)
        result: Values = odds / total @ v
        return result
