"""Attention on GPUs: tiles of queries, keys and values in local memory."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.attention import Attention
from codl.ir.soc import Soc
from codl.kernels.attention.problem import bias_steps, defines, local_bytes, planar, tensors
from codl.kernels.base import Choice, KernelLaunch, KernelPlan
from codl.kernels.tiling import base_defines, ceil_div, round_up, waves
from codl.kernels.variant import ForPlanar

#: Work-items that share a query, as in the source.
SHARING = 16
#: Queries of a tile, of a work-item, and keys of a block. Of these the first is best on an H200
#: where there are enough of its tiles, and the second otherwise.
TILES = ((32, 4, 64), (16, 2, 64), (32, 2, 64), (64, 4, 32), (16, 2, 32), (16, 1, 16))
#: So many work-groups to a compute unit are enough.
GROUPS_OF_UNIT = 0.5


class GpuTiled(ForPlanar):
    """Any heads, groups and masks, as long as a tile fits in local memory."""

    base_name: ClassVar[str] = "gpu_tiled"
    op_kind: ClassVar[str] = "attention"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})

    def refusal(self, op: Attention, soc: Soc) -> str | None:
        if _fitting(op, soc):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return (
            f"a tile of queries, and of keys or values, must fit {local_bytes(soc)} bytes, and "
            f"its work-items a work-group, got {features} features"
        )

    def choices(self, op: Attention, soc: Soc) -> tuple[Choice, ...]:
        """Large tiles where there are enough of them come first, and small ones otherwise."""
        found = _fitting(op, soc)
        wanted = GROUPS_OF_UNIT * soc.gpu.compute_units
        enough = [own for own in found if _groups(op, own["tile"]) >= wanted]
        small = [own for own in found if own["tile"] == min(one["tile"] for one in found)]
        first = (enough or small)[0]
        return (first, *(own for own in found if own != first))

    def features(self, op: Attention, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        choice = choice or self.choices(op, soc)[0]
        groups, items = _groups(op, choice["tile"]), _items(choice)
        keys = round_up(op.keys, choice["keys"])
        met = groups * choice["tile"] * keys
        features = op.shapes[0][3] + op.shapes[2][3]
        return {
            "padded_macs": float(met * features),
            "powers": float(met),
            "blocks": float(groups * keys // choice["keys"]),
            "loop_length": float(keys // choice["keys"]),
            "copied_bytes": 4.0 * groups * (keys * features + choice["tile"] * op.shapes[0][3]),
            "work_items": float(groups * items),
            "waves": waves(groups * items, soc),
            "flops": float(op.flops),
            "input_bytes": self.stored_bytes(op.bytes - op.output.bytes),
            "output_bytes": self.stored_bytes(op.output.bytes),
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


def _fitting(op: Attention, soc: Soc) -> list[dict[str, int]]:
    """The cuts whose tiles and work-items a work-group holds."""
    found = ({"tile": tile, "rows": rows, "keys": keys} for tile, rows, keys in TILES)
    most = soc.gpu.max_work_group_size
    return [own for own in found if _items(own) <= most and _bytes_of(op, own) <= local_bytes(soc)]


def _bytes_of(op: Attention, cut: Choice) -> int:
    """What a work-group takes of local memory; rows are padded by four."""
    of_query, of_value = (round_up(op.shapes[index][3], 4) + 4 for index in (0, 2))
    tile, keys = cut["tile"], cut["keys"]
    return 4 * (tile * (of_query + keys + 4 + SHARING) + keys * max(of_query, of_value))


def _items(cut: Choice) -> int:
    return SHARING * cut["tile"] // cut["rows"]


def _groups(op: Attention, tile: int) -> int:
    return op.shapes[0][0] * op.heads * ceil_div(op.queries, tile)
