"""Concatenation on the GPU: a copy of every input, block by block."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import BLOCKED, Choice, KernelPlan, Launch, Processor, Storage, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up, strip, waves
from codl.ops.concat import Concat
from codl.soc import Soc

#: Pixels of one work-item of a CPU at most: about 5 us.
LONGEST_STRIP = 2048


class GpuCopy:
    """Inputs of any number of channels; those that begin inside a block are shifted on the way."""

    op_kind: ClassVar[str] = "concat"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_copy{storage.suffix}"

    def refusal(self, op: Concat, soc: Soc) -> str | None:
        return None

    def choices(self, op: Concat, soc: Soc) -> tuple[Choice, ...]:
        """The most pixels of a work-item."""
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4) if soc.gpu.is_cpu else (1,)
        return tuple({"strip": strip} for strip in strips)

    def features(self, op: Concat, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        most = (choice or self.choices(op, soc)[0])["strip"]
        width, pixels = soc.gpu.vector_width, op.output.h * op.output.w
        copies = shifted = items = 0
        size = self.storage.element_bytes
        for index in range(len(op.inputs)):
            blocks = _blocks(op, index, soc)
            items += ceil_div(pixels, strip(pixels, blocks, most, soc)) * blocks
            if op.offset(index) % width:
                shifted += blocks * pixels
            else:
                copies += blocks * pixels
        return {
            "launches": float(len(op.inputs)),
            "block_copies": float(copies),
            "shifted_copies": float(shifted),
            "work_items": float(items),
            "waves": waves(items, soc),
            "output_bytes": float(size * round_up(op.output.c, width) * pixels),
        }

    def plan(self, op: Concat, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        most = (choice or self.choices(op, soc)[0])["strip"]
        return KernelPlan(
            source="concat/gpu_copy.cl",
            launches=tuple(_launch(op, index, most, soc) for index in range(len(op.inputs))),
            defines=base_defines(op.activation, soc, self.storage),
        ).stored_as(self.storage, len(op.inputs))


def _blocks(op: Concat, index: int, soc: Soc) -> int:
    """Blocks of the output that have channels of an input."""
    width, first = soc.gpu.vector_width, op.offset(index)
    return ceil_div(first + op.inputs[index].c, width) - first // width


def _launch(op: Concat, index: int, most: int, soc: Soc) -> Launch:
    pixels, blocks = op.output.h * op.output.w, _blocks(op, index, soc)
    length = strip(pixels, blocks, most, soc)
    global_size, local_size = item_grid(ceil_div(pixels, length), blocks, soc)
    first_block, shift = divmod(op.offset(index), soc.gpu.vector_width)
    source = (shift, soc.gpu.blocks(op.inputs[index].c)) if shift else ()
    return Launch(
        kernel="concat_shifted" if shift else "concat_blocks",
        global_size=global_size,
        local_size=local_size,
        args=(TensorArg("input", index), TensorArg("output"), length, first_block, *source, pixels),
    )
