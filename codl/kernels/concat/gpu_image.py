"""Concatenation over images: a copy of every input, texels put together where two meet in one."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.concat import (
    Concat,
    ConcatColumns,
)
from codl.kernels import tiling_columns
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.image import TEXEL, image_defines, image_refusal
from codl.kernels.tiling import ceil_div, item_grid, strip
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Pixels of one work-item of a CPU, where images are emulated, at most.
LONGEST_STRIP = 1024


class GpuImage(ForStorage, ByChoiceColumns):
    """Inputs of any number of channels, as long as no three of them meet in one texel."""

    op_kind: ClassVar[str] = "concat"
    base_name: ClassVar[str] = "gpu_copy"
    op_columns: ClassVar[type[ConcatColumns]] = ConcatColumns

    def refusal(self, op: Concat, soc: Soc) -> str | None:
        for index in range(len(op.inputs) - 2):
            first = op.offset(index + 1)
            if op.offset(index + 2) < TEXEL * ceil_div(first, TEXEL):
                return (
                    f"at most two inputs may meet in a texel of {TEXEL} channels, got three at "
                    f"channel {first}"
                )
        return image_refusal(soc, (*op.inputs, op.output))

    def choices(self, op: Concat, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def feature_columns(
        self, ops: ConcatColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        # As in `_written`; (inputs, ops), 0 where there is no such input.
        ends = columns.ceil_div(ops.offsets + ops.parts, TEXEL)
        written = (ends - columns.ceil_div(ops.offsets, TEXEL)) * (ops.parts > 0)
        aligned = columns.rest(ops.offsets, TEXEL) == 0
        whole = (np.floor(ops.parts / TEXEL) * aligned).sum(axis=0)
        length = tiling_columns.strip(ops.pixels, np.maximum(written, 1), LONGEST_STRIP, soc)
        items = (columns.ceil_div(ops.pixels, length) * written).sum(axis=0)
        texel_bytes = float(self.storage.element_bytes * TEXEL)
        return {
            "launches": ops.inputs,
            "whole_texels": whole * ops.pixels,
            "joined_texels": (written.sum(axis=0) - whole) * ops.pixels,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "output_bytes": texel_bytes * columns.ceil_div(ops.oc, TEXEL) * ops.pixels,
        }

    def plan(self, op: Concat, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        launches = (_launch(op, index, soc) for index in range(len(op.inputs)))
        return KernelPlan(
            source="concat/gpu_image.cl",
            launches=tuple(launch for launch in launches if launch is not None),
            defines=image_defines(op.activation, soc, self.storage),
        ).stored_as(self.storage, len(op.inputs))


def _written(op: Concat, index: int) -> tuple[int, int]:
    """The texels of the output that begin with a channel of an input, half-open."""
    first, last = op.offset(index), op.offset(index) + op.inputs[index].c
    return ceil_div(first, TEXEL), ceil_div(last, TEXEL)


def _launch(op: Concat, index: int, soc: Soc) -> KernelLaunch | None:
    """None where all of an input went into a texel that begins with the one before."""
    first, stop = _written(op, index)
    if first == stop:
        return None
    pixels, following = op.output.h * op.output.w, min(index + 1, len(op.inputs) - 1)
    length = strip(pixels, stop - first, LONGEST_STRIP, soc)
    global_size, local_size = item_grid(ceil_div(pixels, length), stop - first, soc)
    beyond = op.inputs[following].c if following > index else 0
    sizes = (length, op.output.w, pixels, first, op.offset(index), op.inputs[index].c, beyond)
    tensors = (TensorArg("input", index), TensorArg("input", following), TensorArg("output"))
    return KernelLaunch(
        kernel="concat_image",
        global_size=global_size,
        local_size=local_size,
        args=(*tensors, *sizes),
    )
