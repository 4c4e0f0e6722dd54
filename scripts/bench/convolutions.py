"""Our OpenCL convolutions against ncnn's best algorithm, each on one and the same core.

Two latencies are taken of each, all in turns in one process:

- as in the middle of a network: input and output in either side's own blocked layout;
- planar: from planar (nchw) memory to planar memory, the conversions included.

The best variant of either side counts, with its untuned parameters unless `--choices` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import ops_on_one_core
from interleaved import Contender, busy_s, compare, waiting_cores
from ops_on_one_core import choices, geometric_mean, random_weights

from codl.ir import Op, Weights, to_text
from codl.kernels import registry
from codl.lower import pieces
from codl.measure.op_runner import repeated
from codl.runtime.host_handles import HostSession
from codl.runtime.launch import BoundKernel
from codl.runtime.ncnn_net import NcnnSession
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.session import Session

OPS = Path(__file__).with_name("convolutions.txt")


@dataclass(frozen=True)
class Row:
    """One op: the best variant of either side and its latency, and the same on planar memory."""

    op: str
    ncnn: str
    ncnn_ms: float
    opencl: str
    opencl_ms: float
    ratio: float
    planar_ncnn_ms: float
    planar_opencl_ms: float
    planar_ratio: float


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    ops_on_one_core.run(about, OPS, 2.0, prepared, line=line, report=report, summary=summary)


def prepared(gpu: OpenClDevice, args: argparse.Namespace) -> Callable[[Op], Row]:
    return lambda op: measure(op, gpu, args.variant, args.choices, args.seconds)


def measure(op: Op, gpu: OpenClDevice, only: str, all_choices: bool, seconds: float) -> Row:
    weights = random_weights(op)
    sides = [*ncnn(op, weights, gpu.soc), *opencl(op, weights, gpu, only, all_choices)]
    best = compare(sides, seconds)
    latency = {group: contender.ms for group, contender in best.items()}
    return Row(
        op=to_text(op),
        ncnn=best["ncnn"].name,
        ncnn_ms=latency["ncnn"],
        opencl=best["opencl"].name,
        opencl_ms=latency["opencl"],
        ratio=latency["opencl"] / latency["ncnn"],
        planar_ncnn_ms=latency["planar ncnn"],
        planar_opencl_ms=latency["planar opencl"],
        planar_ratio=latency["planar opencl"] / latency["planar ncnn"],
    )


def ncnn(op: Op, weights: Weights, soc: LocalSoc) -> Iterator[Contender]:
    """Every variant of the CPU side, on packed and on planar memory."""
    for variant in registry.variants(op, "cpu", soc):
        packed, planar = (net(op, variant, weights, soc) for _ in range(2))
        packed.pack_inputs()
        inside, alone = repeated(packed.compute), repeated(planar.run)
        yield Contender("ncnn", variant.name, inside, soc.placement.cpu_cores, thread_time)
        yield Contender("planar ncnn", variant.name, alone, soc.placement.cpu_cores, thread_time)


def opencl(
    op: Op, weights: Weights, gpu: OpenClDevice, only: str, all_choices: bool
) -> Iterator[Contender]:
    """Every variant of the GPU side that is meant for it, on blocked and on planar memory."""
    cores = waiting_cores(gpu.soc)
    for name, plan in choices(op, gpu, only, all_choices):
        session = Session(pieces.kernels_alone(op, plan, weights, gpu.soc), gpu)
        kernels = {stage.label: session.kernels(stage.label) for stage in session.executable.stages}
        inside = enqueued(gpu, kernels[pieces.WORK])
        alone = enqueued(gpu, [kernel for own in kernels.values() for kernel in own])
        yield Contender("opencl", name, inside, cores, partial(busy_s, gpu))
        yield Contender("planar opencl", name, alone, cores, partial(busy_s, gpu))


def net(op: Op, variant: Any, weights: Weights, soc: LocalSoc) -> NcnnSession:
    """A net of one op over arrays of its own."""
    session = HostSession(pieces.net_alone([op], variant, [weights], soc), soc)
    session.inputs["x0"][...] = np.random.default_rng(0).standard_normal(op.input, np.float32)
    (made,) = session.nets
    assert isinstance(made, NcnnSession)
    return made


def enqueued(gpu: OpenClDevice, kernels: Sequence[BoundKernel]) -> Callable[[int], None]:
    return lambda repeats: gpu.run([*kernels] * repeats)


def line(row: Row) -> str:
    return (
        f"| {row.op.removeprefix('conv2d ')} | {row.ncnn} {row.ncnn_ms:.4g} "
        f"| {row.opencl} {row.opencl_ms:.4g} | {row.ratio:.3f} | {row.planar_ratio:.3f} |"
    )


def report(rows: Sequence[Row]) -> str:
    """The table without its body, which has been printed while it grew, and what it comes to."""
    worst = sorted(rows, key=lambda row: -row.ratio)[:10]
    numbers = summary(rows)
    return "\n".join(
        [
            "| op | ncnn's best, ms | OpenCL's best, ms | ratio | with conversions |",
            *(f"{key}: {value:.3f}" for key, value in numbers.items()),
            "The worst:",
            *map(line, worst),
        ]
    )


def summary(rows: Sequence[Row]) -> dict[str, float]:
    ratios, planar = [row.ratio for row in rows], [row.planar_ratio for row in rows]
    return {
        "geometric mean": geometric_mean(ratios),
        "worst": max(ratios),
        "planar geometric mean": geometric_mean(planar),
        "planar worst": max(planar),
    }


if __name__ == "__main__":
    main()
