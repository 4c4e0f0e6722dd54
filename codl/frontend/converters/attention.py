"""Attention, ONNX's node and those of `com.microsoft`: one op, or products, masks and a softmax."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    constant_input,
    converts,
    has_input,
    number,
    unsupported,
)
from codl.frontend.converters.steps import Operand, Steps, seen
from codl.frontend.graph.attention_patterns import SPELLED_OUT
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import Attention
from codl.ir.ops.base import Activation, Array
from codl.ir.ops.nd import Sizes
from codl.ir.ops.reductions import Reduce

#: What is added to scores that do not count: no sum of it and a score is infinite.
LOW = -1e38
#: So many times any finite float32 is near 0. -inf is not, nor the lowest number, which OpenVINO
#: has for a maximum of infinities.
LITTLE = 1e-37
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
    and 1 for others, which is what their output is multiplied by. Queries that see no key give
    `zeros`, or NaN.
    """

    fixed: Array | None = None
    tensors: list[Operand] = field(default_factory=list)
    rows: Operand | None = None
    zeros: bool = False

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
    mask.tensors.append(bias)
    add_rows(steps, mask)


def add_rows(steps: Steps, mask: Mask) -> None:
    """Find in a run which queries see no key by the sum of all masks, which then is finite."""
    bias, *others = mask.tensors
    if mask.fixed is not None:
        others.append(steps.constant("known", mask.fixed))
    for other in others:
        bias = steps.combine("add", bias, other, "bias")
    little = steps.combine("mul", bias, Operand.number(LITTLE), "little")
    most = Reduce(shapes=(bias.sizes,), mode="max", axes=(len(bias.sizes) - 1,), keepdims=True)
    best = steps.combine("add", steps.apply(most, (little,), "best"), Operand.number(1e3), "best")
    seen_keys = steps.combine("max", best, Operand.number(0.0), "seen")
    mask.rows = steps.function("sign", seen_keys, "rows")
    mask.fixed = None
    mask.tensors = [steps.combine("max", bias, Operand.number(LOW), "bias")]


def by_heads(steps: Steps, x: Operand, heads: int) -> Operand:
    """(images, tokens, heads * features) as (images, heads, tokens, features)."""
    n, tokens, width = x.sizes
    if heads < 1 or width % heads:
        reason = f"the number of heads must divide the {width} features, got {heads}."
        raise unsupported(steps.node, reason)
    held = seen(x, steps.graph.shapes.get(x.name, x.sizes))
    axes = (n, tokens, heads, width // heads)
    return steps.transpose(held, (0, 2, 1, 3), "heads", axes=axes)


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
    if not mask.zeros and mask.fixed is not None and _hides_all(mask.fixed):
        mask.tensors.append(steps.constant("mask", mask.fixed))
        mask.fixed = None
    if not softcap and stage is None:
        whole = _as_one(steps, (q, k, v), mask, scale)
        if whole is not None:
            return whole, None
    if mask.zeros and mask.tensors and mask.rows is None and stage != "masked":
        add_rows(steps, mask)
    rows = seen(q, (n, groups, together, features))
    scores = steps.matmul(rows, k, "scores", trans_b=True, alpha=float(np.float32(scale)))
    stages: dict[Stage, Operand] = {"scores": seen(scores, full)}
    if softcap:
        bent = steps.combine("mul", scores, Operand.number(1 / softcap), "bent")
        steps.activate(Activation("tanh"))
        scores = steps.combine("mul", bent, Operand.number(softcap), "capped")
    stages["capped"] = seen(scores, full)
    scores = stages["masked"] = _masked(steps, seen(scores, full), mask, stage == "masked")
    odds = steps.softmax(scores, "odds")
    if mask.rows is not None:  # zeros where a query sees no key
        odds = steps.combine("mul", odds, mask.rows, "seen")
    stages["probabilities"] = odds
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
    hidden = None if mask.fixed is None or first is not None else mask.fixed
    if mask.rows is not None or (hidden is not None and _hides_all(hidden)):
        return None
    biases = [seen(x, (1,) * (4 - len(x.sizes)) + x.sizes) for x in mask.tensors]
    if hidden is not None and hidden.any():
        biases.append(steps.constant("mask", hidden if mask.tensors else hidden.clip(LOW)))
    if any(len(x.sizes) > 4 for x in biases):
        return None
    sizes = np.broadcast_shapes((1, 1, 1, full[3]), *(x.sizes for x in biases))
    shapes = (q.sizes, k.sizes, v.sizes, *([sizes] if biases else []))
    op = Attention(
        shapes=shapes,
        scale=float(np.float32(scale)),
        causal=first is not None,
        first=first or 0,
        zeros=mask.zeros and bool(biases),
    )
    if op.problem is not None or q.sizes[3] + v.sizes[3] > MOST_FEATURES:
        return None
    return steps.apply(op, (*parts, *_together(steps, biases, sizes)), "attended")


def _together(steps: Steps, biases: list[Operand], sizes: Sizes) -> list[Operand]:
    """The sum of biases, of these sizes; none of none."""
    if not biases:
        return []
    bias, *others = biases
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
    for bias in mask.tensors:
        scores = steps.combine("add", scores, bias, "masked")
    return scores


@converts("Attention", parameters=(6,))
def _attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: q, k, v, mask, past k and v, counts of keys; outputs: y, k, v, scores at a stage."""
    steps = Steps(graph, node)
    flat = len(graph.shapes[node.inputs[0]]) == 3
    q, k, v = (steps.ranked(name, 3 if flat else 4) for name in node.inputs[:3])
    if flat:
        heads_of_q, shared = (int(attribute(node, f"{p}_num_heads", 0)) for p in ("q", "kv"))
        parts = zip((q, k, v), (heads_of_q, shared, shared), strict=True)
        q, k, v = (by_heads(steps, x, heads) for x, heads in parts)
    past = graph.shapes[node.inputs[4]][2] if has_input(node, 4) else 0
    k, v = (_with_past(steps, x, index) for x, index in ((k, 4), (v, 5)))
    mode = int(attribute(node, "qk_matmul_output_mode", 0))
    wanted: Stage | None = get_args(Stage)[mode] if _is_wanted(steps, 3) else None
    y, stage = attend(
        steps,
        q,
        k,
        v,
        _onnx_mask(steps, q, k, past),
        scale=_scale(node, q),
        softcap=number(attribute(node, "softcap", 0.0)),
        stage=wanted,
    )
    _finish(steps, join_heads(steps, y) if flat else y, (k, v, stage))
    return steps.made


@converts("com.microsoft.MultiHeadAttention")
def _multi_head_attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: q, k, v, bias, padding, added to scores, past k and v; outputs: y, k, v.

    A constant bias has become sums in front; see `codl.frontend.graph.expansions`.
    """
    steps = Steps(graph, node)
    heads = int(attribute(node, "num_heads", 0))
    if not has_input(node, 2) or any(node.inputs[8:]):
        raise unsupported(node, "q, k and v must be tensors of their own, and the past no buffer.")
    q = steps.ranked(node.inputs[0], 3)
    k, v = (steps.ranked(name, 3, 4) for name in node.inputs[1:3])
    if has_input(node, 3):
        raise unsupported(node, f"the bias must be a constant for {q.sizes}.")
    q, k, v = (by_heads(steps, x, heads) if len(x.sizes) == 3 else x for x in (q, k, v))
    past = graph.shapes[node.inputs[6]][2] if has_input(node, 6) else 0
    k, v = (_with_past(steps, x, index) for x, index in ((k, 6), (v, 7)))
    mask = _simple_mask(steps, q, k, past, padding=4)
    y, _ = attend(steps, q, k, v, mask, scale=_scale(node, q))
    if _is_wanted(steps, 3):
        raise unsupported(node, "its scores are not handed out.")
    _finish(steps, join_heads(steps, y), (k, v))
    return steps.made


@converts("com.microsoft.Attention")
def _packed_attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: tokens, matrices of q, k and v side by side, biases, padding, -, added to scores."""
    steps = Steps(graph, node)
    heads = int(attribute(node, "num_heads", 0))
    if any(has_input(node, index) for index in (4, 6)) or attribute(node, "do_rotary", 0):
        raise unsupported(node, "there must be no past, and do_rotary must be 0.")
    if _is_wanted(steps, 1):
        raise unsupported(node, "its keys and values are not handed out.")
    matrix = constant_input(graph, node, 1).astype(np.float32)
    bias = constant_input(graph, node, 2, np.zeros(matrix.shape[1])).astype(np.float32)
    widths = attribute(node, "qkv_hidden_sizes", [matrix.shape[1] // 3] * 3)
    if sum(widths) != matrix.shape[1] or bias.shape != matrix.shape[1:]:
        raise unsupported(node, f"{list(widths)} features are not those of {matrix.shape}.")
    x, cuts = steps.ranked(node.inputs[0], 3), np.cumsum(widths)[:-1]
    q, k, v = (
        by_heads(steps, steps.linear(x, part, start, "part"), heads)
        for part, start in zip(np.split(matrix, cuts, axis=1), np.split(bias, cuts), strict=True)
    )
    mask = _simple_mask(steps, q, k, 0, padding=3)
    y, _ = attend(steps, q, k, v, mask, scale=_scale(node, q))
    _finish(steps, join_heads(steps, y), ())
    return steps.made


def _with_past(steps: Steps, x: Operand, index: int) -> Operand:
    """(images, heads, tokens, features) behind those of an optional input."""
    if not has_input(steps.node, index):
        return x
    return steps.concat((steps.ranked(steps.node.inputs[index], 4), x), 2, "all")


def _scale(node: Node, q: Operand) -> float:
    """0 stands for none, too."""
    return float(attribute(node, "scale", 0.0)) or float(q.sizes[-1] ** -0.5)


def _is_wanted(steps: Steps, index: int) -> bool:
    outputs = steps.node.outputs
    return len(outputs) > index and steps.graph.is_read(outputs[index])


def _finish(steps: Steps, y: Operand, others: tuple[Operand | None, ...]) -> None:
    """Name the output, and those behind it that are wanted."""
    for index, other in enumerate(others, 1):
        if other is not None and _is_wanted(steps, index):
            steps.finish(other, steps.node.outputs[index])
    steps.finish(y, steps.node.outputs[0])


def _simple_mask(steps: Steps, q: Operand, k: Operand, past: int, *, padding: int) -> Mask:
    """The mask of Microsoft's nodes: causal, of padding, and input 5, added to scores."""
    node, mask = steps.node, Mask()
    if attribute(node, "unidirectional", 0):
        mask.forbid(allowed_keys(q.sizes[2], k.sizes[2], past, causal=True))
    if has_input(node, padding):
        _add_padding(steps, mask, node.inputs[padding])
    if has_input(node, 5):
        mask.tensors.append(steps.operand(node.inputs[5]))
    return mask


def _onnx_mask(steps: Steps, q: Operand, k: Operand, past: int) -> Mask:
    """The mask of ONNX's node: causal, of a window, of a count of keys, and one that is given."""
    node, (queries, keys) = steps.node, (q.sizes[2], k.sizes[2])
    mask = Mask(zeros=not attribute(node, SPELLED_OUT, 0))
    causal = bool(attribute(node, "is_causal", 0))
    left, right = (int(attribute(node, f"{side}_window_size", -1)) for side in ("left", "right"))
    visible = partial(allowed_keys, queries, keys, causal=causal, left=left, right=right)
    if has_input(node, 6):
        counts = [int(count) for count in constant_input(steps.graph, node, 6).reshape(-1)]
        seen_keys = [visible(count - queries) & (np.arange(keys) < count) for count in counts]
        mask.forbid(np.stack(seen_keys)[:, None])
    elif causal or max(left, right) >= 0:
        mask.forbid(visible(past))
    if has_input(node, 3):
        _add_given(steps, mask, node.inputs[3], keys)
    return mask


def _add_given(steps: Steps, mask: Mask, name: str, keys: int) -> None:
    """A mask of numbers or of truths; keys that it does not know do not count."""
    constant = steps.graph.constants.get(name)
    bias = steps.operand(name)
    missing = keys - bias.sizes[-1]
    if constant is not None:
        value = np.where(constant, 0.0, -np.inf) if constant.dtype == bool else constant
        wide = [(0, 0)] * (value.ndim - 1) + [(0, missing)]
        mask.add(np.pad(value.astype(np.float32), wide, constant_values=-np.inf))
        return
    is_choice = steps.graph.types.get(name) == TensorProto.BOOL
    if missing:
        bias = steps.pad_last(bias, missing, 0.0 if is_choice else -np.inf, "padded")
    if is_choice:
        add_choice(steps, mask, bias)
    else:
        mask.tensors.append(bias)


def _add_padding(steps: Steps, mask: Mask, name: str) -> None:
    """(images, keys) or (images, queries, keys) of 1, and of 0 for keys that hardly count."""
    low = number(attribute(steps.node, "mask_filter_value", -10000.0))
    padding = steps.ranked(name, 2, 3)
    middle = (1, 1) if len(padding.sizes) == 2 else (1,)
    padding = seen(padding, (padding.sizes[0], *middle, *padding.sizes[1:]))
    if padding.value is not None:
        mask.add((1 - padding.value) * np.float32(low))
        return
    missing = steps.combine("sub", Operand.number(1.0), padding, "missing")
    mask.tensors.append(steps.combine("mul", missing, Operand.number(low), "padding"))
