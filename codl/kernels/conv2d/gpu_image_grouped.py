"""Grouped convolution over images, for groups that do not fill texels: slow but correct."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import (
    IMAGE,
    Choice,
    ConstantArg,
    KernelPlan,
    Launch,
    Processor,
    Storage,
    TensorArg,
)
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.image import TEXEL, image_defines, image_refusal, texels
from codl.kernels.tiling import item_grid, waves
from codl.ops.conv2d import Conv2d
from codl.soc import Soc


class GpuImageGrouped:
    """Any grouped convolution, one scalar at a time."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = IMAGE) -> None:
        self.storage = storage
        self.name = f"gpu_grouped{storage.suffix}"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        return image_refusal(soc, (op.input, op.output))

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        items = op.output.h * op.output.w * texels(op.out_channels)
        return {
            "macs": float(op.flops) / 2,
            "rows_of_taps": float(op.output.elements * op.input.c // op.groups * op.kernel.h),
            "work_items": float(items),
            "waves": waves(items, soc),
            **byte_features(op, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        pixels = op.output.h * op.output.w
        global_size, local_size = item_grid(pixels, texels(op.out_channels), soc)
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
        tensors = (TensorArg("input"), TensorArg("output"))
        launch = Launch(
            kernel="conv2d_image_grouped",
            global_size=global_size,
            local_size=local_size,
            args=(*tensors, ConstantArg("weight"), ConstantArg("bias"), *sizes),
        )
        return KernelPlan(
            source="conv2d/gpu_image_grouped.cl",
            launches=(launch,),
            defines=image_defines(op.activation, soc, self.storage),
            pack=lambda weights: {
                "weight": weights["weight"].reshape(-1),
                "bias": pack_bias(weights["bias"], TEXEL),
            },
        ).stored_as(self.storage)
