"""Attention as one op of ours against the ops that it stands for, and against ONNX Runtime.

The shapes are those of transformers of today, all on one and the same core, in turns in one
process. ONNX Runtime has its own node and, apart, the same ops one after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time

import ops_on_one_core
from interleaved import Contender, busy_s, compare, waiting_cores
from ops_on_one_core import geometric_mean, random_weights
from products import enqueued, fill, opencl, ort

from codl.ir import Op, to_text
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

OPS = Path(__file__).with_name("attention.txt")


@dataclass(frozen=True)
class Row:
    """Latencies of one attention: whole and in steps, on either side; GFLOP/s of ours, whole."""

    op: str
    opencl: str
    opencl_ms: float
    steps_ms: float
    ort_ms: float
    ort_steps_ms: float
    gflops: float

    @property
    def to_steps(self) -> float:
        return self.opencl_ms / self.steps_ms

    @property
    def to_ort(self) -> float:
        """To the better of its node and its steps."""
        return self.opencl_ms / min(self.ort_ms, self.ort_steps_ms)


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    ops_on_one_core.run(about, OPS, 1.5, prepared, line=line, report=report, summary=summary)


def prepared(gpu: OpenClDevice, args: argparse.Namespace) -> Callable[[Op], Row]:
    return lambda op: measure(op, gpu, args)


def measure(op: Op, gpu: OpenClDevice, args: argparse.Namespace) -> Row:
    parts = [ort(part, 1, gpu.soc) for part in op.stands_for]
    best = compare(
        [
            *opencl(op, 1, gpu, args.variant, args.choices),
            steps(op, gpu),
            ort(op, 1, gpu.soc),
            Contender("ort_steps", "cpu_ort", in_a_row(parts), parts[0].cores, thread_time),
        ],
        args.seconds,
    )
    own = best["opencl"]
    return Row(
        op=to_text(op),
        opencl=own.name,
        opencl_ms=own.ms,
        steps_ms=best["steps"].ms,
        ort_ms=best["ort"].ms,
        ort_steps_ms=best["ort_steps"].ms,
        gflops=op.flops / own.ms / 1e6,
    )


def steps(op: Op, gpu: OpenClDevice) -> Contender:
    """The ops that one stands for, in their default variants, enqueued one after the other."""
    kernels = []
    for part in op.stands_for:
        variant = registry.variants(part, "gpu", gpu.soc)[0]
        plan = Tuning().plan(variant, part, gpu.soc)  # type: ignore[arg-type]
        session = Session(pieces.kernels_alone(part, plan, random_weights(part), gpu.soc), gpu)
        fill(part, session.inputs)
        session.run()
        kernels += session.kernels(pieces.WORK)
    work, cores = enqueued(gpu, [kernels]), waiting_cores(gpu.soc)
    return Contender("steps", "steps", work, cores, partial(busy_s, gpu))


def in_a_row(parts: Sequence[Contender]) -> Callable[[int], None]:
    def work(repeats: int) -> None:
        for _ in range(repeats):
            for part in parts:
                part.work(1)

    return work


def line(row: Row) -> str:
    return (
        f"| {row.op.removeprefix('attention ')} | {row.opencl} {row.opencl_ms:.4g} "
        f"| {row.steps_ms:.4g} | {row.ort_ms:.4g} | {row.ort_steps_ms:.4g} "
        f"| {row.to_steps:.3f} | {row.to_ort:.3f} | {row.gflops:.0f} |"
    )


def report(rows: Sequence[Row]) -> str:
    """The table without its body, which has been printed while it grew, and what it comes to."""
    return "\n".join(
        [
            "| op | OpenCL, ms | in steps | ONNX Runtime, ms | in steps | to our steps "
            "| to the better of ONNX Runtime's | GFLOP/s |",
            *(f"{key}: {value:.3f}" for key, value in summary(rows).items()),
        ]
    )


def summary(rows: Sequence[Row]) -> dict[str, float]:
    of_steps, of_ort = [row.to_steps for row in rows], [row.to_ort for row in rows]
    return {
        "to our steps, geometric mean": geometric_mean(of_steps),
        "to our steps, worst": max(of_steps),
        "to ONNX Runtime, geometric mean": geometric_mean(of_ort),
        "to ONNX Runtime, worst": max(of_ort),
    }


if __name__ == "__main__":
    main()
