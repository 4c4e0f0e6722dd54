"""Concatenation on the GPU: a copy of every input, by whole blocks where channels allow it."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import BLOCKED, Choice, KernelPlan, Launch, Processor, Storage, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up, strip, waves
from codl.ops.concat import Concat
from codl.soc import Soc

#: Pixels of one work-item of a CPU at most: about 5 us.
LONGEST_STRIP = 2048


class GpuCopy:
    """Inputs of any number of channels; those that begin inside a block are copied by lanes."""

    op_kind: ClassVar[str] = "concat"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_copy{storage.suffix}"

    def refusal(self, op: Concat, soc: Soc) -> str | None:
        return None

    def choices(self, op: Concat, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Concat, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        width, pixels = soc.gpu.vector_width, op.output.h * op.output.w
        by_blocks = by_lanes = items = 0
        size = self.storage.element_bytes
        for index in range(len(op.inputs)):
            others = _others(op, index, soc)
            items += ceil_div(pixels, strip(pixels, others, LONGEST_STRIP, soc)) * others
            if op.offset(index) % width:
                by_lanes += others * pixels
            else:
                by_blocks += others * pixels
        return {
            "launches": float(len(op.inputs)),
            "block_copies": float(by_blocks),
            "lane_copies": float(by_lanes),
            "work_items": float(items),
            "waves": waves(items, soc),
            "output_bytes": float(size * round_up(op.output.c, width) * pixels),
        }

    def plan(self, op: Concat, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        return KernelPlan(
            source="concat/gpu_copy.cl",
            launches=tuple(_launch(op, index, soc) for index in range(len(op.inputs))),
            defines=base_defines(op.activation, soc, self.storage),
        ).stored_as(self.storage, len(op.inputs))


def _others(op: Concat, index: int, soc: Soc) -> int:
    """Work-items that share a strip of pixels: blocks, or single channels of the output.

    The last input's include the lanes that fill up the output's last block.
    """
    width, first = soc.gpu.vector_width, op.offset(index)
    if first % width == 0:
        return soc.gpu.blocks(op.inputs[index].c)
    last = index == len(op.inputs) - 1
    return round_up(op.output.c, width) - first if last else op.inputs[index].c


def _launch(op: Concat, index: int, soc: Soc) -> Launch:
    width, pixels = soc.gpu.vector_width, op.output.h * op.output.w
    first, others = op.offset(index), _others(op, index, soc)
    length = strip(pixels, others, LONGEST_STRIP, soc)
    global_size, local_size = item_grid(ceil_div(pixels, length), others, soc)
    aligned = first % width == 0
    where = (first // width,) if aligned else (first, op.inputs[index].c)
    return Launch(
        kernel="concat_blocks" if aligned else "concat_lanes",
        global_size=global_size,
        local_size=local_size,
        args=(TensorArg("input", index), TensorArg("output"), length, *where, pixels),
    )
