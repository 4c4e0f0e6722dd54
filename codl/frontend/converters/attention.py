"""Attention: ONNX's node, and those of `com.microsoft`."""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
from onnx import TensorProto

from codl.frontend.converters.attention_steps import (
    Mask,
    Stage,
    add_choice,
    allowed_keys,
    attend,
    heads_first,
    join_heads,
    split_heads,
)
from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    constant_input,
    converts,
    has_input,
    number,
    unsupported,
)
from codl.frontend.converters.operands import Operand
from codl.frontend.converters.rotary import table_rows, turn
from codl.frontend.converters.steps import Steps, seen
from codl.frontend.graph.graph import PAST_LENGTH, Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import CachedAttention

#: What attention to a cache that stays in place must not have, by attribute.
UNCACHED = {"softcap": 0.0, "local_window_size": -1, "qk_output": 0, "sliding_window_cache": 0}


@converts("Attention", parameters=(6,))
def _attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: q, k, v, mask, past k and v, counts of keys; outputs: y, k, v, scores at a stage."""
    steps = Steps(graph, node)
    flat = len(graph.shapes[node.inputs[0]]) == 3
    q, k, v = (steps.ranked(name, 3 if flat else 4) for name in node.inputs[:3])
    if flat:
        own, shared = (int(attribute(node, f"{p}_num_heads", 0)) for p in ("q", "kv"))
        parts = zip((q, k, v), (own, shared, shared), strict=True)
        q, k, v = (heads_first(steps, split_heads(steps, x, heads), "heads") for x, heads in parts)
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
    if not has_input(node, 2) or any(
        has_input(node, index) for index in range(8, len(node.inputs))
    ):
        raise unsupported(node, "q, k and v must be tensors of their own, and the past no buffer.")
    q = steps.ranked(node.inputs[0], 3)
    k, v = (steps.ranked(name, 3, 4) for name in node.inputs[1:3])
    if has_input(node, 3):
        raise unsupported(node, f"the bias must be a constant for {q.sizes}.")
    q, k, v = (
        heads_first(steps, split_heads(steps, x, heads), "heads") if len(x.sizes) == 3 else x
        for x in (q, k, v)
    )
    past = graph.shapes[node.inputs[6]][2] if has_input(node, 6) else 0
    k, v = (_with_past(steps, x, index) for x, index in ((k, 6), (v, 7)))
    mask = Mask()
    if attribute(node, "unidirectional", 0):
        mask.forbid(allowed_keys(q.sizes[2], k.sizes[2], past, causal=True))
    if has_input(node, 4):
        _add_padding(steps, mask, node.inputs[4])
    if has_input(node, 5):
        mask.given.append(steps.operand(node.inputs[5]))
    y, _ = attend(steps, q, k, v, mask, scale=_scale(node, q))
    if _is_wanted(steps, 3):
        raise unsupported(node, "its scores are not handed out.")
    _finish(steps, join_heads(steps, y), (k, v))
    return steps.made


@converts("com.microsoft.GroupQueryAttention", parameters=(5, 6))
def _group_query_attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Inputs: q, k, v, past k and v, counts of keys less 1, their most, cosines, sines, positions,
    added to scores. The counts must be those of all keys that are there, where the past is no
    state.
    """
    if has_input(node, 3) and node.inputs[3] in graph.states:
        return _cached_attention(graph, node)
    steps = Steps(graph, node)
    heads, groups = (int(attribute(node, name, 0)) for name in ("num_heads", "kv_num_heads"))
    if attribute(node, "smooth_softmax", 0) > 0 or any(
        has_input(node, index) for index in range(11, len(node.inputs))
    ):
        raise unsupported(node, "smooth_softmax must be 0, and there must be no sink.")
    q, k, v = _own_parts(steps, heads, groups)
    past = graph.shapes[node.inputs[3]][2] if has_input(node, 3) else 0
    keys = past + q.sizes[1]
    counts = constant_input(graph, node, 5)
    if (counts != keys - 1).any():
        reason = (
            f"seqlens_k must be {keys - 1} for every image, as many keys are there, got {counts}."
        )
        raise unsupported(node, reason)
    if attribute(node, "do_rotary", 0):
        rows = steps.constant("positions", past + np.arange(q.sizes[1])[None])
        q, k = _with_positions(steps, (q, k), rows)
    q, k, v = (heads_first(steps, x, "heads") for x in (q, k, v))
    k, v = (_with_past(steps, x, index) for x, index in ((k, 3), (v, 4)))
    mask, window = Mask(), int(attribute(node, "local_window_size", -1))
    left = window - 1 if window > 0 else -1
    mask.forbid(allowed_keys(q.sizes[2], keys, past, causal=True, left=left))
    if has_input(node, 10):
        mask.given.append(steps.operand(node.inputs[10]))
    softcap = number(attribute(node, "softcap", 0.0))
    y, _ = attend(steps, q, k, v, mask, scale=_scale(node, q), softcap=softcap)
    _finish(steps, join_heads(steps, y), (k, v))
    return steps.made


def _cached_attention(graph: Graph, node: Node) -> list[ConvertedOp]:
    """The same with the past in states, which are as long as they may ever be."""
    steps = Steps(graph, node)
    heads, groups = (int(attribute(node, name, 0)) for name in ("num_heads", "kv_num_heads"))
    given = {name: attribute(node, name, usual) for name, usual in UNCACHED.items()}
    smooth = attribute(node, "smooth_softmax", 0) > 0
    if (
        smooth
        or given != UNCACHED
        or any(has_input(node, index) for index in range(10, len(node.inputs)))
    ):
        rules = ", ".join(f"{name} {usual}" for name, usual in UNCACHED.items())
        reason = (
            f"with a cache it must have {rules}, no smooth softmax and 10 inputs at most, got "
            f"{given} and {len(node.inputs)} inputs."
        )
        raise unsupported(node, reason)
    q, k, v = _own_parts(steps, heads, groups)
    count = Operand(PAST_LENGTH, (1,))
    if attribute(node, "do_rotary", 0):
        places = steps.constant("places", np.arange(q.sizes[1])[None])
        rows = steps.combine("add", seen(count, (1, 1)), places, "positions")
        q, k = _with_positions(steps, (q, k), rows)
    width = heads // groups * q.sizes[3]
    parts = (seen(q, (*q.sizes[:2], groups, width)), k, v, count)
    caches = tuple(steps.ranked(name, 4) for name in node.inputs[3:5])
    shapes = tuple(part.sizes for part in (*parts, *caches))
    op = CachedAttention(shapes=shapes, scale=float(np.float32(_scale(node, q))))
    if op.problem is not None:
        raise unsupported(node, op.problem)
    mixed = steps.apply(op, (*parts, *caches), "mixed")
    joined = (*mixed.sizes[:2], groups * mixed.sizes[3])
    steps.finish(seen(mixed, joined), node.outputs[0])
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
        heads_first(steps, split_heads(steps, steps.linear(x, own, start, "part"), heads), "heads")
        for own, start in zip(np.split(matrix, cuts, axis=1), np.split(bias, cuts), strict=True)
    )
    mask = Mask()
    if attribute(node, "unidirectional", 0):
        mask.forbid(allowed_keys(q.sizes[2], k.sizes[2], 0, causal=True))
    if has_input(node, 3):
        _add_padding(steps, mask, node.inputs[3])
    if has_input(node, 5):
        mask.given.append(steps.operand(node.inputs[5]))
    y, _ = attend(steps, q, k, v, mask, scale=_scale(node, q))
    _finish(steps, join_heads(steps, y), ())
    return steps.made


def _own_parts(steps: Steps, heads: int, groups: int) -> tuple[Operand, Operand, Operand]:
    """q, k and v as (images, tokens, heads, features), cut out where one tensor has all of them."""
    node = steps.node
    q = steps.ranked(node.inputs[0], 3)
    if has_input(node, 1):
        k, v = (steps.ranked(name, 3) for name in node.inputs[1:3])
        return (
            split_heads(steps, q, heads),
            split_heads(steps, k, groups),
            split_heads(steps, v, groups),
        )
    whole = split_heads(steps, q, heads + 2 * groups)
    q, k, v = (
        steps.first(whole, 2, start, count, "part")
        for start, count in ((0, heads), (heads, groups), (heads + groups, groups))
    )
    return q, k, v


def _with_positions(
    steps: Steps, parts: tuple[Operand, Operand], rows: Operand
) -> tuple[Operand, Operand]:
    """Turned by these rows of the tables, which come behind the past, or by those given."""
    node = steps.node
    if has_input(node, 9):
        rows = steps.ranked(node.inputs[9], 2)
    cos, sin = (table_rows(steps, steps.ranked(name, 2), rows) for name in node.inputs[7:9])
    interleaved = bool(attribute(node, "rotary_interleaved", 0))
    q, k = (turn(steps, x, cos, sin, axis=1, interleaved=interleaved) for x in parts)
    return q, k


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


def _onnx_mask(steps: Steps, q: Operand, k: Operand, past: int) -> Mask:
    """The mask of ONNX's node: causal, of a window, of a count of keys, and one that is given."""
    node, mask, (queries, keys) = steps.node, Mask(), (q.sizes[2], k.sizes[2])
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
    known = steps.graph.constants.get(name)
    bias = steps.operand(name)
    missing = keys - bias.sizes[-1]
    if known is not None:
        value = np.where(known, 0.0, -np.inf) if known.dtype == bool else known
        wide = [(0, 0)] * (value.ndim - 1) + [(0, missing)]
        mask.add(np.pad(value.astype(np.float32), wide, constant_values=-np.inf))
        return
    is_choice = steps.graph.types.get(name) == TensorProto.BOOL
    if missing:
        bias = steps.pad_last(bias, missing, 0.0 if is_choice else -np.inf, "padded")
    if is_choice:
        add_choice(steps, mask, bias)
    else:
        mask.given.append(bias)


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
    mask.given.append(steps.combine("mul", missing, Operand.number(low), "padding"))
