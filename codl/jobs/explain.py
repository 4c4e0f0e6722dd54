"""Where the time of a plan goes, from the lossless bound of a model to its run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from codl.engine.engine import Engine
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.jobs import options as opt
from codl.jobs.devices import soc_content
from codl.jobs.explanation import Explanation, cost_of, explain_measured, explain_predicted
from codl.jobs.model import ModelJob, digests_of
from codl.jobs.options import Reporter, option, recorded
from codl.jobs.run_report import RunReport, measure
from codl.lower.lowering import lower
from codl.measure.inputs import random_inputs
from codl.report.recording import Recording, predict, record

PredictedOption = Annotated[bool, option("--predicted", help="Run nothing: predictions alone.")]


@dataclass(frozen=True, kw_only=True)
class Explain(ModelJob):
    """Say where the time of a plan goes; a `predicted` explanation ends at the predicted latency.

    Raises `CodlError` where something is missing or unknown.
    """

    predicted: PredictedOption = False
    rounds: Annotated[int, opt.rounds_option("Timed runs.")] = 20

    @property
    def device(self) -> bool:
        return not self.predicted

    def run(self) -> dict[str, Any]:
        """What `codl explain --json` holds."""
        network = self.load()
        if self.predicted:
            plan = self.plan_of(network, self.context)
            explained = explain_predicted(network, plan, self.context)
            return explained_result(self, network, plan, explained)
        with self.connected() as context:
            plan = self.plan_of(network, context)
            self.reporter.stage(f"Loading {network.name}, and measuring it {self.rounds} times")
            with Engine(network, plan, context.device, context.tuning) as engine:
                explained = explain_measured(engine, context, rounds=self.rounds)
            of = digests_of(context, network, plans={network.name: plan})
            origin = recorded(context.device, of, rounds=self.rounds)
        return {**explained_result(self, network, plan, explained), **origin}


def explained_result(
    job: Explain, network: Network, plan: Plan, explained: Explanation
) -> dict[str, Any]:
    soc = job.described
    return {
        "model": network.name,
        "soc": soc_content(soc),
        "batch": job.batch,
        "strategy": plan.strategy,
        **asdict(explained),
        "measured_ms": explained.measured_ms,
        "source": soc.source_of_predictions if explained.measured_ms is None else "measured",
        "not_counted": plan.not_counted,
        "estimated": plan.estimated,
    }


#: Where to look at a trace.
VIEWER = "https://ui.perfetto.dev"
#: Profiled inferences, and plain runs for the latency and the power beside them.
RUNS, ROUNDS = 5, 20


@dataclass(frozen=True, kw_only=True)
class Trace(ModelJob):
    """Write what both processors do when, as a trace for Perfetto.

    A `predicted` trace has the predicted timeline alone. Raises `CodlError` where something is
    missing or unknown.
    """

    output: Annotated[
        Path, option("-o", "--output", help="The trace.", read=opt.writable_as(opt.TRACE))
    ] = Path(f"trace{opt.TRACE}")
    predicted: PredictedOption = False
    runs: Annotated[
        int, option("--runs", least=1, most=opt.MOST_ROUNDS, help="Profiled inferences.")
    ] = RUNS
    layers: Annotated[
        bool,
        option("--layers", help="Show the layers in nets of the CPU, which then run one by one."),
    ] = False

    @property
    def device(self) -> bool:
        return not self.predicted

    def run(self) -> dict[str, Any]:
        """What `codl trace --json` holds: load, plan, compile, run and write."""
        network = self.load()
        if self.predicted:
            plan = self.plan_of(network, self.context)
            executable = lower(network, plan, self.context.soc, self.context.tuning)
            recording = predict(executable, plan, cost_of(network, plan, self.context))
            written = write_trace(recording, self.output, network, self.described, self.reporter)
            return {"latency_ms": None, **written}
        with self.connected() as context:
            plan = self.plan_of(network, context)
            cost = context.default_cost(network)
            self.reporter.stage(f"Loading {network.name}, and profiling it {self.runs} times")
            with Engine(network, plan, context.device, context.tuning) as engine:
                inputs = random_inputs(network)
                done = measure(engine, context.device, inputs, cost, rounds=ROUNDS)
                recording = record(
                    engine,
                    context.device,
                    cost,
                    runs=self.runs,
                    layers=self.layers,
                    power_w=power_w(done),
                )
            of = digests_of(context, network, plans={network.name: plan})
            origin = recorded(context.device, of, runs=self.runs, rounds=ROUNDS)
        written = write_trace(recording, self.output, network, self.described, self.reporter)
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
    path = write(recording, output, title=title, source=source)
    reporter.note(f"Wrote {path}; open it in {VIEWER}")
    return {
        "model": network.name,
        "soc": soc.name,
        "strategy": strategy,
        "file": str(path),
        "bytes": path.stat().st_size,
        "runs": len(recording.inferences),
        "predicted_ms": max((x.span.end_ms for x in recording.predicted), default=None),
        "source": "measured" if recording.inferences else source,
    }
