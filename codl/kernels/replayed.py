"""Kernels that were measured elsewhere: known by their latencies, and not there to run.

A SoC of other people's measurements (`source: replayed`) has one variant for each processor and
kind of op, whatever kernels its library chose from: the choice is part of what is predicted.
Latencies of other numbers of CPU threads than the SoC's have variants of their own, which are
trained on but never planned with. The original CoDL is made of MACE's kernels, which are in its
program `codl_op_run`: they are known by name, and have a variant each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn

from codl.errors import UnsupportedError
from codl.ir.ops.base import Op
from codl.ir.ops.convolution import Conv2d
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pooling import Pool2d
from codl.ir.types import BLOCKED, PROCESSORS, Processor, Storage
from codl.kernels.base import Backend, Choice
from codl.records.soc import Soc
from codl.registry import Registry

#: Numbers of CPU threads that a table may have columns for, beside the SoC's own.
THREADS = (1, 2, 3, 4, 6, 8)
#: What the GPU's tensors lie in, by the kernel's name; the program is told which it is to be.
MACE_MEMORY: Mapping[str, str] = {"mace_image": "image", "mace_buffer": "buffer"}
MACE_KERNELS: Mapping[tuple[str, Processor], tuple[str, ...]] = {
    (Conv2d.kind, "cpu"): ("mace_direct", "mace_gemm", "mace_winograd"),
    (Pool2d.kind, "cpu"): ("mace_direct",),
    (FullyConnected.kind, "cpu"): ("mace_gemv",),
    **{(op.kind, "gpu"): tuple(MACE_MEMORY) for op in (Conv2d, Pool2d, FullyConnected)},
}
#: Channels that Winograd needs at least, of the input and of the output.
WINOGRAD_CHANNELS = 8


def mace_cpu_kernel(op: Op) -> str:
    """The kernel that computes an op of one of these kinds on the CPU."""
    if isinstance(op, FullyConnected):
        return "mace_gemv"
    if isinstance(op, Conv2d) and op.stride == (1, 1):
        if op.kernel == (1, 1):
            return "mace_gemm"
        if op.kernel == (3, 3) and min(op.input.c, op.out_channels) >= WINOGRAD_CHANNELS:
            return "mace_winograd"
    return "mace_direct"


def mace_refusal(op: Op, processor: Processor, kernel: str) -> str | None:
    """Why a kernel does not compute an op; None where it does."""
    if op.inputs[0].n != 1:
        return "codl_op_run has one image at a time"
    if isinstance(op, Conv2d) and op.groups != 1:
        return "codl_op_run has no convolution with groups"
    if isinstance(op, Conv2d | Pool2d) and op.dilation != (1, 1):
        return "codl_op_run has no dilation"
    if processor == "cpu" and kernel != mace_cpu_kernel(op):
        return f"codl_op_run computes it by {mace_cpu_kernel(op)}"
    return None


@dataclass(frozen=True)
class Replayed:
    """The kernels of another library for one kind of op on one processor.

    `threads` is the number of CPU threads, None for all that the SoC's CPU side has. `kernel` is
    one of `MACE_KERNELS`, or "" for whatever a library has.
    """

    op_kind: str
    processor: Processor
    threads: int | None = None
    kernel: str = ""
    storage: ClassVar[Storage] = BLOCKED
    meant_for: ClassVar[frozenset[str]] = frozenset()
    adds_on: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})
    planar_fallback: ClassVar[None] = None
    backend: ClassVar[Backend] = "replayed"
    op_columns: ClassVar[None] = None
    transforms_weights: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Such as `gpu_replayed`, `cpu_replayed_threads1`, or `cpu_mace_gemm`."""
        if self.kernel:
            return f"{self.processor}_{self.kernel}"
        return f"{self.processor}_replayed" + (f"_threads{self.threads}" if self.threads else "")

    @property
    def is_plannable(self) -> bool:
        return self.threads is None

    @property
    def takes_batch(self) -> bool:
        return self.processor == "cpu"

    def refusal(self, op: Any, soc: Soc) -> str | None:
        if soc.is_replayed:
            return mace_refusal(op, self.processor, self.kernel) if self.kernel else None
        return f"its latencies are replayed, and the SoC {soc.name!r} is {soc.source}"

    def features(self, op: Any, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        """What any op moves and computes, whatever the kernel."""
        return work(op)

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def plan(self, op: Any, soc: Soc, choice: Choice | None = None) -> NoReturn:
        raise UnsupportedError(
            f"{self.op_kind}_{self.name} cannot run: codl has its latencies, replayed from "
            "measurements of others, and not its kernels."
        )


#: Of kinds of op whose replayed kernels have features of their own; the others are `Replayed`.
CLASSES: Registry[type[Replayed]] = Registry("replayed kernel")


def replayed_variants(op_kind: str) -> tuple[Replayed, ...]:
    """The variants of one kind of op: of either processor, of numbers of threads, and by name."""
    # A plugin may add a kind's class after the kind was first asked for.
    cls: Any = CLASSES.get(op_kind, Replayed)
    return _variants(cls, op_kind)


@cache
def _variants(cls: Any, op_kind: str) -> tuple[Replayed, ...]:
    more = (cls(op_kind, "cpu", threads) for threads in THREADS)
    named = (
        cls(op_kind, processor, kernel=kernel)
        for processor in PROCESSORS
        for kernel in MACE_KERNELS.get((op_kind, processor), ())
    )
    return (cls(op_kind, "cpu"), cls(op_kind, "gpu"), *more, *named)


def work(op: Op) -> dict[str, float]:
    """Operations, and the bytes of what is read of inputs, of weights and output as float32."""
    inputs = 4.0 * op.read_elements
    return {
        "flops": float(op.flops),
        "input_bytes": inputs,
        "weight_bytes": float(op.bytes - op.output.bytes) - inputs,
        "output_bytes": float(op.output.bytes),
    }
