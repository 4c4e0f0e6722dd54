"""Attention to a cache on the GPU, whose queries see each key once.

The softmax is folded into one pass over the keys (Milakov and Gimelshein 2018), so that no scores
lie in memory. On a CPU that plays the GPU a work-item has a few queries of a group, and what is new
is written into the caches first, by a kernel of its own. On a GPU work-groups have pieces of the
keys, as one token alone has too few queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column
from codl.ir.ops.attention import CachedAttention, CachedAttentionColumns
from codl.kernels.architecture import holds
from codl.kernels.base import ENDS, Arg, Choice, KernelPlan, ScratchArg, TensorArg
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.kernel import CPU_DEVICE, REAL_GPU, ColumnKernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, item_grid, round_up, waves
from codl.records.soc import Soc

#: Queries of a work-item, or of a work-group, at most: their sums stay at hand.
MOST_QUERIES = 8
#: Work-items of a work-group, and pieces of the keys, that may be worth a try.
ITEMS, PIECES = (256, 128, 64), (1, 2, 4, 8, 16)
#: 256 work-items go through so many keys on an H100 while a kernel is launched that merges pieces;
#: and the keys of a piece where there are more.
UNDIVIDED_KEYS, PIECE_KEYS = 768, 256
PARTS, PART_ENDS = ScratchArg("parts"), ScratchArg("ends")


class GpuTiles(ColumnKernel):
    """Keys and values whose features are whole vectors."""

    op_kind = "cached_attention"
    base_name = "gpu_tiles"
    source = "cached_attention/gpu_tiles.cl"
    meant_for = CPU_DEVICE
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
                **_parts(op, soc),
                "HEADS": op.heads,
                "QUERIES": MOST_QUERIES,
            },
            floats=[count],  # halves count to 2048 alone
        )


class GpuSplit(ColumnKernel):
    """The same by work-groups, each with a piece of the keys."""

    op_kind = "cached_attention"
    base_name = "gpu_split"
    source = "cached_attention/gpu_split.cl"
    meant_for = REAL_GPU
    op_columns = CachedAttentionColumns

    def refuse(self, op: CachedAttention, soc: Soc) -> str | None:
        width, sizes = soc.gpu.vector_width, (op.features, op.value_features)
        if any(size % width for size in sizes):
            return f"keys and values must have a multiple of {width} features, got {sizes}"
        if not self._items(op, soc):
            gpu = soc.gpu
            return (
                f"queries of {op.features} features, and a work-item for every {width} of "
                f"{op.value_features}, must fit a work-group, which has {gpu.max_work_group_size} "
                f"work-items and {gpu.local_mem_bytes} bytes at most"
            )
        return None

    def _items(self, op: CachedAttention, soc: Soc) -> list[int]:
        """Work-items that a work-group may have."""
        ops = CachedAttentionColumns.of([op])
        return [items for items in ITEMS if _fits(ops, items, soc)[0]]

    def alternatives(self, op: CachedAttention, soc: Soc, first: Choice) -> Iterable[Choice]:
        every = ({"items": items, "pieces": n} for items in self._items(op, soc) for n in PIECES)
        return [choice for choice in every if choice["pieces"] <= op.capacity]

    def default_columns(self, ops: CachedAttentionColumns, soc: Soc) -> ChoiceColumns:
        """One token alone has large work-groups; many keys are divided while units are idle."""
        tiles = ceil_div(ops.tokens * ops.heads, _most_queries(soc))
        wide = ops.value_features > ITEMS[1] * soc.gpu.vector_width
        most = np.where((tiles == 1) | wide, ITEMS[0], ITEMS[1])
        items = np.full(len(ops), float(ITEMS[-1]))
        for size in reversed(ITEMS):
            items = np.where(_fits(ops, size, soc) & (size <= most), size, items)
        room = np.maximum(1, np.floor(soc.gpu.compute_units / (ops.groups * tiles)))
        pieces = np.minimum(ceil_div(ops.filled, PIECE_KEYS), room)
        return {
            "items": items,
            "pieces": np.where(ops.filled <= UNDIVIDED_KEYS, 1.0, pieces),
        }

    def counts(self, ops: CachedAttentionColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        items, pieces = choice["items"], choice["pieces"]
        tiles = ops.groups * ceil_div(ops.tokens * ops.heads, _most_queries(soc))
        rows = np.minimum(ops.tokens * ops.heads, _most_queries(soc))
        blocks = ceil_div(ceil_div(ops.seen, pieces), items)
        read = tiles * ops.seen * (ops.features + ops.value_features)
        return {
            "macs": tiles * rows * ops.seen * (ops.features + ops.value_features),
            "loop_length": blocks,
            "blocks": tiles * pieces * blocks,
            "work_groups": tiles * pieces,
            "waves": ceil_div(tiles * pieces, soc.gpu.compute_units),
            "merged": (pieces > 1) * ops.output_elements * pieces,
            "launches": 1.0 + (pieces > 1),
            "appended": ops.groups * ops.tokens,
            "output_bytes": self.stored(ops.output_elements),
            **by_level("cache", self.stored(read), gpu_cache_bytes(soc)),
        }

    def build(self, op: CachedAttention, soc: Soc, choice: Choice) -> KernelPlan:
        items, pieces, rows = choice["items"], choice["pieces"], op.tokens * op.heads
        inputs = [TensorArg("input", index) for index in range(6)]
        together = _most_queries(soc)
        tiles, vectors = ceil_div(rows, together), op.value_features // soc.gpu.vector_width
        is_split = pieces > 1
        result: tuple[Arg, ...] = (PARTS, PART_ENDS) if is_split else (ENDS[1],)
        launches = [
            launch(
                "split_attention",
                ((items * pieces, tiles, op.groups), (items, 1, 1)),
                *inputs,
                *result,
                tokens=op.tokens,
                groups=op.groups,
                capacity=op.capacity,
                scale=float(op.scale),
            )
        ]
        if is_split:
            sizes = item_grid(rows * vectors, op.groups, soc)
            numbers = {"rows": rows, "groups": op.groups, "pieces": pieces}
            launches.append(launch("merge_attention", sizes, PARTS, PART_ENDS, ENDS[1], **numbers))
        sums = 4 * op.groups * rows * pieces
        return self.assemble(
            op,
            soc,
            *launches,
            macros={
                "FEATURES": op.features,
                "VALUES": op.value_features,
                **_parts(op, soc),
                "HEADS": op.heads,
                "ROWS": min(rows, together),
                "ITEMS": items,
                "SPLIT": is_split,
            },
            scratch={"parts": sums * op.value_features, "ends": 2 * sums} if is_split else {},
            floats=[inputs[3]],  # halves count to 2048 alone
        )


def _most_queries(soc: Soc) -> int:
    """Of a work-group: a work-item keeps three vectors of each and its scores."""
    return next((n for n in (MOST_QUERIES, 4, 2) if holds(soc.gpu, 16 * n)), 1)


def _parts(op: CachedAttention, soc: Soc) -> dict[str, int]:
    """Vectors of a key and of a value."""
    width = soc.gpu.vector_width
    return {"KEY_PARTS": op.features // width, "VALUE_PARTS": op.value_features // width}


def _fits(ops: CachedAttentionColumns, items: int, soc: Soc) -> NDArray[np.bool_]:
    """Whether so many work-items have all parts of a value, and room for scores and queries."""
    width = soc.gpu.vector_width
    rows = np.minimum(ops.tokens * ops.heads, _most_queries(soc))
    local_floats = rows * (5 * items + ops.features) + items * (width + 1)
    has_room: NDArray[np.bool_] = 4 * local_floats <= soc.gpu.local_mem_bytes
    return has_room & (ops.value_features <= items * width) & (items <= soc.gpu.max_work_group_size)


register(*of_every_storage(GpuSplit, GpuTiles))
