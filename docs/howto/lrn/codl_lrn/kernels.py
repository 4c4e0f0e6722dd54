from __future__ import annotations

from codl.ir.records.soc import Soc
from codl.ir.types import BLOCKED
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.cpu import CpuKernel, NcnnLayer, OrtPlan, node
from codl.kernels.kernel import Grid, Kernel, launch
from codl.kernels.registry import register

from .op import Lrn


def refuse(op: Lrn) -> str | None:
    return None if op.input.c > 1 else "ncnn takes one channel for a vector, got 1 channel"


def in_ncnn(op: Lrn) -> NcnnLayer:
    parameters = {0: 0, 1: op.size, 2: op.alpha, 3: op.beta, 4: op.bias}
    # It reads whole vectors of a channel, and so wants its input as ncnn itself lays it out.
    return NcnnLayer("LRN", parameters, after=op.activation, copies_input=True)


def count(op: Lrn, soc: Soc) -> dict[str, float]:
    return {"flops": op.flops, "output_bytes": op.output.bytes}


def in_onnx_runtime(op: Lrn) -> OrtPlan:
    lrn = node("LRN", size=op.size, alpha=op.alpha, beta=op.beta, bias=op.bias)
    return OrtPlan((lrn,), (tuple(op.input),), tuple(op.output))


class GpuDirect(Kernel):
    """A work-item has one pixel of one block of channels."""

    op_kind = "lrn"
    source = f"{__package__}:lrn.cl"
    storages = (BLOCKED,)

    def counts(self, op: Lrn, soc: Soc, choice: Choice) -> dict[str, float]:
        steps = op.size * grid(op, soc).items
        return {"steps": steps, "output_bytes": self.stored(op.output.elements)}

    def build(self, op: Lrn, soc: Soc, choice: Choice) -> KernelPlan:
        lrn = launch(
            "lrn",
            grid(op, soc).sizes,
            *ENDS,
            pixels=op.input.h * op.input.w,
            channels=op.input.c,
            before=op.size // 2,
            size=op.size,
            scale=op.alpha / op.size,
            beta=op.beta,
            bias=op.bias,
        )
        return self.assemble(op, soc, lrn)


def grid(op: Lrn, soc: Soc) -> Grid:
    return Grid.of(op.input.h * op.input.w, soc.gpu.blocks(op.input.c), 1, soc)


register(
    CpuKernel("lrn", in_ncnn, count, refuse=refuse),
    GpuDirect(),
    CpuKernel("lrn", in_onnx_runtime, count, name="cpu_ort", backend="ort"),
)
