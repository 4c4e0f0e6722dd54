"""Normalization of single channels on the GPU, as convolutions leave and want them: in blocks."""

from __future__ import annotations

from math import ceil, sqrt
from typing import ClassVar, NamedTuple

from codl.ir.ops.norm import Norm
from codl.kernels.base import Arg, Choice, KernelLaunch, KernelPlan, ScratchArg, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Pixels of a block that one work-item of a CPU takes at most: some microseconds.
LONGEST_STRIP = 4096
#: Of more pieces a GPU first adds up some: in the end every work-item adds up the sums of all.
MOST_PIECES = 256
#: Pixels that a work-item of a GPU has at least, where there are so many; and where there are more
#: pieces than that.
FEWEST_PIXELS, MANY_PIXELS = 16, 32
SUMS, FOLDED = ScratchArg("sums"), ScratchArg("folded")


class _Pieces(NamedTuple):
    """So many pieces of a block, and the consecutive pixels of one on a CPU.

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


class GpuBlocked(ForStorage):
    """Runs that are the pixels of one channel: instance norms."""

    op_kind: ClassVar[str] = "norm"
    base_name: ClassVar[str] = "gpu_blocked"

    def refusal(self, op: Norm, soc: Soc) -> str | None:
        if not is_by_channel(op):
            return f"runs must be channels of one image, got {op.runs} of {op.run} in {op.input}"
        return None

    def choices(self, op: Norm, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Norm, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        pieces, blocks = _Pieces.of(op, soc), soc.gpu.blocks(op.output.c)
        items, size = pieces.number * blocks, float(self.storage.element_bytes)
        vectors = float(op.output.h * op.output.w * blocks)
        return {
            "output_blocks": vectors,
            "activations": vectors * (op.activation.kind != "none"),
            "sums": float(items * pieces.parts),
            "work_items": float(items),
            "waves": waves(items, soc),
            "output_bytes": size * vectors * soc.gpu.vector_width,
        }

    def plan(self, op: Norm, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        pieces, blocks = _Pieces.of(op, soc), soc.gpu.blocks(op.output.c)
        grid = item_grid(pieces.number, blocks, soc)
        pixels, count, epsilon = op.output.h * op.output.w, len(op.shapes), float(op.epsilon)
        inputs = [TensorArg("input", index) for index in range(count)]
        cut: tuple[Arg, ...] = (pieces.number, pieces.strip, pixels)
        tensors = (*inputs, TensorArg("output"))
        defined = {"CENTER": op.center, "AFFINE": op.affine}
        launches = [KernelLaunch("norm_sums", grid[0], (inputs[0], SUMS, *cut), grid[1])]
        sum_bytes, summed = 4 * 2 * soc.gpu.vector_width * blocks, SUMS
        scratch = {"sums": sum_bytes * pieces.number}
        if pieces.parts < pieces.number:
            size, group = item_grid(pieces.parts, blocks, soc)
            fold: tuple[Arg, ...] = (SUMS, pieces.number, FOLDED, pieces.parts)
            launches.append(KernelLaunch("norm_fold", size, fold, group))
            scratch, summed = scratch | {"folded": sum_bytes * pieces.parts}, FOLDED
        last = (*tensors, summed, pieces.parts, *cut, 1.0 / pixels, epsilon)
        return KernelPlan(
            source="norm/gpu_blocked.cl",
            launches=(*launches, KernelLaunch("norm_channels", grid[0], last, grid[1])),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **{name: 1 for name, on in defined.items() if on},
            },
            scratch=scratch,
        ).stored_as(self.storage, count)


def is_by_channel(op: Norm) -> bool:
    """Whether every channel of one image is normalized by itself, with a scale and a bias of its
    own.
    """
    shape = op.inputs[0]
    planes = shape.n == 1 and (op.runs, op.run) == (shape.c, shape.h * shape.w)
    return planes and all(tuple(own) == (1, shape.c, 1, 1) for own in op.inputs[1:])
