"""Reshape on the GPU: a copy from one planar tensor to another of as many elements."""

from __future__ import annotations

from codl.ir.ops.movement import Reshape
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.kernel import Grid, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: Chunks of V elements of one work-item of a CPU at most.
LONGEST_STRIP = 1024


class GpuCopy(Kernel):
    """Any number of axes."""

    op_kind = "reshape"
    base_name = "gpu_copy"
    source = "layout/transform.cl"

    def counts(self, op: Reshape, soc: Soc, choice: Choice) -> dict[str, float]:
        return {"output_bytes": self.stored(op.output.elements), **_grid(op, soc).features}

    def build(self, op: Reshape, soc: Soc, choice: Choice) -> KernelPlan:
        grid = _grid(op, soc)
        sizes = {"strip": grid.strip, "pixels": op.output.elements}
        copy = launch("copy_planar", grid.sizes, *ENDS, **sizes).of_images(1, ENDS)
        halves = self.storage.element == "float16"
        return self.assemble(op, soc, copy, macros={"PLANAR_HALF": halves})


def _grid(op: Reshape, soc: Soc) -> Grid:
    return Grid.of(ceil_div(op.output.elements, soc.gpu.vector_width), 1, LONGEST_STRIP, soc)


register(*of_every_storage(GpuCopy))
