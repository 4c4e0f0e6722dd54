"""Measures every kernel variant of both processors for an op, in turns: what `codl bench` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from codl.ir import Op
from codl.kernels import registry
from codl.kernels.base import Choice, Variant
from codl.kernels.tuning import Tuning
from codl.measure.bench_rows import BenchRow, Refused
from codl.measure.op_runner import GpuWork, cpu_work, filler
from codl.measure.protocol import Protocol, measure_together
from codl.records.results import Latency
from codl.records.soc import Soc
from codl.runtime.opencl import OpenClDevice

ELSEWHERE = "written for another type of device, memory or element than the SoC file names"


def bench(
    gpu: OpenClDevice,
    op: Op,
    tuning: Tuning = Tuning(),
    *,
    every: bool = False,
    protocol: Protocol | None = None,
) -> tuple[list[BenchRow], list[Refused]]:
    """Measure an op with kernels as tuned; `every` includes variants that are not for this SoC."""
    soc = gpu.soc
    works: list[tuple[Any, Callable[[int], None]]] = []
    refused: list[Refused] = []
    for variant in registry.of_kind(op.kind):
        reason = _refusal(variant, op, soc, every)
        try:
            if reason is None:
                works.append((variant, _work(variant, op, tuning, gpu)))
        except Exception as error:  # a variant that fails is a row, not the end
            reason = str(error)
        if reason is not None:
            refused.append(Refused(variant.name, variant.processor, reason))
    samples = measure_together([work for _, work in works], protocol)
    rows = [
        _row(v, op, own, tuning.choice(v, op, soc) if v.processor == "gpu" else None)
        for (v, _), own in zip(works, samples, strict=True)
    ]
    return sorted(rows, key=lambda row: row.latency.level), refused


def _refusal(variant: Variant, op: Op, soc: Soc, every: bool) -> str | None:
    reason = variant.refusal(op, soc)
    able = registry.variants(op, variant.processor, soc, include_unfit=every)
    return ELSEWHERE if reason is None and variant not in able else reason


def _work(variant: Any, op: Op, tuning: Tuning, gpu: OpenClDevice) -> Callable[[int], None]:
    if variant.processor == "cpu":
        return cpu_work(op, variant, gpu.soc)
    return GpuWork(gpu, op, tuning.plan(variant, op, gpu.soc), filler(op))


def _row(variant: Any, op: Op, samples: Sequence[float], choice: Choice | None) -> BenchRow:
    latency = Latency.of(list(samples))
    gflops = op.flops / latency.level / 1e6
    return BenchRow(variant.name, variant.processor, latency, gflops, choice)
