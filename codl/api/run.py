"""A model, or a bundle, by one plan: how long it takes, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from codl import bundle
from codl.api.job import Job, digests_of, read_inputs, recorded, told_of
from codl.api.trace import RUNS, power_w, write_trace
from codl.bundle.archive import Archive
from codl.engine.engine import Engine
from codl.errors import CodlError, UnsupportedError
from codl.evaluation.run_report import RunReport, measure, record
from codl.frontend.models import BUNDLE
from codl.measure.inputs import random_inputs
from codl.plan.cost_model import CostModel
from codl.records.results import doubts
from codl.runtime.loaded import sharing_ms
from codl.strategies import Context
from codl.strategies.adapter import PlanAdapter
from codl.strategies.device_loop import keep_run
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import load_local


@dataclass(frozen=True, kw_only=True)
class RunHow:
    """How a model runs: by the words of `codl run`; `adapts` is --adapt, `trusted` --trust."""

    rounds: int
    inputs: Path | None = None
    adapts: bool = False
    trusted: bool = False
    check: bool = True
    strict: bool = False
    trace: Path | None = None


@dataclass(frozen=True)
class _Opened:
    """An engine, its target and its inputs, and of a model what it was planned with."""

    engine: Engine
    target: Target
    inputs: Mapping[str, NDArray[Any]]
    context: Context | None = None
    cost: CostModel | None = None


def run(job: Job, how: RunHow) -> tuple[dict[str, Any], RunReport]:
    """Run the job's model or bundle; what `codl run --json` holds, and the report behind it.

    Raises `CodlError` where something is missing or unknown, and `UnsupportedError` for what cannot
    be changed in a bundle.
    """
    with ExitStack() as stack:
        is_bundle = Path(job.model).suffix == BUNDLE
        opened = (_open_bundle if is_bundle else _open_model)(job, how, stack)
        with (engine := opened.engine):
            done = _measured(opened, job, how)
            if how.trace is not None:
                recording = record(
                    engine, opened.target, opened.cost, runs=RUNS, power_w=power_w(done)
                )
                write_trace(recording, how.trace, engine.network, engine.soc, job.reporter)
        of = digests_of(opened.context, engine.network, plans={engine.network.name: engine.plan})
        origin = recorded(opened.target, of, rounds=how.rounds)
    return {"serial": job.serial, **_result(engine, done, job), **origin}, done


def _open_model(job: Job, how: RunHow, stack: ExitStack) -> _Opened:
    """Read, plan and load a model."""
    from codl.validate.first_check import checked_engine  # a bundle needs no ONNX

    network, source = job.read_with_source(check=how.check)
    arrays = read_inputs(network, how.inputs, job.deployment, random_inputs)
    context = stack.enter_context(job.connected())
    adapter = PlanAdapter(context, network) if how.adapts else None
    plan = job.plan_of(network, context)
    job.reporter.stage(f"Loading {network.name}: building its kernels and packing its weights")
    engine = checked_engine(
        network,
        plan,
        context.device,
        context.tuning,
        source=source,
        recovers=not how.strict,
        strict=how.strict,
    )
    if adapter is not None:
        engine.adapt(adapter)
    return _Opened(engine, context.device, arrays, context, context.default_cost(network))


def _open_bundle(job: Job, how: RunHow, stack: ExitStack) -> _Opened:
    """Load a bundle."""
    fixed = {"plan": job.plan, "strategy": job.strategy, "batch": job.batch, "shape": job.shapes}
    fixed |= {"predictor": job.predictor, "adapt": how.adapts, "precision": job.precision}
    if options := [f"--{key}" for key, value in fixed.items() if value]:
        raise UnsupportedError(
            f"{', '.join(options)} cannot change {job.model}: a bundle's plan and shapes are "
            "fixed. `codl package` with these options makes another."
        )
    archive = Archive(Path(job.model))
    described = load_local(job.soc, job.serial) if job.soc else bundle.soc_of(archive)
    placed = job.wanted.applied(described, job.reporter)
    target = stack.enter_context(closing(connect(job.serial, placed)))
    engine = bundle.load(
        job.model,
        soc=placed,
        connected=lambda soc: target,
        trusted=how.trusted,
        check=how.check,
    )
    arrays = read_inputs(engine.network, how.inputs, job.deployment, random_inputs)
    return _Opened(engine, target, arrays)


def _measured(opened: _Opened, job: Job, how: RunHow) -> RunReport:
    """Run it; what a plan takes that it has changed to is kept for the next time."""
    engine, context = opened.engine, opened.context
    if how.strict and engine.fallbacks:
        raise CodlError(f"--strict: {'; '.join(map(str, engine.fallbacks))}")
    job.reporter.stage(f"Running {engine.network.name}, {how.rounds} times")
    done = measure(engine, opened.target, opened.inputs, opened.cost, rounds=how.rounds)
    if context is not None and engine.adaptation is not None and engine.adaptation.changes:
        keep_run(engine, context, done.latency_ms.level)
    return done


def _result(engine: Engine, done: RunReport, job: Job) -> dict[str, Any]:
    return {
        "model": engine.network.name,
        "soc": engine.soc.name,
        "batch": job.batch,
        "strategy": engine.plan.strategy,
        "latency_ms": asdict(done.latency_ms),
        "predicted_ms": engine.plan.predicted_ms,
        "doubts": list(
            doubts(
                done.latency_ms,
                predicted_ms=engine.plan.predicted_ms,
                quota_periods=done.conditions.quota_periods,
            )
        ),
        "data_sharing_ms": sharing_ms(done.spans),
        "energy_mj": done.energy_mj,
        "energy_sensors": list(done.energy_sensors),
        "source": "measured",
        "fallbacks": [asdict(fallback) for fallback in engine.fallbacks],
        "gpu_failure": engine.gpu_failure,
        **told_of(engine.checked),
        "planned_fallbacks": [asdict(fallback) for fallback in engine.plan.fallbacks],
        "gpu_storage": list(map(str, engine.storages)),
        "precision": engine.precision,
        "options": {**asdict(job.wanted), "threads": engine.soc.placement.threads},
        "limited": None if engine.limited is None else asdict(engine.limited),
        "memory_bytes": asdict(engine.memory),
        "adaptation": None if engine.adaptation is None else asdict(engine.adaptation),
        "placement": [asdict(placement) for placement in done.placed],
        "spans": [asdict(span) for span in done.spans],
    }
