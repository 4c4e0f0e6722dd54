"""Base of convolution's GPU kernels: the order of choices, bytes moved, and packed constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.types import Storage
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes, in_order, least
from codl.kernels.kernel import ANY_DEVICE, BLOCKS, ColumnKernel, Kernel
from codl.kernels.tiling import pack_bias, round_up
from codl.records.soc import Soc


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

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return in_order(*self.ranked(ConvColumns.of([op]), soc))

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return least(*self.ranked(ops, soc))

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
