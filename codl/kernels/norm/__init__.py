"""Normalisation on the GPU: along any run of elements, or of single channels in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from codl.ir.ops.norm import Channels, Norm
from codl.kernels.base import ENDS, Choice, KernelPlan, ScratchArg, TensorArg
from codl.kernels.kernel import BLOCKS, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.rows import RowGrid, sharer_choices
from codl.kernels.tiling import ceil_div, grid_rounds, item_grid, strip
from codl.records.soc import Soc

#: Pixels of a block that one work-item of a CPU takes at most: some microseconds.
LONGEST_STRIP = 4096
#: Of more pieces a GPU first adds up some: in the end every work-item adds up the sums of all.
MOST_PIECES = 256
#: Pixels that a work-item of a GPU has at least, where the image has them; and where there are more
#: pieces than MOST_PIECES.
FEWEST_PIXELS, MANY_PIXELS = 16, 32
SUMS, FOLDED = ScratchArg("sums"), ScratchArg("folded")


class GpuDirect(Kernel):
    """Any run but a channel; scale and bias for each element of one, or for pieces of equal length.

    Among convolutions this layout would cost a copy before a norm and another behind it.
    """

    op_kind = "norm"
    source = "norm/gpu_direct.cl"

    def refuse(self, op: Norm, soc: Soc) -> str | None:
        if _is_by_channel(op):
            return f"runs must not be the channels of one image, got {op.input}"
        if op.affine and op.channels is None:
            return f"scale and bias must have no 1 between their axes, got {op.shapes[1]}"
        return None

    def choices(self, op: Norm, soc: Soc) -> tuple[Choice, ...]:
        return sharer_choices(op.run, soc)

    def counts(self, op: Norm, soc: Soc, choice: Choice) -> dict[str, float]:
        return {
            "runs": op.runs,
            "loop_length": op.run,
            "segments": op.runs * op.run // _segment(op),
            **RowGrid.of(op.runs, op.run, choice, soc).features(soc),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Norm, soc: Soc, choice: Choice) -> KernelPlan:
        grid = RowGrid.of(op.runs, op.run, choice, soc)
        channels = op.channels or Channels(1, 1)
        norm = launch(
            "norm_runs",
            grid.sizes,
            *_inputs(op),
            ENDS[1],
            strip=grid.strip,
            runs=op.runs,
            size=op.run,
            segment=_segment(op),
            channel_run=channels.run,
            channels=channels.total,
            per_element=1.0 / op.run,
            epsilon=float(op.epsilon),
        )
        macros: dict[str, Any] = {**_macros(op), "IN_RUNS": channels.run > 1}
        return self.assemble(op, soc, norm, macros={**grid.defines, **macros})


@dataclass(frozen=True)
class _Pieces:
    """How many pieces a block has, and the consecutive pixels of a piece on a CPU.

    What is left to add up at last are the sums of `parts` parts.
    """

    number: int
    strip: int
    parts: int

    @classmethod
    def of(cls, op: Norm, soc: Soc) -> _Pieces:
        pixels = op.output.h * op.output.w
        if soc.gpu.is_cpu:
            length = strip(pixels, soc.gpu.blocks(op.output.c), LONGEST_STRIP, soc)
            number = ceil_div(pixels, length)
            return cls(number, length, number)
        if pixels <= MOST_PIECES * MANY_PIXELS:
            number = min(MOST_PIECES, ceil_div(pixels, FEWEST_PIXELS))
            return cls(number, 0, number)
        number = ceil_div(pixels, MANY_PIXELS)
        return cls(number, 0, ceil(sqrt(number)))


class GpuBlocked(Kernel):
    """Runs that are the pixels of one channel: instance norms, as convolutions want them."""

    op_kind = "norm"
    base_name = "gpu_blocked"
    source = "norm/gpu_blocked.cl"
    storages = BLOCKS

    def refuse(self, op: Norm, soc: Soc) -> str | None:
        if not _is_by_channel(op):
            return f"runs must be channels of one image, got {op.runs} of {op.run} in {op.input}"
        return None

    def counts(self, op: Norm, soc: Soc, choice: Choice) -> dict[str, float]:
        pieces, blocks = _Pieces.of(op, soc), soc.gpu.blocks(op.output.c)
        items, vectors = pieces.number * blocks, op.output.h * op.output.w * blocks
        return {
            "output_blocks": vectors,
            "activations": vectors * (op.activation.kind != "none"),
            "sums": items * pieces.parts,
            "work_items": items,
            "waves": grid_rounds(pieces.number, blocks, soc),
            "output_bytes": self.stored(vectors * soc.gpu.vector_width),
        }

    def build(self, op: Norm, soc: Soc, choice: Choice) -> KernelPlan:
        pieces, blocks = _Pieces.of(op, soc), soc.gpu.blocks(op.output.c)
        sizes = item_grid(pieces.number, blocks, soc)
        pixels = op.output.h * op.output.w
        cut = {"pieces": pieces.number, "strip": pieces.strip, "pixels": pixels}
        launches = [launch("norm_sums", sizes, ENDS[0], SUMS, **cut)]
        sum_bytes, summed = 4 * 2 * soc.gpu.vector_width * blocks, SUMS
        scratch = {"sums": sum_bytes * pieces.number}
        if pieces.parts < pieces.number:
            fold = item_grid(pieces.parts, blocks, soc)
            between = {"pieces": pieces.number, "folded": FOLDED, "parts": pieces.parts}
            launches.append(launch("norm_fold", fold, SUMS, **between))
            scratch["folded"], summed = sum_bytes * pieces.parts, FOLDED
        launches.append(
            launch(
                "norm_channels",
                sizes,
                *_inputs(op),
                ENDS[1],
                summed,
                parts=pieces.parts,
                **cut,
                per_element=1.0 / pixels,
                epsilon=float(op.epsilon),
            )
        )
        return self.assemble(op, soc, *launches, macros=_macros(op), scratch=scratch)


def _inputs(op: Norm) -> list[TensorArg]:
    return [TensorArg("input", index) for index in range(len(op.shapes))]


def _macros(op: Norm) -> dict[str, bool]:
    return {"CENTER": op.center, "AFFINE": op.affine}


def _segment(op: Norm) -> int:
    """Elements of a run that have one channel, or a channel each of the next ones."""
    channels = op.channels
    if channels is None:
        return op.run
    return min(op.run, channels.run if channels.run > 1 else channels.total)


def _is_by_channel(op: Norm) -> bool:
    """Whether every channel of an image is normalized alone, by a scale and a bias for it."""
    shape = op.inputs[0]
    planes = shape.n == 1 and (op.runs, op.run) == (shape.c, shape.h * shape.w)
    return planes and all(tuple(other) == (1, shape.c, 1, 1) for other in op.inputs[1:])


register(*of_every_storage(GpuDirect, GpuBlocked))
