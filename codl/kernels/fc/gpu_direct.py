"""Fully connected layers on the GPU: bound by the memory that streams the weights in.

Once for several images of a batch: as many as have their sums in registers.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.fully_connected import (
    FcColumns,
    FullyConnected,
)
from codl.ir.region import Shape
from codl.kernels import tiling_columns
from codl.kernels.base import ENDS, WEIGHTED, ApartArg, Arg, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu import pack_bias
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    gpu_cache_bytes,
)
from codl.kernels.registers import most_sums
from codl.kernels.tiling import base_defines, ceil_div, round_up
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Streams of weights worth trying on a CPU, by vector width. With one, it waits for the memory.
STREAMS = {16: (4, 3, 2), 8: (2, 3), 4: (2, 4)}
#: Images of a work-item at most.
MOST_IMAGES = 8


class GpuDirect(ForStorage, ByChoiceColumns):
    """Matrix product over the inputs as they lie, in blocks of channels."""

    op_kind: ClassVar[str] = "fc"
    base_name: ClassVar[str] = "gpu_direct"
    takes_batch: ClassVar[bool] = True
    op_columns: ClassVar[type[FcColumns]] = FcColumns

    def choices(self, op: FullyConnected, soc: Soc) -> tuple[Choice, ...]:
        """Blocks of outputs of a work-item."""
        gpu, blocks = soc.gpu, soc.gpu.blocks(op.out_channels)
        streams = STREAMS[gpu.vector_width] if gpu.is_cpu else ()
        outs = [o for o in streams if o * gpu.compute_units <= blocks]
        return tuple({"outs": o} for o in (*outs, 1))

    def default_columns(self, ops: FcColumns, soc: Soc) -> ChoiceColumns:
        gpu, blocks = soc.gpu, columns.ceil_div(ops.oc, soc.gpu.vector_width)
        streams = STREAMS[gpu.vector_width] if gpu.is_cpu else ()
        fitting = [o * gpu.compute_units <= blocks for o in streams]
        outs = np.select(fitting, streams, 1) if streams else np.ones_like(blocks)
        return {"outs": outs.astype(np.float64)}

    def feature_columns(
        self, ops: FcColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        outs = (choice or self.default_columns(ops, soc))["outs"]
        width = soc.gpu.vector_width
        blocks = columns.ceil_div(ops.oc, width)
        # Rows of the packed matrix, as in `_steps`.
        steps = columns.round_up(ops.ic, 4) * ops.ih * ops.iw
        items = columns.ceil_div(blocks, outs) * group_shape(soc)[1]
        size = float(self.storage.element_bytes)
        weights = size * steps * blocks * width
        return {
            "padded_macs": steps * blocks * width,
            "loop_length": steps,
            "item_steps": steps * items,
            "streams": np.broadcast_to(np.asarray(outs, np.float64), blocks.shape),
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "input_bytes": size * ops.images * ops.in_features,
            "output_bytes": size * blocks * width,
            **by_level("weight", weights, gpu_cache_bytes(soc)),
        }

    def plan(self, op: FullyConnected, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        outs = (choice or self.choices(op, soc)[0])["outs"]
        images, image_groups = groups_of_images(op, MOST_IMAGES)
        outs = max(1, min(outs, most_sums(soc.gpu) // images))
        together, slices = group_shape(soc)
        width, blocks = soc.gpu.vector_width, soc.gpu.blocks(op.out_channels)
        pixels = op.input.h * op.input.w
        apart = tuple(ApartArg(tensor) for tensor in ENDS)
        of_image = (op.input.c, pixels, _steps(op.input, width), blocks)
        sizes: tuple[Arg, ...] = (*of_image, op.input.n, *apart)
        launch = KernelLaunch(
            kernel="fc_direct",
            global_size=(round_up(ceil_div(blocks, outs), together), slices, image_groups),
            local_size=(together, slices, 1),
            args=(*WEIGHTED, *sizes),
        )

        def pack(weights: Weights) -> dict[str, Array]:
            # A work-item's streams are whole, also where the last has fewer outputs.
            return {
                "weight": _pack(weights["weight"], op.input, width, together, outs),
                "bias": pack_bias(weights["bias"], width),
            }

        return KernelPlan(
            source="fc/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "OUTS": outs,
                "IMAGES": images,
                "TOGETHER": together,
                "SLICES": slices,
            },
            pack=pack,
            whole_batch=True,
        ).stored_as(self.storage)


def groups_of_images(op: FullyConnected, most: int) -> tuple[int, int]:
    """Images that share the weights as they are read, up to `most`; and the groups of them."""
    groups = ceil_div(op.input.n, most)
    return ceil_div(op.input.n, groups), groups


def group_shape(soc: Soc) -> tuple[int, int]:
    """Work-items whose weights alternate, and slices of the inputs, of one work-group."""
    if soc.gpu.is_cpu:
        return 1, 1
    return 16, max(1, min(16, soc.gpu.max_work_group_size // 16))


def _steps(shape: Shape, width: int) -> int:
    """Rows of the packed matrix: channels that exist, to a multiple of 4, for every pixel."""
    return round_up(shape.c, 4) * shape.h * shape.w


def _pack(weight: Array, shape: Shape, width: int, together: int, outs: int) -> Array:
    """(outputs, c * h * w) -> [output blocks / together][step][together][V], flat.

    Copied one group of output blocks at a time, so that the peak is one packed copy and not two.
    """
    group, pixels = together * width, shape.h * shape.w
    groups = round_up(ceil_div(weight.shape[0], group), outs)
    packed = np.zeros((groups, _steps(shape, width), group), np.float32)
    for g in range(groups):
        rows = weight[g * group : (g + 1) * group]
        rows = rows.reshape(rows.shape[0], shape.c, pixels)
        for first in range(0, shape.c, width):
            part = rows[:, first : first + width].transpose(2, 1, 0)
            lanes = min(width, round_up(shape.c - first, 4))
            view = packed[g, first * pixels : (first + lanes) * pixels]
            view = view.reshape(pixels, lanes, group)
            view[:, : part.shape[1], : part.shape[2]] = part
    return packed.reshape(-1)
