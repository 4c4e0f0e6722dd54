"""Base of convolution's GPU kernels: the order of choices, bytes moved, and packed constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, rest, round_up
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import Soc
from codl.ir.types import Storage
from codl.kernels import tiling
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.kernel import ANY_DEVICE, BLOCKS, ColumnKernel, Grid, Kernel
from codl.kernels.tiling import ChoiceColumns, group_items, pack_bias, unique

#: Numbers of work-items that may share a tile's sums, and the least input blocks for each.
TEAMS = (1, 2, 4, 8)
TEAM_BLOCKS = 2
#: Width of a work-group in pixels, which share weights.
WIDE = 4


class GpuConv(ColumnKernel):
    """Base of the convolution kernels, which may share sums among teams."""

    op_kind = "conv2d"
    adds_on = ANY_DEVICE
    op_columns = ConvColumns
    storages: ClassVar[tuple[Storage, ...]] = BLOCKS

    def cut(self, ops: ConvColumns, soc: Soc, choice: Any) -> Any:
        """The tiles of a choice; `grid` is that of the kernel with most of the work."""
        raise NotImplementedError

    def team_blocks(self, ops: ConvColumns) -> Column | None:
        """Blocks of inputs that teams can divide; None for a kernel without teams."""
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """The ranked choices, and the first with other teams."""
        usual, ops = super().choices(op, soc), ConvColumns.of([op])
        blocks = self.team_blocks(ops)
        if soc.gpu.is_cpu or blocks is None or not usual:
            return usual
        others = [{**usual[0], "teams": n} for n in TEAMS if n <= most_teams(blocks, soc)[0]]
        columns = ({name: np.array([float(value)]) for name, value in x.items()} for x in usual)
        likely = [tiling.first_choice(self.with_teams(ops, soc, each)) for each in columns]
        return unique([*likely, *others])

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return self.with_teams(ops, soc, super().default_columns(ops, soc))

    def with_teams(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> ChoiceColumns:
        """A choice for a GPU with the fewest teams that give each unit enough work-items."""
        blocks = self.team_blocks(ops)
        if soc.gpu.is_cpu or blocks is None:
            return choice
        wanted = np.maximum(1, device_items(soc) / self.cut(ops, soc, choice).grid.items)
        teams = np.minimum(most_teams(blocks, soc), 2.0 ** np.ceil(np.log2(wanted)))
        return {**choice, "teams": teams}

    def smaller(self, ops: ConvColumns, soc: Soc, choices: ChoiceColumns) -> Any:
        """Penalty of each choice that leaves a GPU with too few work-items, shaped as the choices.

        Without teams, the penalty grows with the tile. With teams, it applies to tiles that do not
        divide an even row.
        """
        if soc.gpu.is_cpu:
            return np.zeros_like(ops.ic)
        grid, blocks = self.cut(ops, soc, choices).grid, self.team_blocks(ops)
        pixels = choices["pixels"]
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
        """The plan of launches for one image; `zeros` blocks of zeros follow the bias.

        `others` are further arguments of `assemble`.
        """
        width = self.width(soc)

        def constants(weights: Weights) -> dict[str, Array]:
            bias = pack_bias(weights["bias"], width, blocks_of_zeros=zeros)
            return {"weight": pack(weights["weight"]), "bias": bias}

        if self.takes_batch:
            launches = tuple(each.of_images(op.output.n, ENDS) for each in launches)
        return self.assemble(op, soc, *launches, pack=constants, **others)


def device_items(soc: Soc) -> int:
    """Work-items that keep the GPU busy."""
    return tiling.architecture_of(soc.gpu).unit_items * soc.gpu.compute_units


def most_teams(blocks: Column, soc: Soc) -> Column:
    """The most teams, a power of two, for the input blocks and the size of a work-group."""
    most = min(TEAMS[-1], group_items(soc))
    each = np.clip(np.floor(blocks / TEAM_BLOCKS), 1, most)
    result: Column = 2.0 ** np.floor(np.log2(each))
    return result


def team_macros(grid: Grid) -> dict[str, int]:
    """The macros of `teams.cl`; none without teams."""
    teams = int(np.ravel(grid.teams)[0])
    return {} if teams == 1 else {"TEAMS": teams, "TEAM_ITEMS": group_items(grid.soc)}


def byte_columns(kernel: Kernel, ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Bytes of whole blocks of input and output, and of packed weights, each counted once."""
    width = kernel.width(soc)
    oc = round_up(ops.oc, width)
    return {
        "input_bytes": kernel.stored(round_up(ops.ic, width) * ops.ih * ops.iw),
        "weight_bytes": kernel.stored(oc * ops.group_ic * ops.window),
        "output_bytes": kernel.stored(oc * ops.pixels),
    }


def refuse_groups(op: Conv2d, width: int) -> str | None:
    """The reason why groups cannot be computed in blocks of `width` channels; None if they can."""
    per_group = (op.input.c // op.groups, op.out_channels // op.groups)
    if op.groups > 1 and any(channels % width for channels in per_group):
        return (
            f"input and output channels of a group must be multiples of {width}, "
            f"got {per_group[0]} and {per_group[1]}"
        )
    return None
