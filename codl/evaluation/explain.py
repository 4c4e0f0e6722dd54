"""The waterfall of one model by one plan: predicted without a device, measured on one.

What needs no run is defined and computed in `codl.plan.waterfall`. The rest rests on two
kinds of runs of one engine: plain ones, which are timed as a whole, and profiled ones, which tell
what each net, kernel and copy took. The totals, by the names of the terms that end with them:

- `pace`: the predicted walk on a machine as slow as its anchors are now;
- `cpu`: the walk with the profiled times of nets;
- `gpu`: with those of kernels and of copies between storages, too;
- `exchange`: with those of transfers, too, as far as a profile tells them;
- `engine`: profiled runs, from the end of one stage to the end of the next;
- `profiling`: the latency of plain runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir import Dim, Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.lower import lower
from codl.measure import drift
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.price import StageTimes, stage_times, walk
from codl.plan.profile_feedback import ProfiledTimes, paced
from codl.plan.waterfall import ChainTotals, left_whole, predicted_totals, side_by_side_ms
from codl.predict import DEFAULT
from codl.records.results import Latency
from codl.records.waterfall import (
    PREDICTED_TERMS,
    ChainTerms,
    Total,
    WaterfallTerm,
    WholeOp,
    terms_of,
)
from codl.strategies.base import Context
from codl.strategies.device_loop import keep_run

#: Profiled inferences before the timed runs, and as many behind them.
PROFILES = 10
#: Runs before anything is timed, and timed runs in a row: between such turns anchors are looked at.
WARM_UP, TURN = 3, 5


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Where the time goes, in milliseconds; what needs a run is None without one.

    `side_by_side_ms` is both processors side by side without loss if all ops were cut at one ratio.
    `latency_ms` is that of plain runs; its level is the last total. `slowdown` is how many times
    slower each processor was than when the dataset was measured, None where that is not known.
    `whole` are the ops that the plan leaves whole, the one that would save most first.
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
    """By what all plans are explained, whatever they were made with: the default predictor.

    Raises `InvalidFileError` where it is not trained.
    """
    plan.check(network, context.soc.name)
    return covered(context.cost(DEFAULT), network)


def explain_predicted(network: Network, plan: Plan, context: Context) -> Explanation:
    """From the bound to the predicted latency; nothing runs.

    Raises `MismatchError` where the plan is for another model or SoC.
    """
    executable = lower(network, plan, context.soc, context.tuning)
    cost = cost_of(network, plan, context)
    found = _Accounts.of(network, plan, executable, cost).explanation()
    return replace(found, whole=tuple(left_whole(network, plan, cost)))


def explain_measured(engine: Engine, context: Context, *, rounds: int) -> Explanation:
    """From the bound to the measured latency of an engine on the context's target.

    It runs on seeded inputs, `rounds` times to be timed. Raises `DeviceError` where a run fails.
    """
    cost = cost_of(engine.network, engine.plan, context)
    parts = _Accounts.of(engine.network, engine.plan, engine.executable, cost)
    engine.feed(random_inputs(engine.network))
    for _ in range(WARM_UP):
        engine.run()
    profiles = _profiles(engine)
    latency_ms, slower = _timed(engine, context, rounds)
    profiles += _profiles(engine)
    done = parts.with_runs(ProfiledTimes.typical(profiles), latency_ms, slower)
    if context.profiling is not None:
        keep_run(engine, context, latency_ms.level)
    whole = left_whole(engine.network, engine.plan, _profiled_cost(engine, context, cost))
    return replace(done.explanation(), whole=tuple(whole))


def _profiled_cost(engine: Engine, context: Context, cost: CostModel) -> CostModel:
    """The cost model, corrected by the network's profile where it has one."""
    return context.default_cost(engine.network) or cost


def _profiles(engine: Engine) -> list[ProfiledTimes]:
    return [ProfiledTimes.of(engine.executable, engine.profile(1)) for _ in range(PROFILES)]


def _timed(
    engine: Engine, context: Context, rounds: int
) -> tuple[Latency, Mapping[str, float] | None]:
    """The latency of plain runs, and how slow the machine was meanwhile, by its anchors."""
    usual_ms = drift.first_ms(context.dataset)
    effort = Effort(min_rounds=ceil(rounds / TURN), min_seconds=0, warm=min(rounds, TURN))
    anchors = context.tuning if usual_ms else None
    times = context.device.time({"run": engine.loaded}, effort, anchors=anchors)
    if times.failed:
        raise DeviceError(times.failed["run"])
    return times.latency_ms["run"], slowdown(times.anchors, usual_ms)


@dataclass(frozen=True, kw_only=True)
class _Accounts:
    """What an explanation is made of: totals in order, and the times of stages."""

    plan: Plan
    executable: Executable
    cost: CostModel
    side_by_side_ms: float
    totals: tuple[Total, ...]
    times: Sequence[StageTimes]
    measured: Sequence[StageTimes] | None = None
    latency_ms: Latency | None = None
    slowdown: Mapping[str, float] | None = None

    @classmethod
    def of(cls, network: Network, plan: Plan, executable: Executable, cost: CostModel) -> _Accounts:
        """Without runs."""
        return cls(
            plan=plan,
            executable=executable,
            cost=cost,
            side_by_side_ms=side_by_side_ms(network, cost),
            totals=tuple(predicted_totals(network, plan, executable, cost)),
            times=stage_times(executable, cost),
        )

    def with_runs(
        self, profiled: ProfiledTimes, latency_ms: Latency, slower: Mapping[str, float] | None
    ) -> _Accounts:
        """The walk with one measured term after the other, and at last what was measured."""
        steps: dict[str, Callable[[Sequence[StageTimes]], list[StageTimes]]] = {
            **({"pace": partial(paced, slowdown=slower)} if slower else {}),
            "cpu": profiled.with_nets,
            "gpu": profiled.with_kernels,
            "exchange": profiled.with_transfers,
        }
        totals, times = [*self.totals], self.times
        for name, step in steps.items():
            times = step(times)
            totals.append(self._chains.walked(name, walk(self.executable, times)))
        totals.append(self._chains.total("engine", profiled.stages_ms))
        # A plain run is not timed by chains: these share it as they share the profiled runs.
        scale = latency_ms.level / totals[-1].ms
        totals.append(self._chains.total("profiling", [scale * ms for ms in profiled.stages_ms]))
        return replace(
            self, totals=tuple(totals), measured=times, latency_ms=latency_ms, slowdown=slower
        )

    def explanation(self) -> Explanation:
        return Explanation(
            predictor=self.cost.predictors.name,
            bound_ms=self.totals[0].ms,
            side_by_side_ms=self.side_by_side_ms,
            terms=terms_of([(total.name, total.ms) for total in self.totals]),
            predicted_ms=self._predicted.ms,
            chains=tuple(self._explained()),
            latency_ms=self.latency_ms,
            slowdown=self.slowdown,
        )

    def _explained(self) -> Iterator[ChainTerms]:
        works = self._works_ms(self.times)
        measured = self._works_ms(self.measured) if self.measured else None
        last: tuple[tuple[str, ...], Dim, float] = ((), "H", 0.0)
        chains = [(chain.ops, chain.dim, chain.gpu_ratio) for chain in self.plan.chains]
        for at, (ops, dim, ratio) in enumerate([*chains, last]):
            totals = [(total.name, total.chains_ms[at]) for total in self.totals]
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

    @property
    def _predicted(self) -> Total:
        """The last of the totals that need no run."""
        return self.totals[len(PREDICTED_TERMS)]

    @property
    def _chains(self) -> ChainTotals:
        return ChainTotals(self.plan, self.executable)

    def _works_ms(self, times: Sequence[StageTimes]) -> list[Mapping[Processor, float]]:
        """What each processor computes in every chain."""
        sides = [
            self._chains.total(processor, [stage.works_ms[side] for stage in times]).chains_ms
            for side, processor in enumerate(PROCESSORS)
        ]
        return [dict(zip(PROCESSORS, pair, strict=True)) for pair in zip(*sides, strict=True)]
