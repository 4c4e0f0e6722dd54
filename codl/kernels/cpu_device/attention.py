"""Attention on a CPU that plays the GPU: register tiles over blocks of packed keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from codl.ir.columns import Column, rest
from codl.ir.ops.attention import Attention, AttentionColumns
from codl.kernels.attention import bias_steps, local_bytes, macros, tensors
from codl.kernels.base import Choice, KernelPlan, ScratchArg
from codl.kernels.cpu_device.matmul import fitting_rows, usual_rows
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import CPU_DEVICE, ColumnKernel, Grid, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up
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
    def of(cls, ops: AttentionColumns, soc: Soc, choice: Mapping[str, Column]) -> _Tiling:
        return cls(ops, soc, choice["rows"], choice["keys"])

    @cached_property
    def row_tiles(self) -> Column:
        return ceil_div(self.ops.queries, self.rows)

    @cached_property
    def grid(self) -> Grid:
        """Some tiles for a work-item, of a head."""
        most = np.floor(MOST_QUERIES / self.rows)
        return Grid.of(self.row_tiles, self.ops.heads, most, self.soc)

    @cached_property
    def ragged_bias(self) -> Column:
        """Elements of a query's bias that fill no vector."""
        is_there = self.ops.bias_elements > 0
        return is_there * rest(self.ops.keys, self.soc.gpu.vector_width)

    @cached_property
    def masked(self) -> Column:
        """Scores of a query that are masked, or added to."""
        width, last = self.soc.gpu.vector_width, np.minimum(self.block, self.ops.keys)
        ragged = rest(self.ops.keys, width) > 0
        of_last = rest(self.ops.keys - 1, self.block) + 1
        alone = np.where(self.ops.causal > 0, last, ragged * of_last)
        return np.where(self.ops.bias_elements > 0, self.ops.seen(self.rows), alone)


class GpuDirect(ColumnKernel):
    """Any heads, groups and masks, as long as a block of keys and values fits in local memory."""

    op_kind = "attention"
    source = "cpu_device/attention.cl"
    meant_for = CPU_DEVICE
    op_columns = AttentionColumns

    def refuse(self, op: Attention, soc: Soc) -> str | None:
        ops = AttentionColumns.of([op])
        if _panel(soc) * _packed_features(ops, soc)[0] <= _room(soc):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return f"a few keys and values must fit {_room(soc)} floats, got {features} features"

    def alternatives(self, op: Attention, soc: Soc, first: Choice) -> Iterable[Choice]:
        most, rows = _most_keys(AttentionColumns.of([op]), soc)[0], fitting_rows(soc.gpu)[:2]
        yield from ({**first, "keys": keys} for keys in BLOCKS if _panel(soc) <= keys <= most)
        if op.queries > rows[0]:
            yield from ({**first, "rows": of_tile} for of_tile in rows)

    def default_columns(self, ops: AttentionColumns, soc: Soc) -> ChoiceColumns:
        """The usual block, or whole panels in what room there is."""
        fitting = np.floor(_most_keys(ops, soc) / _panel(soc)) * _panel(soc)
        usual = max(BLOCKS[0], _panel(soc))
        return {
            "rows": usual_rows(ops.queries, soc.gpu),
            "keys": np.clip(fitting, _panel(soc), usual),
        }

    def counts(self, ops: AttentionColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        t = _Tiling.of(ops, soc, choice)
        width, panel = float(soc.gpu.vector_width), float(_panel(soc))
        rows = ops.heads * t.row_tiles * t.rows
        seen, row_blocks = ops.seen(t.rows), rows * ops.blocks(t.rows, t.block)
        left = rest(ops.value_features, panel)
        whole = ops.value_features - left + np.where(left == width, width, 0)
        of_scores = ops.blocks(t.rows, panel) * panel
        partial = rows * seen * panel * (whole < ops.value_features)
        packed = t.grid.items * ops.seen(t.grid.strip * t.rows)
        singly = rest(ops.value_features, width)
        return {
            "padded_macs": rows * (of_scores * ops.features + seen * whole) + partial,
            "partial_macs": partial,
            "powers": rows * round_up(seen, width),
            "row_blocks": row_blocks,
            "masked": rows * t.masked,
            "sum_bytes": 4.0 * (2 * row_blocks - rows) * ops.value_features,
            "singly": (2 * row_blocks - rows) * singly + rows * t.ragged_bias,
            "packed_bytes": 4.0 * packed * (ops.features + ops.value_features),
            "packed_singly": packed * (rest(ops.features, width) + width * (singly > 0)),
            **t.grid.features,
            "input_bytes": self.stored(ops.input_elements),
            "output_bytes": self.stored(ops.output_elements),
        }

    def build(self, op: Attention, soc: Soc, choice: Choice) -> KernelPlan:
        grid = _Tiling.of(*self.alone(op, soc, choice)).grid
        rows, features, value_features = choice["rows"], op.shapes[0][3], op.shapes[2][3]
        batches, kept = op.shapes[0][0] * op.heads, round_up(value_features, _panel(soc))
        is_partial = self.storage.element != "float32" and op.keys > choice["keys"]
        attend = launch(
            "attention_direct",
            ((int(grid.strips[0]), batches, 1), (1, 1, 1)),
            *tensors(op),
            *([ScratchArg("sums")] if is_partial else []),
            strip=int(grid.strip[0]) * rows,
            heads=op.heads,
            sharing=op.heads // op.groups,
            queries=op.queries,
            keys=op.keys,
            features=features,
            value_features=value_features,
            first=op.first,
            **bias_steps(op),
            scale=float(op.scale),
        )
        cut = {
            "PARTIAL": is_partial,
            "ROWS": rows,
            "KEYS": choice["keys"],
            "STRIP_SIZE": MOST_QUERIES // rows * rows,
            "LOCAL_SIZE": _room(soc),
        }
        return self.assemble(
            op,
            soc,
            attend,
            macros={**macros(op), **cut},
            scratch={"sums": 4 * batches * op.queries * kept} if is_partial else {},
        )


def _panel(soc: Soc) -> int:
    """Keys or features of a panel."""
    return WIDE * soc.gpu.vector_width


def _packed_features(ops: AttentionColumns, soc: Soc) -> Column:
    """Elements that a key and its value take where they are packed."""
    return ops.features + round_up(ops.value_features, _panel(soc))


def _room(soc: Soc) -> int:
    """Elements of keys and values that local memory holds beside what is known of queries."""
    return (local_bytes(soc) - SPARE_BYTES - MOST_QUERIES * BYTES_OF_QUERY) // 4


def _most_keys(ops: AttentionColumns, soc: Soc) -> Column:
    return np.floor(_room(soc) / _packed_features(ops, soc))


register(*of_every_storage(GpuDirect))
