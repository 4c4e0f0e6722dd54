"""Attention as products, masks and a softmax: what all nodes that compute it have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from codl.frontend.converters.base import unsupported
from codl.frontend.converters.operands import Operand
from codl.frontend.converters.steps import Steps, seen
from codl.ir.ops.base import Activation, Array
from codl.ir.ops.reduce import Reduce

#: What is added to scores that do not count: no sum of it and a score is infinite.
LOW = -1e38
#: Tensors that some nodes hand out, too: scores, with the softcap, with masks, and probabilities.
Stage = Literal["scores", "capped", "masked", "probabilities"]


@dataclass
class Mask:
    """What is added to the scores, shaped (images, heads, queries, keys) or stretched to it.

    `fixed` is all that is known before a run. `rows` are 0 for queries that may see no key at all
    and 1 for others, which is what their output is multiplied by.
    """

    fixed: Array | None = None
    given: list[Operand] = field(default_factory=list)
    rows: Operand | None = None

    def forbid(self, allowed: NDArray[np.bool_]) -> None:
        """Leave out scores, also where no other mask does."""
        self.add(np.where(allowed, np.float32(0), np.float32(-np.inf)))

    def add(self, bias: NDArray[np.float32]) -> None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        self.fixed = bias if self.fixed is None else self.fixed + bias


def allowed_keys(
    queries: int, keys: int, first: int, *, causal: bool, left: int = -1, right: int = -1
) -> NDArray[np.bool_]:
    """Which keys every query sees, by their distance; query i stands at `first + i`.

    Keys at most `left` before it and `right` behind it, where these are not negative.
    """
    distance = np.arange(keys) - (first + np.arange(queries)[:, None])
    allowed = np.ones(distance.shape, bool)
    if causal:
        allowed &= distance <= 0
    if left >= 0:
        allowed &= -distance <= left
    if right >= 0:
        allowed &= distance <= right
    return allowed


def add_choice(steps: Steps, mask: Mask, chosen: Operand) -> None:
    """A mask of ones and zeros that is known in a run only; rows of zeros are handled there."""
    bias = steps.function("log", chosen, "bias")
    if mask.fixed is not None:
        bias = steps.combine("add", bias, steps.constant("known", mask.fixed), "bias")
        mask.fixed = None
    axis = len(bias.sizes) - 1
    best = steps.apply(
        Reduce(shapes=(bias.sizes,), mode="max", axes=(axis,), keepdims=True), (bias,), "best"
    )
    mask.rows = steps.function("sign", steps.function("exp", best, "seen"), "rows")
    mask.given.append(steps.combine("max", bias, Operand.number(LOW), "bias"))


def split_heads(steps: Steps, x: Operand, heads: int) -> Operand:
    """(images, tokens, heads * features) as (images, tokens, heads, features)."""
    n, tokens, width = x.sizes
    if heads < 1 or width % heads:
        reason = f"the number of heads must divide the {width} features, got {heads}."
        raise unsupported(steps.node, reason)
    return seen(x, (n, tokens, heads, width // heads))


def heads_first(steps: Steps, x: Operand, word: str) -> Operand:
    """(images, tokens, heads, features) with the heads before the tokens."""
    held = seen(x, steps.graph.shapes.get(x.name, x.sizes))
    return steps.transpose(held, (0, 2, 1, 3), word, axes=x.sizes)


def join_heads(steps: Steps, x: Operand) -> Operand:
    """(images, heads, tokens, features) as (images, tokens, heads * features)."""
    n, heads, tokens, features = x.sizes
    return steps.transpose(x, (0, 2, 1, 3), "joined", to=(n, tokens, heads * features))


def attend(
    steps: Steps,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Mask,
    *,
    scale: float,
    softcap: float = 0.0,
    stage: Stage | None = None,
) -> tuple[Operand, Operand | None]:
    """Attention of (images, heads, tokens, features); k and v may have fewer heads than q.

    Then the queries of all heads of a group are rows of one product. Also hands out the tensor of a
    `stage`, where it is asked for.
    """
    n, heads, queries, features = q.sizes
    groups, keys = k.sizes[1:3]
    if heads % groups or v.sizes[:3] != k.sizes[:3] or k.sizes[3] != features:
        reason = f"q, k and v do not fit together: {q.sizes}, {k.sizes}, {v.sizes}."
        raise unsupported(steps.node, reason)
    together, full = heads // groups * queries, (n, heads, queries, keys)
    rows = seen(q, (n, groups, together, features))
    scores = steps.matmul(rows, k, "scores", trans_b=True, alpha=float(np.float32(scale)))
    stages: dict[Stage, Operand] = {"scores": seen(scores, full)}
    if softcap:
        bent = steps.combine("mul", scores, Operand.number(1 / softcap), "bent")
        steps.activate(Activation("tanh"))
        scores = steps.combine("mul", bent, Operand.number(softcap), "capped")
    stages["capped"] = seen(scores, full)
    scores = stages["masked"] = _masked(steps, seen(scores, full), mask, stage == "masked")
    odds = stages["probabilities"] = _seen_rows(steps, steps.softmax(scores, "odds"), mask)
    mixed = steps.matmul(seen(odds, (n, groups, together, keys)), v, "mixed")
    result = seen(mixed, (n, heads, queries, v.sizes[3]))
    return result, stages[stage] if stage else None


def _masked(steps: Steps, scores: Operand, mask: Mask, exact: bool) -> Operand:
    """`exact`: what does not count is -inf rather than low."""
    if mask.fixed is not None:
        hidden = np.isneginf(mask.fixed)
        if hidden.all(axis=-1).any():
            blind = np.asarray(hidden.all(axis=-1, keepdims=True))
            mask.rows = steps.constant("rows", 1 - blind.astype(np.float32))
        fixed = mask.fixed if exact else np.asarray(mask.fixed.clip(LOW))
        if fixed.any():
            scores = steps.combine("add", scores, steps.constant("mask", fixed), "masked")
    for bias in mask.given:
        scores = steps.combine("add", scores, bias, "masked")
    return scores


def _seen_rows(steps: Steps, odds: Operand, mask: Mask) -> Operand:
    """Zeros where a query sees no key."""
    return odds if mask.rows is None else steps.combine("mul", odds, mask.rows, "seen")
