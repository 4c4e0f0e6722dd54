"""Attention (Vaswani et al. 2017), the same to a key-value cache, and rotary position embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column, Columns, ceil_div
from codl.ir.ops.base import Op, Values, Weights
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.nd import NdOp, Sizes
from codl.ir.ops.reductions import Softmax
from codl.ir.region import Span, as_nchw

#: The axes of every operand: images, heads, tokens, and features or (of a bias) keys.
HEADS, TOKENS = 1, 2
#: A maximum, a difference, an exponential, a sum and a product for each pair of tokens.
SOFTMAX_FLOPS = 5


@dataclass(frozen=True)
class AttentionColumns(Columns):
    """Of `heads` of all images together, which share keys and values in `groups`."""

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
        return list(map(_row, ops))

    @property
    def pairs(self) -> Column:
        """Queries and keys that meet in one head."""
        full = np.clip(self.keys - self.first, 0, self.queries)
        seen = full * self.first + full * (full + 1) / 2 + (self.queries - full) * self.keys
        return np.where(self.causal > 0, seen, self.queries * self.keys)

    def seen(self, rows: Column | float) -> Column:
        """Keys that so many neighbouring queries of a head see together, in the mean."""
        more = self.causal * (np.minimum(rows, self.queries) - 1) / 2
        result: Column = np.minimum(self.pairs / self.queries + more, self.keys)
        return result

    def blocks(self, rows: Column | float, size: Column | float) -> Column:
        """Blocks of so many keys that these are in, in the mean: a causal mask cuts one."""
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


def _row(op: Attention) -> tuple[int, ...]:
    n, heads, queries, features = op.shapes[0]
    bias = int(np.prod(op.shapes[3])) if op.has_bias else 0
    return (
        *(n, heads, n * heads, n * op.groups, queries, op.keys, features),
        *(op.shapes[2][3], op.causal, op.first, bias),
    )


@dataclass(frozen=True, kw_only=True)
class Attention(NdOp):
    """softmax(scale * q @ k^T + bias) @ v for every head.

    `shapes` are q (images, heads, queries, features), k (images, groups, keys, features), v
    (images, groups, keys, value features) and, if there is one, a bias (images or 1, heads or 1,
    queries or 1, keys). As many consecutive heads as `heads / groups` share keys and values.
    `causal`: query i sees the keys up to `first + i`, and no others. A query whose keys are all
    hidden by a bias of -inf gives `zeros`, as ONNX's node does, or NaN, as a softmax does.
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
        """Heads that share keys stay together, unless all do."""
        return 1 if self.groups == 1 else self.heads // self.groups

    def source(self, axis: int, index: int) -> int | None:
        """Keys and values have an axis of groups; all of them are needed for a range of queries."""
        if index in (1, 2):
            has_axis = axis == 0 or (axis == HEADS and self.groups > 1)
            return axis if has_axis else None
        return axis if self.shapes[index][axis] > 1 else None

    def _needs(self, cuts: Mapping[int, Span], index: int) -> dict[int, Span]:
        """Of a causal mask's keys those that the last of the queries sees."""
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
        """Scores, their sums with the bias, their softmax, and the product with the values."""
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


@dataclass(frozen=True)
class CachedAttentionColumns(Columns):
    """New `tokens` of `heads` queries in each of the `groups`, which have a cache each."""

    oc: Column
    tokens: Column
    groups: Column
    heads: Column
    features: Column
    value_features: Column
    capacity: Column

    @staticmethod
    def _rows(ops: Sequence[CachedAttention]) -> list[tuple[int, ...]]:
        return [
            (
                *(1, op.tokens, op.tokens, op.groups, op.heads),
                *(op.features, op.value_features, op.capacity),
            )
            for op in ops
        ]

    @property
    def queries(self) -> Column:
        """Of all groups."""
        return self.groups * self.tokens * self.heads

    @property
    def seen(self) -> Column:
        """Keys that a query sees in the mean, with half of the cache full."""
        return np.minimum(np.floor(self.capacity / 2) + (self.tokens + 1) / 2, self.capacity)

    @property
    def filled(self) -> Column:
        """Tokens that the cache holds with the new ones, where half of it was full."""
        return np.minimum(np.floor(self.capacity / 2) + self.tokens, self.capacity)

    @property
    def cached_elements(self) -> Column:
        return self.groups * self.capacity * (self.features + self.value_features)

    @property
    def input_elements(self) -> Column:
        new = self.queries * self.features + self.groups * self.tokens * (
            self.features + self.value_features
        )
        return new + 1 + self.cached_elements

    @property
    def output_elements(self) -> Column:
        return self.queries * self.value_features

    @property
    def flops(self) -> Column:
        pairs = np.floor(self.queries * self.capacity / 2)
        return 2 * pairs * (self.features + self.value_features)


@dataclass(frozen=True, kw_only=True)
class CachedAttention(NdOp):
    """New tokens attend to themselves and to all tokens before them.

    `shapes` are queries (1, tokens, groups, heads of a group * features), keys and values of the
    same tokens (1, tokens, groups, features), how many tokens came before (1,), and the caches of
    keys and of values (1, groups, capacity, features). A token sees itself and what is before it.
    Its keys and values are written into the caches, behind those of the tokens before. Where the
    cache has no room behind so many tokens, they are counted as so many that it has.

    A part has some of the groups, and their caches: no other part ever reads those.
    """

    scale: float = 1.0

    kind: ClassVar[str] = "cached_attention"
    examples: ClassVar[tuple[str, ...]] = (
        "cached_attention in=1x2x3x32,1x2x3x16,1x2x3x16,1,1x3x24x16,1x3x24x16 scale=0.25",
        "cached_attention in=1x1x2x48,1x1x2x16,1x1x2x16,1,1x2x16x16,1x2x16x16 scale=0.25",
    )
    states: ClassVar[tuple[int, ...]] = (4, 5)
    size_columns: ClassVar[type[Columns]] = CachedAttentionColumns
    free_axes = (2,)

    @property
    def tokens(self) -> int:
        return self.shapes[0][1]

    @property
    def groups(self) -> int:
        return self.shapes[0][2]

    @property
    def features(self) -> int:
        """Of a key."""
        return self.shapes[1][3]

    @property
    def value_features(self) -> int:
        return self.shapes[2][3]

    @property
    def heads(self) -> int:
        """Of queries in a group."""
        return self.shapes[0][3] // self.features

    @property
    def capacity(self) -> int:
        return self.shapes[4][2]

    @property
    def out_sizes(self) -> Sizes:
        return (1, self.tokens, self.groups, self.heads * self.value_features)

    def source(self, axis: int, index: int) -> int | None:
        """Groups are the second axis of a cache."""
        return None if index == 3 else (1 if index in self.states else 2)

    @property
    def typical(self) -> dict[int, float]:
        """The cache is half full, as `flops` counts it."""
        return {3: self.capacity // 2}

    @property
    def problem(self) -> str | None:
        ranks = tuple(map(len, self.shapes))
        if ranks != (4, 4, 4, 1, 4, 4):
            return f"queries, keys, values and caches must have 4 axes, the count 1, got {ranks}."
        queries, keys, values, count, *caches = self.shapes
        wanted = [(1, keys[2], self.capacity, new[3]) for new in (keys, values)]
        alike = queries[:3] == keys[:3] == values[:3] and keys[0] == 1 and count == (1,)
        if not alike or queries[3] % keys[3] or caches != wanted:
            return f"queries, keys, values and caches do not fit together: {self.shapes}."
        if self.tokens > self.capacity:
            return f"{self.tokens} tokens do not go into a cache of {self.capacity}."
        return None

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        first, (keys, values) = self._first(inputs), self._kept(inputs)
        heads = inputs[0].reshape(self.tokens, self.groups, self.heads, self.features)
        scores = self.scale * np.einsum("tghf,gkf->tghk", heads, keys[0])
        places = np.arange(self.capacity) - first - np.arange(self.tokens)[:, None]
        scores = np.where(places[:, None, None] > 0, -np.inf, scores)
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        odds /= odds.sum(-1, keepdims=True)
        mixed: Values = np.einsum("tghk,gkf->tghf", odds, values[0])
        return mixed

    def updated(self, inputs: Sequence[Values]) -> tuple[Values, ...]:
        kept = self._kept(self.shaped(inputs))
        return tuple(new.reshape(self.inputs[i]) for i, new in zip(self.states, kept, strict=True))

    def _first(self, shaped: Sequence[Values]) -> int:
        """The place of the first new token."""
        return int(np.clip(np.trunc(shaped[3][0]), 0, self.capacity - self.tokens))

    def _kept(self, shaped: Sequence[Values]) -> list[Values]:
        """Both caches with the new tokens in them."""
        first, kept = self._first(shaped), []
        for new, old in zip(shaped[1:3], shaped[4:], strict=True):
            cache = old.copy()
            cache[:, :, first : first + self.tokens] = new.swapaxes(1, 2)
            kept.append(cache)
        return kept


@dataclass(frozen=True, kw_only=True)
class Rotary(NdOp):
    """`shapes` are x, cosines and sines; x has images, tokens and heads, in either order, features.

    `axis` (1 or 2) is that of the tokens. Cosines and sines are (images or 1, tokens, pairs). The
    first `2 * pairs` features are turned: feature i with i + pairs or, where `interleaved`, 2 i
    with 2 i + 1. The others stay.
    """

    axis: int = 2
    interleaved: bool = False

    kind: ClassVar[str] = "rotary"
    examples: ClassVar[tuple[str, ...]] = (
        "rotary in=1x3x7x24,1x7x8,1x7x8",
        "rotary in=1x7x3x16,1x7x8,1x7x8 axis=1 interleaved=1",
    )
    free_axes = (0, 1, 2)

    @property
    def flavor(self) -> str:
        return "interleaved" if self.interleaved else ""

    @property
    def pairs(self) -> int:
        return self.shapes[1][-1]

    @property
    def tokens(self) -> int:
        return self.shapes[0][self.axis]

    def source(self, axis: int, index: int) -> int | None:
        """Tables have an axis of tokens, one of images where those differ, and none of heads."""
        if index == 0:
            return axis
        if axis == self.axis:
            return 1
        return 0 if axis == 0 and self.shapes[index][0] > 1 else None

    @property
    def flops(self) -> int:
        """Four products and two sums for each pair."""
        x = self.shapes[0]
        return 6 * x[0] * x[1] * x[2] * self.pairs

    @property
    def problem(self) -> str | None:
        ranks = tuple(map(len, self.shapes))
        if ranks != (4, 3, 3):
            return f"x must have 4 axes, cosines and sines 3, got {ranks}."
        if self.axis not in (1, 2):
            return f"axis must be 1 or 2, got {self.axis}."
        x, cos, sin = self.shapes
        if cos != sin or cos[0] not in (1, x[0]) or cos[1] != self.tokens:
            return (
                f"cosines and sines must be (1 or {x[0]}, {self.tokens}, pairs), got {cos}, {sin}."
            )
        if 2 * self.pairs > x[3]:
            return f"{self.pairs} pairs are more than the {x[3]} features have."
        return None

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        x, *tables = inputs
        cos, sin = (np.expand_dims(table, 3 - self.axis) for table in tables)
        turned, rest = np.split(x, [2 * self.pairs], axis=-1)
        if self.interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            pairs = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
            turned = pairs.reshape(turned.shape)
        else:
            a, b = np.split(turned, 2, axis=-1)
            turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return np.concatenate([turned, rest], axis=-1)
