"""Attention to a cache on the GPU: work-items have a few queries of a group, and see each key once.

The softmax is folded into one pass over the keys (Milakov and Gimelshein 2018), so that no scores
lie in memory. What is new is written into the caches first, by a kernel of its own.
"""

from __future__ import annotations

from typing import ClassVar

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.ops.attention import CachedAttention, CachedAttentionColumns
from codl.ir.types import PLANAR
from codl.kernels import tiling_columns
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.tiling import base_defines, ceil_div
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: Queries of a work-item at most: sums of all of them stay in the first cache.
MOST_QUERIES = 8


class GpuTiles(ForPlanar, ByChoiceColumns):
    """Keys and values whose features are whole vectors."""

    base_name: ClassVar[str] = "gpu_tiles"
    op_kind: ClassVar[str] = "cached_attention"
    op_columns: ClassVar[type[CachedAttentionColumns]] = CachedAttentionColumns

    def refusal(self, op: CachedAttention, soc: Soc) -> str | None:
        width, sizes = soc.gpu.vector_width, (op.features, op.value_features)
        if any(size % width for size in sizes):
            return f"keys and values must have a multiple of {width} features, got {sizes}"
        return None

    def choices(self, op: CachedAttention, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def feature_columns(
        self, ops: CachedAttentionColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        size = float(self.storage.element_bytes)
        tiles = ops.groups * columns.ceil_div(ops.tokens * ops.heads, MOST_QUERIES)
        seen = columns.round_up(ops.seen, soc.gpu.vector_width)
        read = ops.groups * seen * (ops.features + ops.value_features)
        return {
            "macs": ops.queries * seen * (ops.features + ops.value_features),
            "powers": ops.queries * seen,
            "turned": tiles * seen * ops.features,
            "work_items": tiles,
            "waves": tiling_columns.waves(tiles, soc),
            "appended": ops.groups * ops.tokens,
            "output_bytes": size * ops.output_elements,
            **by_level("cache", size * read, gpu_cache_bytes(soc)),
        }

    def plan(self, op: CachedAttention, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        q, k, v, count, keys, values = inputs = tuple(TensorArg("input", i) for i in range(6))
        output, sizes = TensorArg("output"), (op.tokens, op.groups, op.capacity)
        alone = (1, 1) if soc.gpu.is_cpu else None
        append = KernelLaunch(
            "cache_append",
            (op.groups, op.tokens),
            (k, v, count, keys, values, *sizes),
            alone,
        )
        attend = KernelLaunch(
            "cached_attention",
            (_tiles(op), op.groups),
            (q, count, keys, values, output, *sizes, float(op.scale)),
            alone,
        )
        return KernelPlan(
            source="cached_attention/gpu_tiles.cl",
            launches=(append, attend),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "FEATURES": op.features,
                "VALUES": op.value_features,
                "HEADS": op.heads,
                "QUERIES": MOST_QUERIES,
            },
            # Halves count to 2048 alone, so the count is a float.
            storages={**dict.fromkeys((*inputs, output), self.storage), count: PLANAR},
            whole_batch=True,
        )


def _tiles(op: CachedAttention) -> int:
    """Of the queries of a group."""
    return ceil_div(op.tokens * op.heads, MOST_QUERIES)
