"""Element-wise operators on the GPU among ops of any rank, whose tensors are planar."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from codl.ir.ops.eltwise import Eltwise
from codl.kernels.base import Arg, Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.eltwise.gpu_direct import AMONG_PLANAR, mode_defines
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

#: Chunks of V elements of one work-item of a CPU at most.
LONGEST_STRIP = 1024


class GpuPlanar(ForPlanar):
    """Any mode, with any axis stretched while it is read.

    It is planned in place of one in blocks where that is among planar tensors, and counts as fast.
    """

    base_name: ClassVar[str] = AMONG_PLANAR
    op_kind: ClassVar[str] = "eltwise"
    takes_batch: ClassVar[bool] = True
    meant_for: ClassVar[frozenset[str]] = frozenset()

    def choices(self, op: Eltwise, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Eltwise, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        length, items = _grid(op, soc)
        return {
            "output_chunks": float(items * length),
            "stretched": float(sum(shape != op.output for shape in op.inputs)),
            "work_items": float(items),
            "waves": waves(items, soc),
            "input_bytes": self.stored_bytes(sum(shape.bytes for shape in op.inputs)),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Eltwise, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, items = _grid(op, soc)
        global_size, local_size = item_grid(items, 1, soc)
        count = len(op.inputs)
        tensors = [TensorArg("input", index % count) for index in (0, 1)]
        sizes, steps = _axes(op)
        ends: tuple[TensorArg, ...] = (*tensors, TensorArg("output"))
        elements = op.output.elements
        args: tuple[Arg, ...] = (*ends, length, elements, *sizes[1:], *steps[0], *steps[count - 1])
        stretched = (i for i, shape in enumerate(op.inputs) if shape != op.output)
        return KernelPlan(
            source="eltwise/gpu_planar.cl",
            launches=(KernelLaunch("eltwise_planar", global_size, args, local_size),),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **mode_defines(op),
                **{f"STRETCHED_{i}": 1 for i in stretched},
            },
            storages=dict.fromkeys(ends, self.storage),
            whole_batch=True,
        )


def _grid(op: Eltwise, soc: Soc) -> tuple[int, int]:
    """Chunks of a work-item, and work-items."""
    chunks = ceil_div(op.output.elements, soc.gpu.vector_width)
    length = strip(chunks, 1, LONGEST_STRIP, soc)
    return length, ceil_div(chunks, length)


def _axes(op: Eltwise) -> tuple[list[int], list[list[int]]]:
    """The output as four axes, and how far each input moves on for each: 0 where it is stretched.

    Neighbours that the same inputs are stretched along are one axis.
    """
    axes: list[tuple[int, tuple[bool, ...]]] = []
    for size, *own in zip(op.output, *op.inputs, strict=True):
        moves = tuple(one == size for one in own)
        if axes and moves == axes[-1][1]:
            axes[-1] = (axes[-1][0] * size, moves)
        elif size > 1:
            axes.append((size, moves))
    axes = [(1, (False,) * len(op.inputs))] * (4 - len(axes)) + axes
    steps: list[list[int]] = []
    for index in range(len(op.inputs)):
        sizes = [size if moves[index] else 0 for size, moves in axes]
        steps.append([prod(filter(None, sizes[at + 1 :])) if sizes[at] else 0 for at in range(4)])
    return [size for size, _ in axes], steps
