"""Grouped convolution on the GPU for groups that do not fill channel blocks: slow but correct."""

from __future__ import annotations

from typing import ClassVar

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.kernels import feature_columns as caches
from codl.kernels import tiling_columns
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu_direct import byte_columns, pack_bias
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.image import TEXEL, image_defines, image_refusal
from codl.kernels.tiling import base_defines, ceil_div, item_grid
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc


class GpuGrouped(ForStorage, ByChoiceColumns):
    """Any grouped convolution, one scalar at a time."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_grouped"
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        return image_refusal(soc, (op.input, op.output)) if self._over_images else None

    @property
    def _over_images(self) -> bool:
        return self.storage.layout == "image"

    def _width(self, soc: Soc) -> int:
        """Channels of a block, or of a texel."""
        return TEXEL if self._over_images else soc.gpu.vector_width

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        items = ops.pixels * columns.ceil_div(ops.oc, self._width(soc))
        outputs, moved = ops.oc * ops.pixels, byte_columns(ops, soc, self.storage)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"]
        return {
            "macs": ops.tap_rows * ops.tap_columns * ops.oc * ops.group_ic,
            "taps": outputs * ops.group_ic * ops.window,
            "rows_of_taps": outputs * ops.group_ic * ops.kh,
            "outputs": outputs,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            **caches.by_level("moved", moved_bytes, caches.gpu_cache_bytes(soc)),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        width, pixels = self._width(soc), op.output.h * op.output.w
        kernel = "image_grouped" if self._over_images else "grouped"
        defines = image_defines if self._over_images else base_defines
        global_size, local_size = item_grid(pixels, ceil_div(op.out_channels, width), soc)
        sizes = (
            op.input.c // op.groups,
            op.out_channels // op.groups,
            op.out_channels,
            op.input.h,
            op.input.w,
            op.output.w,
            pixels,
            *op.kernel,
            *op.stride,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        launch = KernelLaunch(
            kernel=f"conv2d_{kernel}",
            global_size=global_size,
            local_size=local_size,
            args=(*WEIGHTED, *sizes),
        )
        return KernelPlan(
            source=f"conv2d/gpu_{kernel}.cl",
            launches=(launch,),
            defines=defines(op.activation, soc, self.storage),
            pack=lambda weights: {
                "weight": weights["weight"].reshape(-1),
                "bias": pack_bias(weights["bias"], width),
            },
        ).stored_as(self.storage)
