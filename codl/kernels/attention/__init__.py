"""Attention: what all kernels see of an op, and the GPU's tiles of queries, keys and values.

The kernel for a device that is a CPU is in `codl.kernels.cpu_device.attention`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column
from codl.ir.ops.attention import HEADS, TOKENS, Attention, AttentionColumns
from codl.ir.ops.nd import AxisBlock
from codl.kernels.architecture import holds
from codl.kernels.base import ENDS, Choice, KernelPlan, TensorArg
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.kernel import REAL_GPU, ColumnKernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up
from codl.records.soc import Soc

#: Local memory that a work-group takes at most, whatever the device has: several fit on a unit.
LOCAL_BYTES = 48 * 1024
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
#: Work-groups to a compute unit that are enough.
GROUPS_OF_UNIT = 0.5


def tensors(op: Attention) -> tuple[TensorArg, ...]:
    """The inputs and the output."""
    return (*(TensorArg("input", index) for index in range(len(op.shapes))), ENDS[1])


def bias_steps(op: Attention) -> dict[str, int]:
    """Elements of the bias from an image, a head and a query to the next; 0 where it stretches."""
    steps = {"image_step": 0, "head_step": 0, "row_step": 0}
    if not op.has_bias:
        return steps
    sizes = op.shapes[3]
    return {
        name: AxisBlock.around(sizes, (axis,)).inner if sizes[axis] > 1 else 0
        for name, axis in zip(steps, (0, HEADS, TOKENS), strict=True)
    }


def macros(op: Attention) -> dict[str, int | bool]:
    return {"CAUSAL": op.causal, "BIAS": op.has_bias, "ZEROS": op.zeros}


def local_bytes(soc: Soc) -> int:
    return min(LOCAL_BYTES, soc.gpu.local_mem_bytes)


class GpuTiled(ColumnKernel):
    """Any heads, groups and masks, as long as a tile fits in local memory."""

    op_kind = "attention"
    base_name = "gpu_tiled"
    source = "attention/gpu_tiled.cl"
    meant_for = REAL_GPU
    op_columns = AttentionColumns

    def refuse(self, op: Attention, soc: Soc) -> str | None:
        ops = AttentionColumns.of([op])
        if any(_fits(ops, cut, soc)[0] for cut in CUTS):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return (
            f"a tile of queries, and of keys or values, must fit {local_bytes(soc)} bytes, and "
            f"its work-items a work-group, got {features} features"
        )

    def alternatives(self, op: Attention, soc: Soc, first: Choice) -> Iterable[Choice]:
        ops = AttentionColumns.of([op])
        return [cut for cut in CUTS if _fits(ops, cut, soc)[0]]

    def default_columns(self, ops: AttentionColumns, soc: Soc) -> ChoiceColumns:
        """The first cut with enough tiles that fits, or else the one with the smallest."""
        wanted = GROUPS_OF_UNIT * soc.gpu.compute_units
        fits = [_fits(ops, cut, soc) for cut in CUTS]
        enough = [_groups(ops, float(cut["tile"])) >= wanted for cut in CUTS]
        tiles = [np.where(fit, cut["tile"], np.inf) for fit, cut in zip(fits, CUTS, strict=True)]
        small = [tile == np.min(tiles, axis=0) for tile in tiles]
        some = np.any(np.logical_and(fits, enough), axis=0)
        at = np.argmax(np.where(some, np.logical_and(fits, enough), small), axis=0)
        return {name: np.array([float(cut[name]) for cut in CUTS])[at] for name in CUTS[0]}

    def counts(self, ops: AttentionColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        tile, rows, keys = (choice[name] for name in ("tile", "rows", "keys"))
        groups = _groups(ops, tile)
        blocks = ops.blocks(tile, keys)
        met, read = groups * tile * blocks * keys, groups * blocks * keys
        values = round_up(ops.value_features, 4 * SHARING)
        macs = met * (round_up(ops.features, 4) + values)
        turns = ceil_div(groups, soc.gpu.compute_units)
        copied = read * (ops.features + ops.value_features) + groups * tile * ops.features
        return {
            "padded_macs": macs,
            "unit_macs": macs / groups * turns,
            "powers": met,
            "blocks": groups * blocks,
            "loop_length": blocks,
            "masked": met * (ops.bias_elements > 0),
            "copied_bytes": self.stored(copied),
            "work_items": groups * SHARING * tile / rows,
            "waves": turns,
            "output_bytes": self.stored(ops.output_elements),
            **by_level("input", self.stored(ops.input_elements), gpu_cache_bytes(soc)),
        }

    def build(self, op: Attention, soc: Soc, choice: Choice) -> KernelPlan:
        tile, rows, batches = choice["tile"], choice["rows"], op.shapes[0][0] * op.heads
        attend = launch(
            "attention_tiled",
            (
                (SHARING, ceil_div(op.queries, tile) * tile // rows, batches),
                (SHARING, tile // rows, 1),
            ),
            *tensors(op),
            heads=op.heads,
            sharing=op.heads // op.groups,
            queries=op.queries,
            keys=op.keys,
            first=op.first,
            **bias_steps(op),
            scale=float(op.scale),
        )
        sizes = {"FEATURES": op.shapes[0][3], "VALUES": op.shapes[2][3]}
        cut = {
            "TILE": tile,
            "ROWS": rows,
            "KEYS": choice["keys"],
            "KEYS_EACH": choice["keys"] // SHARING,
            "PARTS_EACH": ceil_div(op.shapes[2][3], 4 * SHARING),
        }
        return self.assemble(op, soc, attend, macros={**macros(op), **cut, **sizes})


def _fits(ops: AttentionColumns, cut: Choice, soc: Soc) -> NDArray[np.bool_]:
    """Whether a work-group, registers and local memory hold a cut's items, numbers and tiles."""
    of_query, of_value = (round_up(n, 4) + 4 for n in (ops.features, ops.value_features))
    tile, rows, keys = cut["tile"], cut["rows"], cut["keys"]
    local_floats = tile * (of_query + keys + 4 + SHARING) + keys * np.maximum(of_query, of_value)
    has_room: NDArray[np.bool_] = 4 * local_floats <= local_bytes(soc)
    # Scores, sums and a query of each row, and a value.
    numbers = rows * (keys // SHARING + 4 * ceil_div(ops.value_features, 4 * SHARING) + 4) + 4
    has_room &= holds(soc.gpu, numbers)
    return has_room & (SHARING * tile // rows <= soc.gpu.max_work_group_size)


def _groups(ops: AttentionColumns, tile: Column | float) -> Column:
    return ops.heads * ceil_div(ops.queries, tile)


register(*of_every_storage(GpuTiled))
