"""Where the time of a plan goes, from the lossless bound of a model to its run.

A waterfall needs the executable and a cost model alone; with an engine it goes on to the measured
latency. docs/concepts/explain.md defines the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir import Dim, Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.records.results import Latency
from codl.ir.records.waterfall import PREDICTED_TERMS, ChainTerms, WaterfallTerm, WholeOp, terms_of
from codl.ir.types import PROCESSORS, Processor
from codl.jobs import options as opt
from codl.jobs.devices import soc_content
from codl.jobs.model import ModelJob, digests_of
from codl.jobs.options import option, recorded
from codl.jobs.run import measure
from codl.lower.lowering import lower
from codl.measure import drift
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.price import ProfiledTimes, StageTimes, paced, stage_times, walk
from codl.plan.strategies.base import Context
from codl.plan.strategies.device_loop import keep_run
from codl.plan.waterfall import ChainTotals, left_whole, predicted_totals, side_by_side_ms
from codl.predict import DEFAULT
from codl.report.recording import Recording, predict, record

#: Profiled inferences before the timed runs, and again after them.
PROFILES = 10
#: Untimed first runs, and timed runs per turn; anchors are measured between turns.
WARM_UP, TURN = 3, 5


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The waterfall of a plan in milliseconds; measured fields are None without a run.

    `side_by_side_ms` is the latency of both processors without loss, all ops cut at one ratio.
    `latency_ms` is of plain runs; its level is the last total. `slowdown` is the slowdown of each
    processor since the dataset was measured, None if unknown. `whole` are ops that the plan does
    not split, the largest saving first.
    """

    predictor: str
    bound_ms: float
    side_by_side_ms: float
    terms: tuple[WaterfallTerm, ...]
    predicted_ms: float
    chains: tuple[ChainTerms, ...]
    latency_ms: Latency | None = None
    slowdown: Mapping[str, float] | None = None
    whole: tuple[WholeOp, ...] = ()

    @property
    def measured_ms(self) -> float | None:
        return self.latency_ms.level if self.latency_ms else None


def cost_of(network: Network, plan: Plan, context: Context) -> CostModel:
    """The default predictor's cost model; raises `InvalidFileError` where it is not trained."""
    plan.check(network, context.soc.name)
    return covered(context.cost(DEFAULT), network)


def explain_predicted(network: Network, plan: Plan, context: Context) -> Explanation:
    """Explain a plan from the bound to the predicted latency, without running it.

    Raises `MismatchError` where the plan is for another model or SoC.
    """
    executable = lower(network, plan, context.soc, context.tuning)
    cost = cost_of(network, plan, context)
    return _explained(network, plan, executable, cost, left_whole(network, plan, cost))


def explain_measured(engine: Engine, context: Context, *, rounds: int) -> Explanation:
    """Explain an engine's plan from the bound to its latency, measured on the context's target.

    Inputs are seeded; `rounds` runs are timed. Raises `DeviceError` where a run fails.
    """
    cost = cost_of(engine.network, engine.plan, context)
    engine.feed(random_inputs(engine.network))
    for _ in range(WARM_UP):
        engine.run()
    profiles = _profiles(engine)
    latency_ms, slower = _timed(engine, context, rounds)
    profiles += _profiles(engine)
    if context.profiling is not None:
        keep_run(engine, context, latency_ms.level)
    profiled_cost = context.default_cost(engine.network) or cost
    return _explained(
        engine.network,
        engine.plan,
        engine.executable,
        cost,
        left_whole(engine.network, engine.plan, profiled_cost),
        _Runs(ProfiledTimes.typical(profiles), latency_ms, slower),
    )


def _profiles(engine: Engine) -> list[ProfiledTimes]:
    return [ProfiledTimes.of(engine.executable, engine.profile(1)) for _ in range(PROFILES)]


def _timed(
    engine: Engine, context: Context, rounds: int
) -> tuple[Latency, Mapping[str, float] | None]:
    """Latency of plain runs, and the slowdown of each processor by its anchors."""
    usual_ms = drift.first_ms(context.dataset)
    effort = Effort(min_rounds=ceil(rounds / TURN), min_seconds=0, warm=min(rounds, TURN))
    anchors = context.tuning if usual_ms else None
    times = context.device.time({"run": engine.loaded}, effort, anchors=anchors)
    if times.failed:
        raise DeviceError(times.failed["run"])
    return times.latency_ms["run"], slowdown(times.anchors, usual_ms)


@dataclass(frozen=True)
class _Runs:
    """What runs of a plan measured: times by stage, plain latency, and slowdown by processor."""

    profiled: ProfiledTimes
    latency_ms: Latency
    slowdown: Mapping[str, float] | None


def _explained(
    network: Network,
    plan: Plan,
    executable: Executable,
    cost: CostModel,
    whole: Iterable[WholeOp],
    runs: _Runs | None = None,
) -> Explanation:
    """The totals in order, with `runs` up to the measured latency, and the terms between them."""
    chains = ChainTotals(plan, executable)
    totals = [*predicted_totals(network, plan, executable, cost)]
    predicted = totals[len(PREDICTED_TERMS)]  # the last total that needs no run
    times: Sequence[StageTimes] = stage_times(executable, cost)
    works, measured = _works_ms(chains, times), None
    if runs:
        steps: dict[str, Callable[[Sequence[StageTimes]], list[StageTimes]]] = {
            **({"pace": partial(paced, slowdown=runs.slowdown)} if runs.slowdown else {}),
            "cpu": lambda times: runs.profiled.put_in(times, "nets_ms"),
            "gpu": lambda times: runs.profiled.put_in(times, "kernels_ms"),
            "exchange": lambda times: runs.profiled.put_in(times, "transfers_ms"),
        }
        for name, step in steps.items():
            times = step(times)
            totals.append(chains.walked(name, walk(executable, times)))
        totals.append(chains.total("engine", runs.profiled.stages_ms))
        # Plain runs have no times by chain; chains share them as in the profiled runs.
        scale = runs.latency_ms.level / totals[-1].ms
        totals.append(chains.total("profiling", [scale * ms for ms in runs.profiled.stages_ms]))
        measured = _works_ms(chains, times)
    terms = []
    last: tuple[tuple[str, ...], Dim, float] = ((), "H", 0.0)
    for at, (ops, dim, ratio) in enumerate(
        [*((chain.ops, chain.dim, chain.gpu_ratio) for chain in plan.chains), last]
    ):
        steps_ms = [(total.name, total.chains_ms[at]) for total in totals]
        terms.append(
            ChainTerms(
                ops=ops,
                dim=dim,
                gpu_ratio=ratio,
                bound_ms=steps_ms[0][1],
                terms=terms_of(steps_ms),
                predicted_ms=predicted.chains_ms[at],
                measured_ms=steps_ms[-1][1] if measured else None,
                work_ms=works[at],
                measured_work_ms=measured[at] if measured else None,
            )
        )
    return Explanation(
        predictor=cost.predictors.name,
        bound_ms=totals[0].ms,
        side_by_side_ms=side_by_side_ms(network, cost),
        terms=terms_of([(total.name, total.ms) for total in totals]),
        predicted_ms=predicted.ms,
        chains=tuple(terms),
        latency_ms=runs.latency_ms if runs else None,
        slowdown=runs.slowdown if runs else None,
        whole=tuple(whole),
    )


def _works_ms(chains: ChainTotals, times: Sequence[StageTimes]) -> list[Mapping[Processor, float]]:
    """Milliseconds that each processor computes in each chain."""
    sides = [
        chains.total(processor, [stage.works_ms[side] for stage in times]).chains_ms
        for side, processor in enumerate(PROCESSORS)
    ]
    return [dict(zip(PROCESSORS, pair, strict=True)) for pair in zip(*sides, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _ExplainJob(ModelJob):
    predicted: Annotated[bool, option("--predicted", help="Run nothing: predictions alone.")] = (
        False
    )

    @property
    def device(self) -> bool:
        return not self.predicted


@dataclass(frozen=True, kw_only=True)
class Explain(_ExplainJob):
    """Say where the time of a plan goes; a `predicted` explanation ends at the predicted latency.

    Raises `CodlError` where something is missing or unknown.
    """

    rounds: Annotated[int, opt.rounds_option("Timed runs.")] = 20

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
class Trace(_ExplainJob):
    """Write what both processors do when, as a trace for Perfetto.

    A `predicted` trace has the predicted timeline alone. Raises `CodlError` where something is
    missing or unknown.
    """

    output: Annotated[
        Path, option("-o", "--output", help="The trace.", read=opt.writable_as(opt.TRACE))
    ] = Path(f"trace{opt.TRACE}")
    runs: Annotated[
        int, option("--runs", least=1, most=opt.MOST_ROUNDS, help="Profiled inferences.")
    ] = RUNS
    layers: Annotated[
        bool,
        option("--layers", help="Show the layers in nets of the CPU, which then run one by one."),
    ] = False

    def run(self) -> dict[str, Any]:
        """What `codl trace --json` holds: load, plan, compile, run and write."""
        network = self.load()
        if self.predicted:
            plan = self.plan_of(network, self.context)
            executable = lower(network, plan, self.context.soc, self.context.tuning)
            recording = predict(executable, plan, cost_of(network, plan, self.context))
            return {"latency_ms": None, **self._written(network, recording)}
        with self.connected() as context:
            plan = self.plan_of(network, context)
            cost = context.default_cost(network)
            self.reporter.stage(f"Loading {network.name}, and profiling it {self.runs} times")
            with Engine(network, plan, context.device, context.tuning) as engine:
                inputs = random_inputs(network)
                done = measure(engine, context.device, inputs, cost, rounds=ROUNDS)
                energy_mj = done.energy_mj  # per inference, None where no sensor tells
                recording = record(
                    engine,
                    context.device,
                    cost,
                    runs=self.runs,
                    layers=self.layers,
                    power_w=None if energy_mj is None else energy_mj / done.latency_ms.median,
                )
            of = digests_of(context, network, plans={network.name: plan})
            origin = recorded(context.device, of, runs=self.runs, rounds=ROUNDS)
        written = self._written(network, recording)
        return {"latency_ms": asdict(done.latency_ms), **written, **origin}

    def _written(self, network: Network, recording: Recording) -> dict[str, Any]:
        """Write the trace, and return what is in it."""
        from codl.report.trace import write_trace

        soc, strategy = self.described, recording.plan.strategy
        title = f"{network.name} by {strategy} on {soc.name}"
        source = soc.source_of_predictions
        path = write_trace(recording, self.output, title=title, source=source)
        self.reporter.note(f"Wrote {path}; open it in {VIEWER}")
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
