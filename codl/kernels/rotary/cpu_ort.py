"""Rotary position embedding in ONNX Runtime, by its own node."""

from __future__ import annotations

import numpy as np

from codl.ir.ops.attention import Rotary
from codl.kernels.ort import CpuOrt, OrtPlan, ints, node


def _plan(op: Rotary) -> OrtPlan:
    """Every token takes the row of its own; those of all images are one table."""
    n, _, _, features = op.shapes[0]
    images, tokens, pairs = op.shapes[1]
    heads = op.shapes[0][3 - op.axis]
    rotary = node(
        "com.microsoft.RotaryEmbedding",
        ("x0", "rows", "x1", "x2"),
        interleaved=int(op.interleaved),
        num_heads=heads,
        rotary_embedding_dim=0 if 2 * pairs == features else 2 * pairs,
    )
    sizes = op.shapes[0] if op.axis == 2 else (n, tokens, heads * features)
    rows = ints(0)
    if images > 1:
        rows = np.arange(images * tokens, dtype=np.int64).reshape(images, tokens)
    table = (images * tokens, pairs)
    return OrtPlan((rotary,), (sizes, table, table), sizes, {"rows": rows})


VARIANT = CpuOrt("rotary", _plan)
