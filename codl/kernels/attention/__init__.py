"""Attention: tiles of queries, keys and values on the GPU, and ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.onnx_node import Node
from codl.ir.ops.matmul import HEADS, TOKENS, Attention, AttentionColumns
from codl.ir.ops.nd import AxisBlock
from codl.ir.records.soc import Soc
from codl.kernels import tiling
from codl.kernels.base import ENDS, Choice, KernelPlan, ScratchArg, TensorArg
from codl.kernels.cpu import OrtPlan, ints, node, number, of_onnx
from codl.kernels.kernel import CPU_DEVICE, REAL_GPU, ColumnKernel, Grid, launch, of_every_storage
from codl.kernels.matmul import fitting_rows, usual_rows
from codl.kernels.tiling import ChoiceColumns, beyond, gpu_cache_bytes, holds, unique

#: The most bytes of local memory of a work-group, so that several fit on a compute unit.
LOCAL_BYTES = 48 * 1024
#: Work-items that share a query, as in the source.
SHARING = 16
#: Queries of a tile, queries of a work-item, and keys of a block. On an H200 the first cut is
#: fastest where it gives enough tiles, otherwise the second.
CUTS: tuple[Choice, ...] = tuple(
    {"tile": tile, "rows": rows, "keys": keys}
    for tile, rows, keys in (
        *((32, 4, 64), (16, 2, 64), (32, 2, 64)),
        *((64, 4, 32), (16, 2, 32), (16, 1, 16)),
    )
)
#: Work-groups per compute unit that keep the device busy.
GROUPS_OF_UNIT = 0.5


def tensors(op: Attention) -> tuple[TensorArg, ...]:
    return (*(TensorArg("input", index) for index in range(len(op.shapes))), ENDS[1])


def bias_steps(op: Attention) -> dict[str, int]:
    """Elements of the bias between images, heads and queries; 0 along a broadcast axis."""
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
    """Attention with any heads, groups and masks whose tile fits in local memory."""

    op_kind = "attention"
    base_name = "gpu_tiled"
    source = "attention/gpu_tiled.cl"
    meant_for = REAL_GPU
    op_columns = AttentionColumns

    def refuse(self, op: Attention, soc: Soc) -> str | None:
        if self.choices(op, soc):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return (
            f"a tile of queries, and of keys or values, must fit {local_bytes(soc)} bytes, and "
            f"its work-items a work-group, got {features} features"
        )

    def ranked(self, ops: AttentionColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """The cuts that give enough tiles in order, and then those with the smallest tiles."""
        cuts = {name: np.array([[float(cut[name])] for cut in CUTS]) for name in CUTS[0]}
        few = _groups(ops, cuts["tile"]) < GROUPS_OF_UNIT * soc.gpu.compute_units
        order = np.arange(len(CUTS))[:, None] + 100 * cuts["tile"] * few
        return cuts, np.where(_fits(ops, cuts, soc), order, np.inf)

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
            **tiling.by_level("input", self.stored(ops.input_elements), gpu_cache_bytes(soc)),
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


def _fits(ops: AttentionColumns, cut: ChoiceColumns, soc: Soc) -> NDArray[np.bool_]:
    """True where a cut fits the work-group size, the registers and the local memory."""
    of_query, of_value = (round_up(n, 4) + 4 for n in (ops.features, ops.value_features))
    tile, rows, keys = cut["tile"], cut["rows"], cut["keys"]
    local_floats = tile * (of_query + keys + 4 + SHARING) + keys * np.maximum(of_query, of_value)
    has_room: NDArray[np.bool_] = 4 * local_floats <= local_bytes(soc)
    # Scores, sums and a query of each row, and one value.
    numbers = rows * (keys // SHARING + 4 * ceil_div(ops.value_features, 4 * SHARING) + 4) + 4
    has_room &= holds(soc.gpu, numbers)
    has_room &= SHARING * tile // rows <= soc.gpu.max_work_group_size
    return has_room


def _groups(ops: AttentionColumns, tile: Column | float) -> Column:
    return ops.heads * ceil_div(ops.queries, tile)


# A CPU as OpenCL device: register tiles over blocks of packed keys and values.


#: Vectors per panel of keys, and per panel of features.
WIDE = 2
#: Choices of keys per block, the default first.
BLOCKS = (64, 128, 32)
#: The most queries of a work-item, and the bytes of local memory for each.
MOST_QUERIES, BYTES_OF_QUERY = 256, 8
#: Local memory that drivers reserve.
SPARE_BYTES = 256


class GpuDirect(ColumnKernel):
    """Any heads, groups and masks, if a block of keys and values fits in local memory."""

    op_kind = "attention"
    source = "attention/gpu_direct.cl"
    meant_for = CPU_DEVICE
    op_columns = AttentionColumns

    def refuse(self, op: Attention, soc: Soc) -> str | None:
        ops = AttentionColumns.of([op])
        if _panel(soc) * _packed_features(ops, soc)[0] <= _room(soc):
            return None
        features = op.shapes[0][3], op.shapes[2][3]
        return f"a few keys and values must fit {_room(soc)} floats, got {features} features"

    def choices(self, op: Attention, soc: Soc) -> tuple[Choice, ...]:
        most, rows = _most_keys(AttentionColumns.of([op]), soc)[0], fitting_rows(soc.gpu)[:2]
        first = self._chosen(op, soc, None)
        blocks = ({**first, "keys": keys} for keys in BLOCKS if _panel(soc) <= keys <= most)
        tiles = ({**first, "rows": of_tile} for of_tile in rows if op.queries > rows[0])
        return unique([first, *blocks, *tiles])

    def default_columns(self, ops: AttentionColumns, soc: Soc) -> ChoiceColumns:
        """The default block, or as many whole panels as fit."""
        fitting = np.floor(_most_keys(ops, soc) / _panel(soc)) * _panel(soc)
        usual = max(BLOCKS[0], _panel(soc))
        return {
            "rows": usual_rows(ops.queries, soc.gpu),
            "keys": np.clip(fitting, _panel(soc), usual),
        }

    def counts(self, ops: AttentionColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        row_tiles, grid = _tiles(ops, soc, choice)
        of_tile, block = choice["rows"], choice["keys"]
        width, panel = float(soc.gpu.vector_width), float(_panel(soc))
        rows = ops.heads * row_tiles * of_tile
        seen, row_blocks = ops.seen(of_tile), rows * ops.blocks(of_tile, block)
        left = rest(ops.value_features, panel)
        whole = ops.value_features - left + np.where(left == width, width, 0)
        of_scores = ops.blocks(of_tile, panel) * panel
        partial = rows * seen * panel * (whole < ops.value_features)
        packed = grid.items * ops.seen(grid.strip * of_tile)
        singly, ragged = rest(ops.value_features, width), rest(ops.keys, width)
        # Scores per query that are masked, or that a bias is added to.
        of_last = (ragged > 0) * (rest(ops.keys - 1, block) + 1)
        alone = np.where(ops.causal > 0, np.minimum(block, ops.keys), of_last)
        has_bias = ops.bias_elements > 0
        return {
            "padded_macs": rows * (of_scores * ops.features + seen * whole) + partial,
            "partial_macs": partial,
            "powers": rows * round_up(seen, width),
            "row_blocks": row_blocks,
            "masked": rows * np.where(has_bias, seen, alone),
            "sum_bytes": 4.0 * (2 * row_blocks - rows) * ops.value_features,
            "singly": (2 * row_blocks - rows) * singly + rows * has_bias * ragged,
            "packed_bytes": 4.0 * packed * (ops.features + ops.value_features),
            "packed_singly": packed * (rest(ops.features, width) + width * (singly > 0)),
            **grid.features,
            "input_bytes": self.stored(ops.input_elements),
            "output_bytes": self.stored(ops.output_elements),
        }

    def build(self, op: Attention, soc: Soc, choice: Choice) -> KernelPlan:
        _, grid = _tiles(*self.alone(op, soc, choice))
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


def _tiles(ops: AttentionColumns, soc: Soc, choice: Mapping[str, Column]) -> tuple[Column, Grid]:
    """Tiles of queries of a head, and the grid of work-items with several tiles of one head."""
    row_tiles = ceil_div(ops.queries, choice["rows"])
    return row_tiles, Grid.of(row_tiles, ops.heads, np.floor(MOST_QUERIES / choice["rows"]), soc)


def _panel(soc: Soc) -> int:
    """Keys, or features, of a panel."""
    return WIDE * soc.gpu.vector_width


def _packed_features(ops: AttentionColumns, soc: Soc) -> Column:
    """Elements of a packed key with its value."""
    return ops.features + round_up(ops.value_features, _panel(soc))


def _room(soc: Soc) -> int:
    """Elements of keys and values that fit in local memory beside the state of queries."""
    return (local_bytes(soc) - SPARE_BYTES - MOST_QUERIES * BYTES_OF_QUERY) // 4


def _most_keys(ops: AttentionColumns, soc: Soc) -> Column:
    return np.floor(_room(soc) / _packed_features(ops, soc))


# The CPU.


#: The first opset of ONNX with an attention operator.
ATTENTION_OPSET = 23


def _count_onnx(ops: AttentionColumns, soc: Soc) -> FeatureColumns:
    """Features: two products per head, with all scores and masks in memory between them.

    A causal mask saves no work, because it is added to the scores.
    """
    rows, lanes = ops.heads * ops.queries, soc.cpu.simd_floats
    keys = round_up(ops.keys, lanes)
    values = round_up(ops.value_features, lanes)
    is_masked = np.maximum(ops.causal, ops.bias_elements > 0)
    scores = 4.0 * rows * ops.keys
    return {
        "padded_macs": rows * (keys * ops.features + ops.keys * values),
        "powers": rows * keys,
        "masked": rows * ops.keys * is_masked,
        "rows": rows,
        "ragged": rows * rest(ops.keys, lanes),
        "products": ops.heads,
        "packed_bytes": 4.0 * ops.heads * ops.keys * (ops.features + ops.value_features),
        "output_bytes": 4.0 * ops.output_elements,
        "score_beyond": beyond(scores, soc.cpu.l2_cache_bytes),
        "score_far": beyond(scores, tiling.THIRD_LEVEL * soc.cpu.l2_cache_bytes),
    }


def _onnx(op: Attention) -> OrtPlan:
    """The op as an ONNX attention node, with a causal mask of later queries as a bias.

    The node counts queries from the first key, and returns zeros for a query that sees no key. Such
    rows are set to NaN where the op demands it: where the largest bias of a row is below the range
    of finite scores. In OpenVINO the maximum of infinities is the lowest number.
    """
    nodes: list[Node] = []
    constants: dict[str, NDArray[Any]] = {}
    mask = _bias(op, nodes, constants) if op.has_bias else ""
    has_nan = op.has_bias and not op.zeros
    is_later = op.causal and (op.first > 0 or has_nan)
    if is_later:
        distance = np.arange(op.keys) - np.arange(op.queries)[:, None] - op.first
        constants["seen"] = np.where(distance > 0, np.float32(-np.inf), np.float32(0))
        if mask:
            nodes.append(node("Add", (mask, "seen"), "masked"))
        mask = "masked" if mask else "seen"
    inputs = ("x0", "x1", "x2", *([mask] if mask else []))
    is_causal = int(op.causal and not is_later)
    output = "attended" if has_nan else "y"
    nodes.append(node("Attention", inputs, output, scale=op.scale, is_causal=is_causal))
    if has_nan:
        constants |= {"keys": ints(3), "little": number(1e-37), "far": number(-1e3)}
        constants["nan"] = number(np.nan)
        nodes += [
            node("Mul", (mask, "little"), "shrunk"),
            node("ReduceMax", ("shrunk", "keys"), "best", keepdims=1),
            node("Less", ("best", "far"), "blind"),
            node("Where", ("blind", "nan", output)),
        ]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, constants, opset=ATTENTION_OPSET)


def _bias(op: Attention, nodes: list[Node], constants: dict[str, NDArray[Any]]) -> str:
    """Expand a bias over queries; the node broadcasts it over images and heads only."""
    if op.shapes[3][TOKENS] == op.queries:
        return "x3"
    constants["sizes"] = ints(*op.shapes[3][:TOKENS], op.queries, op.keys)
    nodes.append(node("Expand", ("x3", "sizes"), "bias"))
    return "bias"


VARIANTS = (
    *of_every_storage(GpuTiled),
    *of_onnx("attention", _onnx, _count_onnx, AttentionColumns),
    *of_every_storage(GpuDirect),
)
