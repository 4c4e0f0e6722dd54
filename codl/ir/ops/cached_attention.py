"""Attention to a key-value cache of fixed capacity, in which new tokens are kept in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.ops.base import Weights
from codl.ir.ops.nd import NdOp, Sizes

Values = NDArray[np.float64]


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
    def weight_elements(self) -> Column:
        return np.zeros_like(self.tokens)

    @property
    def output_elements(self) -> Column:
        return self.queries * self.value_features

    @property
    def flops(self) -> Column:
        pairs = np.floor(self.queries * self.capacity / 2)
        return 2 * pairs * (self.features + self.value_features)

    @property
    def mulayer_features(self) -> FeatureColumns:
        return {"f0": self.input_elements, "f1": self.oc}


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

    @property
    def free_axes(self) -> Iterable[int]:
        return (2,)

    def source(self, axis: int, index: int) -> int | None:
        """Groups are the second axis of a cache."""
        return None if index == 3 else (1 if index in self.states else 2)

    @property
    def flops(self) -> int:
        """With half of the cache full."""
        pairs = self.tokens * self.groups * self.heads * self.capacity // 2
        return 2 * pairs * (self.features + self.value_features)

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
        wanted = [(1, keys[2], self.capacity, own[3]) for own in (keys, values)]
        alike = queries[:3] == keys[:3] == values[:3] and keys[0] == 1 and count == (1,)
        if not alike or queries[3] % keys[3] or caches != wanted:
            return f"queries, keys, values and caches do not fit together: {self.shapes}."
        if self.tokens > self.capacity:
            return f"{self.tokens} tokens do not go into a cache of {self.capacity}."
        return None

    def reference(self, inputs: Sequence[Values], weights: Weights) -> Values:
        queries, *_ = shaped = self._shaped(inputs)
        first, (keys, values) = self._first(shaped), self._kept(shaped)
        heads = queries.reshape(self.tokens, self.groups, self.heads, self.features)
        scores = self.scale * np.einsum("tghf,gkf->tghk", heads, keys[0])
        places = np.arange(self.capacity) - first - np.arange(self.tokens)[:, None]
        scores = np.where(places[:, None, None] > 0, -np.inf, scores)
        odds = np.exp(scores - scores.max(-1, keepdims=True))
        odds /= odds.sum(-1, keepdims=True)
        mixed = np.einsum("tghk,gkf->tghf", odds, values[0])
        return self.activation.reference(mixed.reshape(self.output))

    def updated(self, inputs: Sequence[Values]) -> tuple[Values, ...]:
        kept = self._kept(self._shaped(inputs))
        return tuple(own.reshape(self.inputs[i]) for i, own in zip(self.states, kept, strict=True))

    def _shaped(self, inputs: Sequence[Values]) -> list[Values]:
        return [own.reshape(sizes) for own, sizes in zip(inputs, self.shapes, strict=True)]

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
