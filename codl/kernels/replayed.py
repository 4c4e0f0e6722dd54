"""Kernels that were measured elsewhere: known by their latencies, and not there to run.

A SoC of other people's measurements (`source: replayed`) has one variant for each processor and
kind of op, whatever kernels its library chose from: the choice is part of what is predicted.
Latencies of other numbers of CPU threads than the SoC's have variants of their own, which are
trained on but never planned with. The kernels of the original CoDL's program are known by name, see
`codl.kernels.mace`, and have a variant each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn

from codl.errors import UnsupportedError
from codl.ir.ops.base import Op
from codl.ir.types import BLOCKED, PROCESSORS, Processor, Storage
from codl.kernels import mace
from codl.kernels.base import Backend, Choice
from codl.records.soc import Soc
from codl.registry import Registry

#: Numbers of CPU threads that a table may have columns for, beside the SoC's own.
THREADS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Replayed:
    """The kernels of another library for one kind of op on one processor.

    `threads` is the number of CPU threads, None for all that the SoC's CPU side has. `kernel` is
    one of `codl.kernels.mace`, or "" for whatever a library has.
    """

    op_kind: str
    processor: Processor
    threads: int | None = None
    kernel: str = ""
    storage: ClassVar[Storage] = BLOCKED
    meant_for: ClassVar[frozenset[str]] = frozenset()
    adds_slowly_on: ClassVar[frozenset[str]] = frozenset()
    among_planar: ClassVar[None] = None
    backend: ClassVar[Backend] = "replayed"
    op_columns: ClassVar[None] = None

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
            return mace.refusal(op, self.processor, self.kernel) if self.kernel else None
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
        for kernel in mace.KERNELS.get((op_kind, processor), ())
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
