"""Attention (Vaswani et al. 2017)."""

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
