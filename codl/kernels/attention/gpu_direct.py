"""Attention on CPU runtimes: register tiles over blocks of packed keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.attention import Attention, AttentionColumns
from codl.kernels import tiling_columns
from codl.kernels.attention.problem import bias_steps, defines, local_bytes, planar, tensors
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, ScratchArg
from codl.kernels.feature_columns import (
    ChoiceColumns,
    first_choice,
    unique,
)
from codl.kernels.matmul.gpu_direct import fitting_rows, usual_rows
from codl.kernels.tiling import base_defines, round_up
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: Vectors of a panel of keys, and of features.
WIDE = 2
#: Keys of a block that are worth trying, the usual number first.
BLOCKS = (64, 128, 32)
#: Queries of a work-item at most: what is known of each stays in local memory.
MOST_QUERIES, BYTES_OF_QUERY = 256, 8
#: Local memory that drivers take for themselves.
SPARE_BYTES = 256


@dataclass(frozen=True)
class _Tiling:
    """How queries and keys are cut; all that the plan and the features have in common."""

    ops: AttentionColumns
    soc: Soc
    rows: Column
    block: Column

    @classmethod
    def of(cls, ops: AttentionColumns, soc: Soc, choice: ChoiceColumns) -> _Tiling:
        rows, block = (np.asarray(choice[n], np.float64) + 0 * ops.keys for n in ("rows", "keys"))
        return cls(ops, soc, rows, block)

    @cached_property
    def row_tiles(self) -> Column:
        return columns.ceil_div(self.ops.queries, self.rows)

    @cached_property
    def strip(self) -> Column:
        """Tiles of a work-item."""
        most = np.floor(MOST_QUERIES / self.rows)
        return tiling_columns.strip(self.row_tiles, self.ops.heads, most, self.soc)

    @cached_property
    def strips(self) -> Column:
        return columns.ceil_div(self.row_tiles, self.strip)

    @cached_property
    def ragged_bias(self) -> Column:
        """Elements of a query's bias that fill no vector."""
        is_there = self.ops.bias_elements > 0
        return is_there * columns.rest(self.ops.keys, self.soc.gpu.vector_width)

    @cached_property
    def masked(self) -> Column:
        """Scores of a query that are masked, or added to."""
        width, last = self.soc.gpu.vector_width, np.minimum(self.block, self.ops.keys)
        ragged = columns.rest(self.ops.keys, width) > 0
        of_last = columns.rest(self.ops.keys - 1, self.block) + 1
        alone = np.where(self.ops.causal > 0, last, ragged * of_last)
        return np.where(self.ops.bias_elements > 0, self.ops.seen(self.rows), alone)


class GpuDirect(ForPlanar, ByChoiceColumns):
    """Any heads, groups and masks, as long as a block of keys and values fits in local memory."""

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "attention"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    op_columns: ClassVar[type[AttentionColumns]] = AttentionColumns

    def refusal(self, op: Attention, soc: Soc) -> str | None:
        ops = AttentionColumns.of([op])
        if _panel(soc) * _packed_features(ops, soc)[0] <= _room(soc):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return f"a few keys and values must fit {_room(soc)} floats, got {features} features"

    def choices(self, op: Attention, soc: Soc) -> tuple[Choice, ...]:
        ops = AttentionColumns.of([op])
        default = first_choice(self.default_columns(ops, soc))
        most = _most_keys(ops, soc)[0]
        blocks = [{**default, "keys": keys} for keys in BLOCKS if _panel(soc) <= keys <= most]
        rows = [{**default, "rows": rows} for rows in fitting_rows(soc.gpu)[:2]]
        return unique([default, *blocks, *(rows if op.queries > rows[0]["rows"] else [])])

    def default_columns(self, ops: AttentionColumns, soc: Soc) -> ChoiceColumns:
        """The usual block, or whole panels in what room there is."""
        fitting = np.floor(_most_keys(ops, soc) / _panel(soc)) * _panel(soc)
        usual = max(BLOCKS[0], _panel(soc))
        return {
            "rows": usual_rows(ops.queries, soc.gpu),
            "keys": np.clip(fitting, _panel(soc), usual),
        }

    def feature_columns(
        self, ops: AttentionColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        t = _Tiling.of(ops, soc, choice or self.default_columns(ops, soc))
        width, panel = float(soc.gpu.vector_width), float(_panel(soc))
        size = float(self.storage.element_bytes)
        items, rows = t.strips * ops.heads, ops.heads * t.row_tiles * t.rows
        seen, row_blocks = ops.seen(t.rows), rows * ops.blocks(t.rows, t.block)
        left = columns.rest(ops.value_features, panel)
        whole = ops.value_features - left + np.where(left == width, width, 0)
        of_scores = ops.blocks(t.rows, panel) * panel
        partial = rows * seen * panel * (whole < ops.value_features)
        packed = items * ops.seen(t.strip * t.rows)
        singly = columns.rest(ops.value_features, width)
        return {
            "padded_macs": rows * (of_scores * ops.features + seen * whole) + partial,
            "partial_macs": partial,
            "powers": rows * columns.round_up(seen, width),
            "row_blocks": row_blocks,
            "masked": rows * t.masked,
            "sum_bytes": 4.0 * (2 * row_blocks - rows) * ops.value_features,
            "singly": (2 * row_blocks - rows) * singly + rows * t.ragged_bias,
            "packed_bytes": 4.0 * packed * (ops.features + ops.value_features),
            "packed_singly": packed * (columns.rest(ops.features, width) + width * (singly > 0)),
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "input_bytes": size * ops.input_elements,
            "output_bytes": size * ops.output_elements,
        }

    def plan(self, op: Attention, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        tiling = _Tiling.of(AttentionColumns.of([op]), soc, choice)
        rows, features, value_features = choice["rows"], op.shapes[0][3], op.shapes[2][3]
        batches, kept = op.shapes[0][0] * op.heads, round_up(value_features, _panel(soc))
        is_partial = self.storage.element != "float32" and op.keys > choice["keys"]
        sizes = (op.queries, op.keys, features, value_features, op.first)
        launch = KernelLaunch(
            kernel="attention_direct",
            global_size=(int(tiling.strips[0]), batches, 1),
            local_size=(1, 1, 1),
            args=(
                *tensors(op),
                *([ScratchArg("sums")] if is_partial else []),
                *(int(tiling.strip[0]) * rows, op.heads, op.heads // op.groups),
                *(*sizes, *bias_steps(op), float(op.scale)),
            ),
        )
        return KernelPlan(
            source="attention/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **defines(op),
                **({"PARTIAL": 1} if is_partial else {}),
                "ROWS": rows,
                "KEYS": choice["keys"],
                "STRIP_SIZE": MOST_QUERIES // rows * rows,
                "LOCAL_SIZE": _room(soc),
            },
            scratch={"sums": 4 * batches * op.queries * kept} if is_partial else {},
            **planar(op, self.storage),
        )


def _panel(soc: Soc) -> int:
    """Keys or features of a panel."""
    return WIDE * soc.gpu.vector_width


def _packed_features(ops: AttentionColumns, soc: Soc) -> Column:
    """Elements that a key and its value take where they are packed."""
    return ops.features + columns.round_up(ops.value_features, _panel(soc))


def _room(soc: Soc) -> int:
    """Elements of keys and values that local memory holds beside what is known of queries."""
    return (local_bytes(soc) - SPARE_BYTES - MOST_QUERIES * BYTES_OF_QUERY) // 4


def _most_keys(ops: AttentionColumns, soc: Soc) -> Column:
    return np.floor(_room(soc) / _packed_features(ops, soc))
