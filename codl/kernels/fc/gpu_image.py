"""Fully connected layers over images: bound by the memory that streams the weights in, once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.region import Shape
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu import pack_bias
from codl.kernels.fc.gpu_direct import group_shape
from codl.kernels.image import TEXEL, image_defines, image_refusal, texels
from codl.kernels.tiling import round_up, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc


class GpuImage(ForStorage):
    """Matrix-vector product over the input as it lies, in texels of channels."""

    op_kind: ClassVar[str] = "fc"
    base_name: ClassVar[str] = "gpu_direct"

    def refusal(self, op: FullyConnected, soc: Soc) -> str | None:
        return image_refusal(soc, (op.input, op.output))

    def choices(self, op: FullyConnected, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(
        self, op: FullyConnected, soc: Soc, choice: Choice | None = None
    ) -> dict[str, float]:
        blocks, steps = texels(op.out_channels), _steps(op.input)
        items = blocks * group_shape(soc)[1]
        size = float(self.storage.element_bytes)
        return {
            "padded_macs": float(TEXEL * steps * blocks),
            "texel_reads": float(steps // TEXEL * blocks),
            "loop_length": float(steps),
            "work_items": float(items),
            "waves": waves(items, soc),
            "flops": float(op.flops),
            "input_bytes": size * op.input.elements,
            "weight_bytes": size * TEXEL * steps * blocks,
            "output_bytes": size * TEXEL * blocks,
        }

    def plan(self, op: FullyConnected, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        (together, slices), blocks = group_shape(soc), texels(op.out_channels)
        sizes = (op.input.w, op.input.h * op.input.w, texels(op.input.c), blocks)
        launch = KernelLaunch(
            kernel="fc_image",
            global_size=(round_up(blocks, together), slices),
            local_size=(together, slices),
            args=(*WEIGHTED, *sizes),
        )

        def pack(weights: Weights) -> dict[str, Array]:
            return {
                "weight": _pack(weights["weight"], op.input),
                "bias": pack_bias(weights["bias"], TEXEL),
            }

        return KernelPlan(
            source="fc/gpu_image.cl",
            launches=(launch,),
            defines={
                **image_defines(op.activation, soc, self.storage),
                "TOGETHER": together,
                "SLICES": slices,
            },
            pack=pack,
        ).stored_as(self.storage)


def _steps(shape: Shape) -> int:
    """Rows of the packed matrix: channels to a multiple of 4, for every pixel."""
    return round_up(shape.c, TEXEL) * shape.h * shape.w


def _pack(weight: Array, shape: Shape) -> Array:
    """(outputs, c * h * w) -> [pixel][channel][output], channels and outputs padded to texels."""
    outputs, pixels = weight.shape[0], shape.h * shape.w
    padded = (round_up(shape.c, TEXEL), round_up(outputs, TEXEL))
    packed = np.zeros((pixels, *padded), np.float32)
    packed[:, : shape.c, :outputs] = weight.reshape(outputs, shape.c, pixels).transpose(2, 1, 0)
    return packed.reshape(-1)
