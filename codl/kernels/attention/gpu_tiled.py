"""Attention on GPUs: tiles of queries, keys and values in local memory."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.attention import Attention, AttentionColumns
from codl.kernels.attention.problem import bias_steps, defines, local_bytes, planar, tensors
from codl.kernels.base import Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    first_choice,
    gpu_cache_bytes,
    unique,
)
from codl.kernels.tiling import base_defines, ceil_div
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: Work-items that share a query, as in the source.
SHARING = 16
#: Queries of a tile, of a work-item, and keys of a block. Of these the first is best on an H200
#: where there are enough of its tiles, and the second otherwise.
CUTS: tuple[Choice, ...] = tuple(
    {"tile": tile, "rows": rows, "keys": keys}
    for tile, rows, keys in (
        *((32, 4, 64), (16, 2, 64), (32, 2, 64)),
        *((64, 4, 32), (16, 2, 32), (16, 1, 16)),
    )
)
#: So many work-groups to a compute unit are enough.
GROUPS_OF_UNIT = 0.5


class GpuTiled(ForPlanar, ByChoiceColumns):
    """Any heads, groups and masks, as long as a tile fits in local memory."""

    base_name: ClassVar[str] = "gpu_tiled"
    op_kind: ClassVar[str] = "attention"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    op_columns: ClassVar[type[AttentionColumns]] = AttentionColumns

    def refusal(self, op: Attention, soc: Soc) -> str | None:
        ops = AttentionColumns.of([op])
        if any(_fits(ops, cut, soc)[0] for cut in CUTS):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return (
            f"a tile of queries, and of keys or values, must fit {local_bytes(soc)} bytes, and "
            f"its work-items a work-group, got {features} features"
        )

    def choices(self, op: Attention, soc: Soc) -> tuple[Choice, ...]:
        """Large tiles where there are enough of them come first, and small ones otherwise."""
        ops = AttentionColumns.of([op])
        first = first_choice(self.default_columns(ops, soc))
        return unique([first, *(cut for cut in CUTS if _fits(ops, cut, soc)[0])])

    def default_columns(self, ops: AttentionColumns, soc: Soc) -> ChoiceColumns:
        """The first cut with enough tiles that fits, or else the one with the smallest."""
        wanted = GROUPS_OF_UNIT * soc.gpu.compute_units
        fits = [_fits(ops, cut, soc) for cut in CUTS]
        enough = [_groups(ops, float(cut["tile"])) >= wanted for cut in CUTS]
        tiles = [np.where(own, cut["tile"], np.inf) for own, cut in zip(fits, CUTS, strict=True)]
        small = [own == np.min(tiles, axis=0) for own in tiles]
        some = np.any(np.logical_and(fits, enough), axis=0)
        at = np.argmax(np.where(some, np.logical_and(fits, enough), small), axis=0)
        return {name: np.array([float(cut[name]) for cut in CUTS])[at] for name in CUTS[0]}

    def feature_columns(
        self, ops: AttentionColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        choice = choice or self.default_columns(ops, soc)
        tile, rows, keys = (np.asarray(choice[n], np.float64) for n in ("tile", "rows", "keys"))
        size, groups = float(self.storage.element_bytes), _groups(ops, tile)
        blocks = ops.blocks(tile, keys)
        met, read = groups * tile * blocks * keys, groups * blocks * keys
        values = columns.round_up(ops.value_features, 4 * SHARING)
        macs = met * (columns.round_up(ops.features, 4) + values)
        turns = columns.ceil_div(groups, soc.gpu.compute_units)
        copied = read * (ops.features + ops.value_features) + groups * tile * ops.features
        return {
            "padded_macs": macs,
            "unit_macs": macs / groups * turns,
            "powers": met,
            "blocks": groups * blocks,
            "loop_length": blocks,
            "masked": met * (ops.bias_elements > 0),
            "copied_bytes": size * copied,
            "work_items": groups * SHARING * tile / rows,
            "waves": turns,
            "output_bytes": size * ops.output_elements,
            **by_level("input", size * ops.input_elements, gpu_cache_bytes(soc)),
        }

    def plan(self, op: Attention, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        tile, rows, batches = choice["tile"], choice["rows"], op.shapes[0][0] * op.heads
        sharing = op.heads // op.groups
        launch = KernelLaunch(
            kernel="attention_tiled",
            global_size=(SHARING, ceil_div(op.queries, tile) * tile // rows, batches),
            local_size=(SHARING, tile // rows, 1),
            args=(
                *tensors(op),
                *(op.heads, sharing, op.queries, op.keys, op.first),
                *bias_steps(op),
                float(op.scale),
            ),
        )
        return KernelPlan(
            source="attention/gpu_tiled.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **defines(op),
                "TILE": tile,
                "ROWS": rows,
                "KEYS": choice["keys"],
                "FEATURES": op.shapes[0][3],
                "VALUES": op.shapes[2][3],
            },
            **planar(op, self.storage),
        )


def _fits(ops: AttentionColumns, cut: Choice, soc: Soc) -> NDArray[np.bool_]:
    """Whether a work-group holds the work-items of a cut, and its local memory the tiles."""
    of_query, of_value = (columns.round_up(n, 4) + 4 for n in (ops.features, ops.value_features))
    tile, keys = cut["tile"], cut["keys"]
    own = tile * (of_query + keys + 4 + SHARING) + keys * np.maximum(of_query, of_value)
    has_room: NDArray[np.bool_] = 4 * own <= local_bytes(soc)
    return has_room & (SHARING * tile // cut["rows"] <= soc.gpu.max_work_group_size)


def _groups(ops: AttentionColumns, tile: Column | float) -> Column:
    return ops.heads * columns.ceil_div(ops.queries, tile)
