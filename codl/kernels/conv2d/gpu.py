"""What convolution's variants on the GPU share: how choices, cuts and weights become a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, round_up
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.types import ImageSize, Storage
from codl.kernels import tiling
from codl.kernels.base import ENDS, WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    gpu_cache_bytes,
    in_order,
    least,
    single,
)
from codl.kernels.image import TEXEL, image_defines, image_refusal
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

Macros = Mapping[str, int | float | str]
Grid = tuple[tuple[int, ...], tuple[int, ...]]


class GpuConv(ForStorage, ByChoiceColumns):
    """Base of the variants: each says what differs, mostly over columns of many ops.

    `ranked` has its choices and their order, `cut` the sizes that follow from one, and `count` what
    these cost. Of the cut of one op `launches`, `macros` and `pack` make its plan.
    """

    op_kind: ClassVar[str] = "conv2d"
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns
    #: The `.cl` file.
    source: ClassVar[str]
    #: Blocks of zeros that kernels find behind the bias.
    zeros_behind: ClassVar[int] = 0

    @property
    def over_images(self) -> bool:
        return self.storage.layout == "image"

    def width(self, soc: Soc) -> int:
        """Channels of a block, or of a texel."""
        return TEXEL if self.over_images else soc.gpu.vector_width

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        """Why it cannot do an op, whatever the tensors lie in."""
        return None

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        reason = self.refuse(op, soc)
        if reason is None and self.over_images:
            return image_refusal(soc, (op.input, op.output))
        return reason

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices by name, and their order: the least is the usual one, and infinity is none.

        All shaped (choices, ops), or such that they broadcast to it.
        """
        return {}, np.zeros((1, len(ops)))

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return in_order(*self.ranked(ConvColumns.of([op]), soc))

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return least(*self.ranked(ops, soc))

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Any:
        """All that the plan and the features have in common; the choice is shaped (ops)."""
        raise NotImplementedError

    def count(self, ops: ConvColumns, cut: Any, soc: Soc) -> FeatureColumns:
        """The features."""
        raise NotImplementedError

    def _cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None) -> Any:
        choice = choice or self.default_columns(ops, soc)
        shape = ops.oc.shape
        columns = {k: np.broadcast_to(np.asarray(v, np.float64), shape) for k, v in choice.items()}
        return self.cut(ops, soc, columns)

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        return self.count(ops, self._cut(ops, soc, choice), soc)

    def byte_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        return byte_columns(ops, self.width(soc), self.storage)

    def moved_features(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        """Bytes of the tensors, where weights hardly count, by how far away they lie."""
        moved = self.byte_columns(ops, soc)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"]
        return by_level("moved", moved_bytes, gpu_cache_bytes(soc))

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        cut, width = self._cut(ConvColumns.of([op]), soc, choice), self.width(soc)
        defines = image_defines if self.over_images else tiling.base_defines

        def pack(weights: Weights) -> dict[str, Array]:
            weight = self.pack(weights["weight"], cut, soc)
            bias = pack_bias(weights["bias"], width, blocks_of_zeros=self.zeros_behind)
            return {"weight": weight, "bias": bias}

        launches = self.launches(op, cut, soc)
        return KernelPlan(
            source=self.source,
            launches=tuple(launch.of_images(op.output.n, ENDS) for launch in launches)
            if self.takes_batch
            else launches,
            defines={**defines(op.activation, soc, self.storage), **self.macros(op, cut, soc)},
            pack=pack,
            scratch=self.scratch(cut, soc),
            images=self.images(cut),
            whole_batch=self.takes_batch,
        ).stored_as(self.storage)

    def launches(self, op: Conv2d, cut: Any, soc: Soc) -> tuple[KernelLaunch, ...]:
        raise NotImplementedError

    def macros(self, op: Conv2d, cut: Any, soc: Soc) -> Macros:
        """Beside those that all kernels have."""
        return {}

    def pack(self, weight: Array, cut: Any, soc: Soc) -> Array:
        raise NotImplementedError

    def scratch(self, cut: Any, soc: Soc) -> Mapping[str, int | ImageSize]:
        return {}

    def images(self, cut: Any) -> frozenset[str]:
        """Constants that are images."""
        return frozenset()


def byte_columns(ops: ConvColumns, width: int, storage: Storage) -> FeatureColumns:
    """Bytes touched once: whole blocks of the input and output, and the weights as packed."""
    size, oc = float(storage.element_bytes), round_up(ops.oc, width)
    return {
        "input_bytes": size * round_up(ops.ic, width) * ops.ih * ops.iw,
        "weight_bytes": size * oc * ops.group_ic * ops.window,
        "output_bytes": size * oc * ops.pixels,
    }


def byte_features(op: Conv2d, soc: Soc, storage: Storage) -> dict[str, float]:
    """The same of one op over buffers."""
    return single(byte_columns(ConvColumns.of([op]), soc.gpu.vector_width, storage))


def one_launch(kernel: str, grid: Grid, sizes: tuple[int, ...]) -> tuple[KernelLaunch, ...]:
    """The only kernel of a convolution."""
    return (KernelLaunch(kernel, grid[0], (*WEIGHTED, *sizes), grid[1]),)


def flags(**defined: bool) -> dict[str, int]:
    """Macros that are there, or not."""
    return {name: 1 for name, is_defined in defined.items() if is_defined}


def refuse_groups(op: Conv2d, width: int) -> str | None:
    """Why groups cannot be computed in blocks of `width` channels."""
    per_group = (op.input.c // op.groups, op.out_channels // op.groups)
    if op.groups > 1 and any(channels % width for channels in per_group):
        return (
            f"input and output channels of a group must be multiples of {width}, "
            f"got {per_group[0]} and {per_group[1]}"
        )
    return None


def pack_bias(bias: Array, width: int, *, blocks_of_zeros: int = 0) -> Array:
    """The bias as whole blocks, followed by blocks of zeros."""
    packed = np.zeros((tiling.ceil_div(bias.size, width) + blocks_of_zeros) * width, np.float32)
    packed[: bias.size] = bias.reshape(-1)
    return packed
