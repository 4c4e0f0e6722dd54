"""Fully connected layers on a GPU: every work-group streams some rows of the matrix.

Once for several images of a batch.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.region import Shape
from codl.kernels.base import ENDS, WEIGHTED, ApartArg, Arg, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu import pack_bias
from codl.kernels.fc.gpu_direct import groups_of_images
from codl.kernels.tiling import base_defines, ceil_div, round_up
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Rows and work-items of a work-group, the default first: it is the fastest on an H200 for the
#: matrices of VGG-16, ResNet-50 and MobileNetV2, of 5 to 411 MB.
SHAPES = ((2, 128), (4, 256), (4, 128), (8, 256), (8, 128), (4, 64))
#: Sums of vectors of a work-item at most, of rows times images.
SUMS = 16


class GpuRows(ForStorage):
    """Matrix product over the inputs as they lie, in blocks of channels."""

    base_name: ClassVar[str] = "gpu_rows"
    op_kind: ClassVar[str] = "fc"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    takes_batch: ClassVar[bool] = True

    def refusal(self, op: FullyConnected, soc: Soc) -> str | None:
        if not self.choices(op, soc):
            return f"work-groups of 64 are needed, got at most {soc.gpu.max_work_group_size}"
        return None

    def choices(self, op: FullyConnected, soc: Soc) -> tuple[Choice, ...]:
        most = soc.gpu.max_work_group_size
        return tuple({"outputs": rows, "items": items} for rows, items in SHAPES if items <= most)

    def features(
        self, op: FullyConnected, soc: Soc, choice: Choice | None = None
    ) -> dict[str, float]:
        choice = choice or self.choices(op, soc)[0]
        steps, width = _steps(op.input, soc), soc.gpu.vector_width
        rows = round_up(op.out_channels, choice["outputs"])
        groups = rows // choice["outputs"]
        size = float(self.storage.element_bytes)
        return {
            "padded_macs": float(steps * width * rows),
            "loop_length": float(ceil_div(steps, choice["items"])),
            "work_groups": float(groups),
            "waves": float(ceil_div(groups, soc.gpu.compute_units)),
            "flops": float(op.flops),
            "input_bytes": size * op.input.elements,
            "weight_bytes": size * steps * width * rows,
            "output_bytes": size * op.out_channels,
        }

    def plan(self, op: FullyConnected, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        outputs, items = choice["outputs"], choice["items"]
        width = soc.gpu.vector_width
        rows = round_up(op.out_channels, width)
        images, image_groups = groups_of_images(op, SUMS // outputs)
        apart = tuple(ApartArg(tensor) for tensor in ENDS)
        of_image = (op.input.h * op.input.w, _steps(op.input, soc), rows)
        sizes: tuple[Arg, ...] = (*of_image, op.input.n, *apart)
        launch = KernelLaunch(
            kernel="fc_rows",
            global_size=(ceil_div(rows, outputs) * items, image_groups),
            local_size=(items, 1),
            args=(*WEIGHTED, *sizes),
        )

        def pack(weights: Weights) -> dict[str, Array]:
            return {
                "weight": _pack(weights["weight"], op.input, width, round_up(rows, outputs)),
                "bias": pack_bias(weights["bias"], width),
            }

        return KernelPlan(
            source="fc/gpu_rows.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "OUTPUTS": outputs,
                "ITEMS": items,
                "IMAGES": images,
            },
            pack=pack,
            whole_batch=True,
        ).stored_as(self.storage)


def _steps(shape: Shape, soc: Soc) -> int:
    """Vectors of one row of the packed matrix."""
    return soc.gpu.blocks(shape.c) * shape.h * shape.w


def _pack(weight: Array, shape: Shape, width: int, rows: int) -> Array:
    """(outputs, c * h * w) -> [row][channel block][pixel][V], flat, some rows at a time."""
    blocks, pixels = ceil_div(shape.c, width), shape.h * shape.w
    packed = np.zeros((rows, blocks, pixels, width), np.float32)
    full = shape.c // width
    for first in range(0, weight.shape[0], 256):
        part = weight[first : first + 256].reshape(-1, shape.c, pixels)
        to = packed[first : first + part.shape[0]]
        whole = part[:, : full * width].reshape(part.shape[0], full, width, pixels)
        to[:, :full] = whole.swapaxes(2, 3)
        if full < blocks:
            to[:, full, :, : shape.c - full * width] = part[:, full * width :].swapaxes(1, 2)
    return packed.reshape(-1)
