"""Benchmarks: ops alone, a model that runs on and on, and an interface beside one.

Each function returns what `codl bench --json` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from codl.api.job import Job, digests_of, recorded
from codl.api.reporter import Reporter
from codl.engine.engine import Engine
from codl.evaluation.benchmarks import TURNS, UiRow, Window, summary, sustain
from codl.evaluation.benchmarks import bench_ui as draw_beside
from codl.ir import Op, to_text
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.inputs import random_inputs
from codl.measure.op_runner import ELSEWHERE
from codl.measure.timing import Protocol
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.records.results import Digests
from codl.records.tuned import BenchRow
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import load_local

#: A run on and on is told in at most this many stretches.
MOST_LINES = 20
#: The limits that are compared where none are named.
USUAL = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.7)
BESIDE = ("without limits", "with limits")


def bench_ops(
    ops: Sequence[Op],
    soc: LocalSoc,
    serial: str,
    *,
    dataset: Path,
    every: bool,
    budget: Budget,
    reporter: Reporter,
) -> dict[str, Any]:
    """Ops in every kernel variant, or in those for this SoC alone, while there is time."""
    tuning = tuning_file.read(Dataset.found(soc.name, dataset), soc)
    done: list[Op] = []
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    elsewhere = 0
    with (
        closing(connect(serial, soc)) as target,
        reporter.progress(f"Measuring on {soc.name}") as update,
    ):
        origin = recorded(target, Digests(tuning=tuning.fingerprint), **asdict(Protocol()))
        with budget.keeping(done):
            for each in budget.steps(ops, update):
                measured, others = target.bench(each, tuning, every=every)
                rows += [_row(each, row) for row in measured]
                here = [other for other in others if every or other.reason != ELSEWHERE]
                refused += [{"op": to_text(each), **asdict(other)} for other in here]
                elsewhere += len(others) - len(here)
                done.append(each)
    return {
        "soc": soc.name,
        "source": "measured",
        "ops": rows,
        "refused": refused,
        "elsewhere": elsewhere,
        "stopped": budget.ended,
        "left": len(ops) - len(done),
        **origin,
    }


def _row(op: Op, row: BenchRow) -> dict[str, Any]:
    return {
        "op": to_text(op),
        "variant": row.variant,
        "processor": row.processor,
        "latency_ms": row.latency.level,
        "gflops": row.gflops,
        "p20_ms": row.latency.p20,
        "p80_ms": row.latency.p80,
        "runs": row.latency.runs,
        "choice": None if row.choice is None else dict(row.choice),
    }


def bench_sustained(job: Job, *, minutes: float, budget: Budget) -> dict[str, Any]:
    """Run a model for some minutes, or until Ctrl-C behind the first window."""
    network, seconds = job.read_network(), 60 * minutes
    windows: list[Window] = []
    with job.connected() as context:
        plan = job.plan_of(network, context)
        with Engine(network, plan, context.device, context.tuning) as engine:
            engine.feed(random_inputs(network))
            with (
                job.reporter.progress(f"Running {network.name}") as update,
                budget.keeping(windows),
            ):
                for window in sustain(context.device.time, engine.loaded, seconds):
                    windows.append(window)
                    done = min(window.end_s, seconds)
                    update(round(done), round(seconds), seconds - done)
        of = digests_of(context, network, plans={network.name: plan})
        origin = recorded(context.device, of, minutes=minutes)
    every_s = max(seconds / MOST_LINES, min(60.0, seconds / 4))
    return {
        "model": network.name,
        "soc": job.described.name,
        "serial": job.serial,
        "source": "measured",
        "strategy": plan.strategy,
        "minutes": windows[-1].end_s / 60,
        "interrupted": budget.ended == "interrupted",
        **asdict(summary(windows, every_s=every_s)),
        **origin,
    }


def bench_ui(job: Job, *, seconds: float, budget: Budget) -> dict[str, Any]:
    """Frames beside nothing, beside a model as it usually runs, and beside it with limits.

    Each is planned for its limits. Ctrl-C ends it, and the `budget` says so.
    """
    described = load_local(job.soc, job.serial, job.precision)
    limits = job.wanted.limits(described) or USUAL
    network = job.read_network()
    with ExitStack() as stack:
        engines = {}
        for name, limit in zip(BESIDE, (UNLIMITED, limits), strict=True):
            soc = replace(described, placement=replace(described.placement, limits=limit))
            target = stack.enter_context(closing(connect(job.serial, soc)))
            context = replace(job.context, soc=soc, target=target)
            plan = job.plan_of(network, context)
            engines[name] = stack.enter_context(Engine(network, plan, target, context.tuning))
        probe = stack.enter_context(closing(target.fresh()))
        of = digests_of(context, network, plans={n: loaded.plan for n, loaded in engines.items()})
        origin = recorded(target, of, seconds=seconds, turns=TURNS)
        job.reporter.stage(
            f"Drawing frames beside {network.name}, {seconds:g} s each", len(BESIDE) * seconds
        )
        rows = draw_beside(engines, probe, random_inputs(network), seconds=seconds, budget=budget)
        strategies = {name: engine.plan.strategy for name, engine in engines.items()}
    return {
        "model": network.name,
        "soc": described.name,
        "serial": job.serial,
        "source": "measured",
        "limits": asdict(limits),
        "rows": [{**asdict(row), "strategy": strategies.get(row.beside)} for row in rows],
        "price": _price(rows),
        "stopped": budget.ended,
        **origin,
    }


def _price(rows: list[UiRow]) -> float | None:
    """How many times longer an inference takes with limits than without."""
    without_ms, with_ms = (row.latency_ms.median for row in rows if row.latency_ms is not None)
    return with_ms / without_ms if without_ms else None
