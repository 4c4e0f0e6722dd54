"""Attention to a cache on the GPU: work-items have a few queries of a group, and see each key once.

The softmax is folded into one pass over the keys (Milakov and Gimelshein 2018), so that no scores
lie in memory. What is new is written into the caches first, by a kernel of its own.
"""

from __future__ import annotations

from typing import Any

from codl.ir.columns import Column
from codl.ir.ops.attention import CachedAttention, CachedAttentionColumns
from codl.kernels.base import ENDS, Choice, KernelPlan, TensorArg
from codl.kernels.feature_columns import by_level, gpu_cache_bytes
from codl.kernels.kernel import ColumnKernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up, waves
from codl.records.soc import Soc

#: Queries of a work-item at most: sums of all of them stay in the first cache.
MOST_QUERIES = 8


class GpuTiles(ColumnKernel):
    """Keys and values whose features are whole vectors."""

    op_kind = "cached_attention"
    base_name = "gpu_tiles"
    source = "cached_attention/gpu_tiles.cl"
    op_columns = CachedAttentionColumns

    def refuse(self, op: CachedAttention, soc: Soc) -> str | None:
        width, sizes = soc.gpu.vector_width, (op.features, op.value_features)
        if any(size % width for size in sizes):
            return f"keys and values must have a multiple of {width} features, got {sizes}"
        return None

    def counts(self, ops: CachedAttentionColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        tiles = ops.groups * ceil_div(ops.tokens * ops.heads, MOST_QUERIES)
        seen = round_up(ops.seen, soc.gpu.vector_width)
        read = ops.groups * seen * (ops.features + ops.value_features)
        return {
            "macs": ops.queries * seen * (ops.features + ops.value_features),
            "powers": ops.queries * seen,
            "turned": tiles * seen * ops.features,
            "work_items": tiles,
            "waves": waves(tiles, soc),
            "appended": ops.groups * ops.tokens,
            "output_bytes": self.stored(ops.output_elements),
            **by_level("cache", self.stored(read), gpu_cache_bytes(soc)),
        }

    def build(self, op: CachedAttention, soc: Soc, choice: Choice) -> KernelPlan:
        q, k, v, count, keys, values = (TensorArg("input", index) for index in range(6))
        alone = (1, 1) if soc.gpu.is_cpu else None
        sizes = {"tokens": op.tokens, "groups": op.groups, "capacity": op.capacity}
        tiles = ceil_div(op.tokens * op.heads, MOST_QUERIES)
        append = ((op.groups, op.tokens), alone)
        attend = ((tiles, op.groups), alone)
        return self.assemble(
            op,
            soc,
            launch("cache_append", append, k, v, count, keys, values, **sizes),
            launch(
                "cached_attention",
                attend,
                *(q, count, keys, values, ENDS[1]),
                **sizes,
                scale=float(op.scale),
            ),
            macros={
                "FEATURES": op.features,
                "VALUES": op.value_features,
                "HEADS": op.heads,
                "QUERIES": MOST_QUERIES,
            },
            floats=[count],  # halves count to 2048 alone
        )


register(*of_every_storage(GpuTiles))
