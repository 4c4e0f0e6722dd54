"""The kernels of the original CoDL, which is made of MACE's: which of them computes an op.

They are in the original's program `codl_op_run`, and not here: their latencies are measured by that
program alone. On the CPU the op's sizes choose the kernel, as they do in the program.
"""

from __future__ import annotations

from collections.abc import Mapping

from codl.ir.ops.base import Op
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pooling import Pool2d
from codl.ir.types import Processor

#: What the GPU's tensors lie in, by the kernel's name; the program is told which it is to be.
MEMORY: Mapping[str, str] = {"mace_image": "image", "mace_buffer": "buffer"}
KERNELS: Mapping[tuple[str, Processor], tuple[str, ...]] = {
    (Conv2d.kind, "cpu"): ("mace_direct", "mace_gemm", "mace_winograd"),
    (Pool2d.kind, "cpu"): ("mace_direct",),
    (FullyConnected.kind, "cpu"): ("mace_gemv",),
    **{(own.kind, "gpu"): tuple(MEMORY) for own in (Conv2d, Pool2d, FullyConnected)},
}
#: Winograd needs so many channels on either side.
WINOGRAD_CHANNELS = 8


def cpu_kernel(op: Op) -> str:
    """The kernel that computes an op of one of these kinds on the CPU."""
    if isinstance(op, FullyConnected):
        return "mace_gemv"
    if isinstance(op, Conv2d) and op.stride == (1, 1):
        if op.kernel == (1, 1):
            return "mace_gemm"
        if op.kernel == (3, 3) and min(op.input.c, op.out_channels) >= WINOGRAD_CHANNELS:
            return "mace_winograd"
    return "mace_direct"


def refusal(op: Op, processor: Processor, kernel: str) -> str | None:
    """Why a kernel does not compute an op; None where it does."""
    if op.inputs[0].n != 1:
        return "codl_op_run has one image at a time"
    if isinstance(op, Conv2d) and op.groups != 1:
        return "codl_op_run has no convolution with groups"
    if isinstance(op, Conv2d | Pool2d) and op.dilation != (1, 1):
        return "codl_op_run has no dilation"
    if processor == "cpu" and kernel != cpu_kernel(op):
        return f"codl_op_run computes it by {cpu_kernel(op)}"
    return None
