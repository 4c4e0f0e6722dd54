"""Attention as one op, or as products, masks and a softmax: what its nodes have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from codl.frontend.converters.base import unsupported
from codl.frontend.converters.operands import Operand
from codl.frontend.converters.steps import Steps, seen
from codl.ir.ops.attention import Attention
from codl.ir.ops.base import Activation, Array
from codl.ir.ops.nd import Sizes
from codl.ir.ops.reductions import Reduce

#: What is added to scores that do not count: no sum of it and a score is infinite.
LOW = -1e38
#: What is added to scores of keys that count for nothing, whatever they are: at most this.
HIDDEN = -1e30
#: Features of a key and a value, for which some of either fit in local memory.
MOST_FEATURES = 320
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

    One op where that has all that is wanted. Otherwise a row of ops, in which the queries of all
    heads of a group are rows of one product; a tensor of a `stage` is handed out, too.
    """
    n, heads, queries, features = q.sizes
    groups, keys = k.sizes[1:3]
    if heads % groups or v.sizes[:3] != k.sizes[:3] or k.sizes[3] != features:
        reason = f"q, k and v do not fit together: {q.sizes}, {k.sizes}, {v.sizes}."
        raise unsupported(steps.node, reason)
    together, full = heads // groups * queries, (n, heads, queries, keys)
    if not softcap and stage is None:
        whole = _as_one(steps, (q, k, v), mask, scale)
        if whole is not None:
            return whole, None
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


def _as_one(
    steps: Steps, parts: tuple[Operand, Operand, Operand], mask: Mask, scale: float
) -> Operand | None:
    """Attention as one op; None where some query sees nothing, or the op has no such sizes."""
    q, k, v = parts
    full = (*q.sizes[:3], k.sizes[2])
    first = None if mask.fixed is None else causal_first(mask.fixed, full)
    known = None if mask.fixed is None or first is not None else mask.fixed
    if mask.rows is not None or (known is not None and _hides_all(known)):
        return None
    given = [seen(x, (1,) * (4 - len(x.sizes)) + x.sizes) for x in mask.given]
    if known is not None and known.any():
        given.append(steps.constant("mask", known.clip(LOW)))
    if any(len(x.sizes) > 4 for x in given):
        return None
    sizes = np.broadcast_shapes((1, 1, 1, full[3]), *(x.sizes for x in given))
    shapes = (q.sizes, k.sizes, v.sizes, *([sizes] if given else []))
    op = Attention(
        shapes=shapes,
        scale=float(np.float32(scale)),
        causal=first is not None,
        first=first or 0,
    )
    if op.problem is not None or q.sizes[3] + v.sizes[3] > MOST_FEATURES:
        return None
    return steps.apply(op, (*parts, *_together(steps, given, sizes)), "attended")


def _together(steps: Steps, given: list[Operand], sizes: Sizes) -> list[Operand]:
    """The sum of biases, of these sizes; none of none."""
    if not given:
        return []
    bias, *others = given
    for other in others:
        bias = steps.combine("add", bias, other, "bias")
    if bias.sizes != sizes:
        bias = steps.combine("add", bias, steps.constant("wide", np.zeros(sizes)), "bias")
    return [bias]


def causal_first(bias: Array, full: Sizes) -> int | None:
    """Where the first query stands, if a bias hides the keys behind each query and does no more.

    None of any other bias of (images, heads, queries, keys) or stretched to it.
    """
    if bias.shape[:2] != (1, 1) or bias.shape[2:] != full[2:]:
        return None
    hidden, (queries, keys) = bias[0, 0] <= HIDDEN, full[2:]
    first = keys - int(hidden[0].sum()) - 1
    if first < 0 or bias[0, 0][~hidden].any() or not hidden.any():
        return None
    return first if (hidden == ~allowed_keys(queries, keys, first, causal=True)).all() else None


def _hides_all(bias: Array) -> bool:
    return bool(np.isneginf(bias).all(axis=-1).any())


def _masked(steps: Steps, scores: Operand, mask: Mask, exact: bool) -> Operand:
    """`exact`: what does not count is -inf rather than low."""
    if mask.fixed is not None:
        hidden = np.isneginf(mask.fixed)
        if _hides_all(mask.fixed):
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
