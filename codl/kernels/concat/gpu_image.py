"""Concatenation over images: a copy of every input, texels put together where two meet in one."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import IMAGE, Choice, KernelPlan, Launch, Processor, Storage, TensorArg
from codl.kernels.image import TEXEL, image_defines, image_refusal, texels
from codl.kernels.tiling import ceil_div, item_grid, strip, waves
from codl.ops.concat import Concat
from codl.soc import Soc

#: Pixels of one work-item of a CPU, where images are emulated, at most.
LONGEST_STRIP = 1024


class GpuImage:
    """Inputs of any number of channels, as long as no three of them meet in one texel."""

    op_kind: ClassVar[str] = "concat"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = IMAGE) -> None:
        self.storage = storage
        self.name = f"gpu_copy{storage.suffix}"

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

    def features(self, op: Concat, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        pixels = op.output.h * op.output.w
        whole = joined = items = 0
        for index in range(len(op.inputs)):
            first, stop = _written(op, index)
            aligned = op.offset(index) % TEXEL == 0
            count = op.inputs[index].c // TEXEL if aligned else 0
            whole += count * pixels
            joined += (stop - first - count) * pixels
            length = strip(pixels, max(stop - first, 1), LONGEST_STRIP, soc)
            items += ceil_div(pixels, length) * (stop - first)
        return {
            "launches": float(len(op.inputs)),
            "whole_texels": float(whole),
            "joined_texels": float(joined),
            "work_items": float(items),
            "waves": waves(items, soc),
            "output_bytes": float(
                self.storage.element_bytes * TEXEL * texels(op.output.c) * pixels
            ),
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


def _launch(op: Concat, index: int, soc: Soc) -> Launch | None:
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
    return Launch(
        kernel="concat_image",
        global_size=global_size,
        local_size=local_size,
        args=(*tensors, *sizes),
    )
