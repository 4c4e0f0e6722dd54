"""Base of convolution's GPU kernels: the order of choices, bytes moved, and packed constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, rest
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.types import Storage
from codl.kernels.architecture import architecture_of
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    first_choice,
    gpu_cache_bytes,
    in_order,
    least,
    unique,
)
from codl.kernels.kernel import ANY_DEVICE, BLOCKS, ColumnKernel, Grid, Kernel
from codl.kernels.tiling import group_items, pack_bias, round_up
from codl.records.soc import Soc

#: How many work-items may share the sums of a tile, and the fewest blocks of inputs for each.
TEAMS = (1, 2, 4, 8)
TEAM_BLOCKS = 2
#: The width of a work-group: pixels that share weights, beside blocks that share inputs. And widths
#: that are worth a try.
WIDE, WIDTHS = 4, (1, 2, 16, 64)


class GpuConv(ColumnKernel):
    """Base of the entries. `ranked` has the choices of one, and the order of preference."""

    op_kind = "conv2d"
    adds_on = ANY_DEVICE
    op_columns = ConvColumns
    storages: ClassVar[tuple[Storage, ...]] = BLOCKS

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices by name, and their order: the least is the usual one, and infinity is none.

        All shaped (choices, ops), or such that they broadcast to it.
        """
        return {}, np.zeros((1, len(ops)))

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid | None:
        """The work-items that have most of the work, in a choice; None where that is no matter."""
        return None

    def team_blocks(self, ops: ConvColumns) -> Column | None:
        """Blocks of inputs, of which teams may have a part each; None where there are no teams."""
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        ops = ConvColumns.of([op])
        usual = in_order(*self.ranked(ops, soc))
        return usual if soc.gpu.is_cpu else self.in_groups(ops, soc, usual)

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        usual = least(*self.ranked(ops, soc))
        return usual if soc.gpu.is_cpu else self.grouped(ops, soc, usual)

    def grouped(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns, *, wide: int | None = None
    ) -> ChoiceColumns:
        """A choice of a GPU with the width and height of work-groups, and of how many `teams`."""
        if (grid := self.grid(ops, soc, choice)) is None:
            return choice
        if wide is not None:
            grid = replace(grid, wide=wide)
        if (blocks := self.team_blocks(ops)) is not None and "teams" not in choice:
            teams = usual_teams(grid, most_teams(blocks, soc), soc)
            choice, grid = {**choice, "teams": teams}, replace(grid, teams=teams)
        width, high = grid.shape
        return {**choice, "local_x": width, "local_y": high}

    def in_groups(
        self, ops: ConvColumns, soc: Soc, choices: Iterable[Choice]
    ) -> tuple[Choice, ...]:
        """Choices with their usual groups; the first, too, with other teams and other widths."""
        likely = list(choices)
        usual = [first_choice(self.grouped(ops, soc, _column(each))) for each in likely]
        if not usual or "local_x" not in usual[0]:
            return unique(usual)
        others = [self.grouped(ops, soc, _column(likely[0]), wide=wide) for wide in WIDTHS]
        if (blocks := self.team_blocks(ops)) is not None:
            fitting = [n for n in TEAMS if n <= most_teams(blocks, soc)[0]]
            others += [self.grouped(ops, soc, _column({**likely[0], "teams": n})) for n in fitting]
        return unique([*usual, *map(first_choice, others)])

    def smaller(self, ops: ConvColumns, soc: Soc, choices: ChoiceColumns) -> Any:
        """By how much smaller tiles are to be preferred to each of `choices`, on a GPU.

        Where there are too few work-items: without teams the smaller the better, and with teams
        where a row is no whole number of tiles, but of pairs of pixels.
        """
        grid, blocks, pixels = (
            self.grid(ops, soc, choices),
            self.team_blocks(ops),
            choices["pixels"],
        )
        if grid is None or soc.gpu.is_cpu:
            return np.zeros_like(ops.ic)
        if blocks is None:
            return pixels * (grid.items < device_items(soc))
        uneven = (rest(ops.ow, pixels) > 0) & (rest(ops.ow, 2) == 0) & (ops.window > 1)
        return uneven * (grid.items * most_teams(blocks, soc) < device_items(soc))

    def convolved(
        self,
        op: Conv2d,
        soc: Soc,
        *launches: KernelLaunch,
        pack: Callable[[Array], Array],
        zeros: int = 0,
        **others: Any,
    ) -> KernelPlan:
        """The plan of launches for one image; behind the bias are blocks of `zeros`.

        `others` are arguments of `assemble`.
        """
        width = self.width(soc)

        def constants(weights: Weights) -> dict[str, Array]:
            bias = pack_bias(weights["bias"], width, blocks_of_zeros=zeros)
            return {"weight": pack(weights["weight"]), "bias": bias}

        if self.takes_batch:
            launches = tuple(each.of_images(op.output.n, ENDS) for each in launches)
        return self.assemble(op, soc, *launches, pack=constants, **others)


def _column(choice: Choice) -> ChoiceColumns:
    return {name: np.array([float(value)]) for name, value in choice.items()}


def device_items(soc: Soc) -> int:
    """Work-items that keep the GPU busy."""
    return architecture_of(soc.gpu).unit_items * soc.gpu.compute_units


def most_teams(blocks: Column, soc: Soc) -> Column:
    """The most teams, a power of two, that blocks of inputs and a work-group have room for."""
    most = min(TEAMS[-1], group_items(soc))
    each = np.clip(np.floor(blocks / TEAM_BLOCKS), 1, most)
    result: Column = 2.0 ** np.floor(np.log2(each))
    return result


def usual_teams(grid: Grid, most: Column, soc: Soc) -> Column:
    """The fewest teams, at most so many, with which every compute unit has enough work-items."""
    wanted = device_items(soc) / grid.items
    teams: Column = np.minimum(most, 2.0 ** np.ceil(np.log2(np.maximum(1, wanted))))
    return teams


def team_macros(grid: Grid) -> dict[str, int]:
    """The macros of `teams.cl`; none without teams."""
    teams = int(np.ravel(grid.teams)[0])
    return {} if teams == 1 else {"TEAMS": teams, "TEAM_ITEMS": group_items(grid.soc)}


def byte_columns(kernel: Kernel, ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Bytes touched once: whole blocks of the input and output, and the weights as packed."""
    width = kernel.width(soc)
    oc = round_up(ops.oc, width)
    return {
        "input_bytes": kernel.stored(round_up(ops.ic, width) * ops.ih * ops.iw),
        "weight_bytes": kernel.stored(oc * ops.group_ic * ops.window),
        "output_bytes": kernel.stored(oc * ops.pixels),
    }


def moved_columns(kernel: Kernel, ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Bytes of the tensors, where weights hardly count, by how far away they lie."""
    moved = byte_columns(kernel, ops, soc)
    moved_bytes = moved["input_bytes"] + moved["output_bytes"]
    return by_level("moved", moved_bytes, gpu_cache_bytes(soc))


def refuse_groups(op: Conv2d, width: int) -> str | None:
    """Why groups cannot be computed in blocks of `width` channels."""
    per_group = (op.input.c // op.groups, op.out_channels // op.groups)
    if op.groups > 1 and any(channels % width for channels in per_group):
        return (
            f"input and output channels of a group must be multiples of {width}, "
            f"got {per_group[0]} and {per_group[1]}"
        )
    return None
