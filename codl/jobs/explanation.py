"""The waterfall of one model by one plan: predicted without a device, measured on one.

`codl.plan.waterfall` computes the terms that need no run. The other terms need plain runs, timed as
a whole, and profiled runs, which time each net, kernel and copy. Totals, by their last term:

- `pace`: the predicted walk on a machine as slow as its anchors are now;
- `cpu`: the walk with the profiled times of nets;
- `gpu`: also with the profiled times of kernels and of copies between storages;
- `exchange`: also with the profiled times of transfers, where a profile has them;
- `engine`: profiled runs, from the end of one stage to the end of the next;
- `profiling`: the latency of plain runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir import Dim, Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.records.results import Latency
from codl.ir.records.waterfall import (
    PREDICTED_TERMS,
    ChainTerms,
    Total,
    WaterfallTerm,
    WholeOp,
    terms_of,
)
from codl.ir.types import PROCESSORS, Processor
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
    accounts = _Accounts(network, plan, executable, cost)
    return accounts.explanation([*left_whole(network, plan, cost)])


def explain_measured(engine: Engine, context: Context, *, rounds: int) -> Explanation:
    """Explain an engine's plan from the bound to its latency, measured on the context's target.

    Inputs are seeded; `rounds` runs are timed. Raises `DeviceError` where a run fails.
    """
    cost = cost_of(engine.network, engine.plan, context)
    accounts = _Accounts(engine.network, engine.plan, engine.executable, cost)
    engine.feed(random_inputs(engine.network))
    for _ in range(WARM_UP):
        engine.run()
    profiles = _profiles(engine)
    latency_ms, slower = _timed(engine, context, rounds)
    profiles += _profiles(engine)
    accounts.add_runs(ProfiledTimes.typical(profiles), latency_ms, slower)
    if context.profiling is not None:
        keep_run(engine, context, latency_ms.level)
    profiled_cost = context.default_cost(engine.network) or cost
    return accounts.explanation([*left_whole(engine.network, engine.plan, profiled_cost)])


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


class _Accounts:
    """The parts of an explanation: totals in order, and the times of stages."""

    def __init__(
        self, network: Network, plan: Plan, executable: Executable, cost: CostModel
    ) -> None:
        self._plan, self._executable, self._cost = plan, executable, cost
        self._chains = ChainTotals(plan, executable)
        self._side_by_side_ms = side_by_side_ms(network, cost)
        self._totals: list[Total] = [*predicted_totals(network, plan, executable, cost)]
        #: The last total that needs no run.
        self._predicted = self._totals[len(PREDICTED_TERMS)]
        self._times: Sequence[StageTimes] = stage_times(executable, cost)
        self._measured: Sequence[StageTimes] | None = None
        self._latency_ms: Latency | None = None
        self._slowdown: Mapping[str, float] | None = None

    def add_runs(
        self, profiled: ProfiledTimes, latency_ms: Latency, slower: Mapping[str, float] | None
    ) -> None:
        """Add totals with one measured term after the other, up to the measured latency."""
        steps: dict[str, Callable[[Sequence[StageTimes]], list[StageTimes]]] = {
            **({"pace": partial(paced, slowdown=slower)} if slower else {}),
            "cpu": lambda times: profiled.put_in(times, "nets_ms"),
            "gpu": lambda times: profiled.put_in(times, "kernels_ms"),
            "exchange": lambda times: profiled.put_in(times, "transfers_ms"),
        }
        times = self._times
        for name, step in steps.items():
            times = step(times)
            self._totals.append(self._chains.walked(name, walk(self._executable, times)))
        self._totals.append(self._chains.total("engine", profiled.stages_ms))
        # Plain runs have no times by chain; chains share them as in the profiled runs.
        scale = latency_ms.level / self._totals[-1].ms
        plain_ms = [scale * ms for ms in profiled.stages_ms]
        self._totals.append(self._chains.total("profiling", plain_ms))
        self._measured, self._latency_ms, self._slowdown = times, latency_ms, slower

    def explanation(self, whole: Sequence[WholeOp]) -> Explanation:
        return Explanation(
            predictor=self._cost.predictors.name,
            bound_ms=self._totals[0].ms,
            side_by_side_ms=self._side_by_side_ms,
            terms=terms_of([(total.name, total.ms) for total in self._totals]),
            predicted_ms=self._predicted.ms,
            chains=tuple(self._explained()),
            latency_ms=self._latency_ms,
            slowdown=self._slowdown,
            whole=tuple(whole),
        )

    def _explained(self) -> Iterator[ChainTerms]:
        works = self._works_ms(self._times)
        measured = self._works_ms(self._measured) if self._measured else None
        last: tuple[tuple[str, ...], Dim, float] = ((), "H", 0.0)
        chains = [(chain.ops, chain.dim, chain.gpu_ratio) for chain in self._plan.chains]
        for at, (ops, dim, ratio) in enumerate([*chains, last]):
            totals = [(total.name, total.chains_ms[at]) for total in self._totals]
            yield ChainTerms(
                ops=ops,
                dim=dim,
                gpu_ratio=ratio,
                bound_ms=totals[0][1],
                terms=terms_of(totals),
                predicted_ms=self._predicted.chains_ms[at],
                measured_ms=totals[-1][1] if measured else None,
                work_ms=works[at],
                measured_work_ms=measured[at] if measured else None,
            )

    def _works_ms(self, times: Sequence[StageTimes]) -> list[Mapping[Processor, float]]:
        """Milliseconds that each processor computes in each chain."""
        sides = [
            self._chains.total(processor, [stage.works_ms[side] for stage in times]).chains_ms
            for side, processor in enumerate(PROCESSORS)
        ]
        return [dict(zip(PROCESSORS, pair, strict=True)) for pair in zip(*sides, strict=True)]
