"""What both processors do when, as a file for Perfetto."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from codl.api.job import Job, digests_of, recorded
from codl.api.reporter import Reporter
from codl.engine.engine import Engine
from codl.evaluation.explain import cost_of
from codl.evaluation.run_report import Recording, RunReport, measure, predict, record
from codl.ir import Network
from codl.lower import lower
from codl.measure.inputs import random_inputs
from codl.records.soc import Soc

#: Where to look at one.
VIEWER = "https://ui.perfetto.dev"
#: Profiled inferences, and plain runs for the latency and the power beside them.
RUNS, ROUNDS = 5, 20


def trace(job: Job, output: Path, *, runs: int, layers: bool) -> dict[str, Any]:
    """Write a trace, and return what `codl trace --json` holds of it.

    A job without a device has the predicted timeline alone. Raises `CodlError` where something is
    missing or unknown.
    """
    network = job.read_network()
    if not job.device:
        plan = job.plan_of(network, job.context)
        executable = lower(network, plan, job.context.soc, job.context.tuning)
        recording = predict(executable, plan, cost_of(network, plan, job.context))
        written = write_trace(recording, output, network, job.described, job.reporter)
        return {"latency_ms": None, **written}
    with job.connected() as context:
        plan = job.plan_of(network, context)
        cost = context.default_cost(network)
        job.reporter.stage(f"Loading {network.name}, and profiling it {runs} times")
        with Engine(network, plan, context.device, context.tuning) as engine:
            done = measure(engine, context.device, random_inputs(network), cost, rounds=ROUNDS)
            power = power_w(done)
            recording = record(
                engine, context.device, cost, runs=runs, layers=layers, power_w=power
            )
        of = digests_of(context, network, plans={network.name: plan})
        origin = recorded(context.device, of, runs=runs, rounds=ROUNDS)
    written = write_trace(recording, output, network, job.described, job.reporter)
    return {"latency_ms": asdict(done.latency_ms), **written, **origin}


def power_w(done: RunReport) -> float | None:
    """The mean of plain runs; None where no sensor tells."""
    return None if done.energy_mj is None else done.energy_mj / done.latency_ms.median


def write_trace(
    recording: Recording, output: Path, network: Network, soc: Soc, reporter: Reporter
) -> dict[str, Any]:
    """Write a trace, and return what is in it."""
    from codl.report.trace import write_trace as write

    strategy = recording.plan.strategy
    title = f"{network.name} by {strategy} on {soc.name}"
    source = soc.source_of_predictions
    written = write(recording, output, title=title, source=source)
    reporter.note(f"Wrote {written.path}; open it in {VIEWER}")
    return {
        "model": network.name,
        "soc": soc.name,
        "strategy": strategy,
        "file": str(written.path),
        "bytes": written.bytes,
        "runs": len(recording.inferences),
        "predicted_ms": max((x.span.end_ms for x in recording.predicted), default=None),
        "source": "measured" if recording.inferences else source,
        "tracks": [track._asdict() for track in written.tracks],
        "flows": written.flows,
        "counters": list(written.counters),
    }
