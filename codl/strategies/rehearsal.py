"""Rehearsal: plans of a network run on its device before one is chosen, and their profile is kept.

Each processor alone runs first; its parts are timed where they run, and correct predictions
(`codl.plan.corrections`). The search then finds a plan, which runs too, and its parts correct what
singles do not show: parts at other ratios, and what both processors do to each other. Plans are
compared in turns, one processor alone among them, so that a split which does not pay is not taken.

What was measured is a file (`codl.records.profile`), from which the next search begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.lower import lower
from codl.measure import drift
from codl.measure.budget import Budget
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort, TimedTogether
from codl.plan.build_plan import cpu_plans, one_processor
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.cpu_libraries import in_each_library
from codl.plan.price import price
from codl.plan.profile_feedback import Totals
from codl.plan.search import search
from codl.predict import DEFAULT
from codl.records.profile import NetworkProfile, PlanRun
from codl.records.results import TimeSpan, doubts
from codl.records.statistic import nearest
from codl.runtime.loaded import totals_ms
from codl.strategies.base import Context

#: Profiled runs of a plan, with and without the layers of nets: at least, and at most.
LEAST_PROFILED, PROFILED = 2, 7
#: Seconds in which a plan is profiled, and in which plans are compared, where runs are short.
PROFILE_S, COMPARE_S = 0.4, 0.8
#: Runs before a plan is profiled: the first ones allocate and fault pages in.
WARM_UP = 2
#: Two processors must take less than this part of what one takes alone: other programs hit a plan
#: on both more often, and a gain smaller than that is not worth a second processor.
WORTH = 0.97
#: A layer is not shorter than this part of what was noted, whatever noting takes.
LEAST_PART = 0.3
#: A processor whose anchors are so many times slower than in the dataset is busy with others' work.
BUSY = 1.25
#: Of the seconds, the part behind which the CPU runs in no other library.
SPARE = 0.3


def rehearsed(
    network: Network,
    context: Context,
    *,
    strategy: str,
    rounds: int,
    seconds: float,
    further: int = 0,
    processors: Sequence[Processor] = PROCESSORS,
) -> Plan:
    """The plan that is fastest of those that ran: each processor alone, and up to `rounds` others.

    `further` ones run where the last was the fastest of all. The CPU runs in each of its libraries
    that there is time for. Without rounds it is one of `processors` alone; those of a profile that
    was kept count. None begins behind `seconds`, or would end there if it took as long as the last.
    Ctrl-C takes the best so far. Raises `CodlError` where a plan does not run.
    """
    profiles = context.profiling
    assert profiles is not None
    cost = covered(context.cost(DEFAULT), network)
    wanted = profiles.wanted(network, context.soc, context.tuning.fingerprint, context.device)
    profile = profiles.read(wanted, context.note) or wanted
    budget = Budget(seconds, context.clock)
    in_library = cpu_plans(network, cost, strategy=strategy) if "cpu" in processors else []
    singles = in_library[:1]
    if "gpu" in processors:
        singles.append(one_processor(network, cost, "gpu", strategy=strategy))
    with Rehearsal(network, cost, context, profile) as rehearsal:
        with budget.keeping(rehearsal):
            rehearsal.begin(singles, in_library[1:], lambda: budget.spent_s < SPARE * seconds)
            round_s = 0.0
            while rehearsal.profile.rounds < rounds + further * rehearsal.gained:
                begin_s = budget.spent_s
                if begin_s + round_s > seconds or not rehearsal.run_next(strategy):
                    break
                round_s = budget.spent_s - begin_s
        if budget.ended == "interrupted":
            context.note("Interrupted: the best plan so far is taken.")
        profiles.remember(rehearsal.profile)
        if rehearsal.busy:
            context.note(
                f"{network.name}: its profile is not kept. The device seems busy: {rehearsal.busy}."
            )
        elif rehearsal.has_run:
            context.note(f"Wrote {rehearsal.profile.save(profiles.path(rehearsal.profile))}")
        return rehearsal.best([*singles, *in_library[1:]], alone=not rounds)


@dataclass
class Rehearsal:
    """Plans of a network that are loaded on a device, and the profile that they add to.

    `busy` says why the device seems to be busy with something else.
    """

    network: Network
    cost: CostModel
    context: Context
    profile: NetworkProfile
    busy: str = ""
    has_run: bool = False
    _engines: dict[str, Engine] = field(default_factory=dict)
    #: About how many seconds a run of each takes.
    _run_s: dict[str, float] = field(default_factory=dict)
    #: Of which profile predictions were corrected last, and how.
    _corrected: tuple[NetworkProfile, CostModel] | None = None

    def __enter__(self) -> Rehearsal:
        return self

    def __exit__(self, *error: object) -> None:
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def __len__(self) -> int:
        """The plans that ran."""
        return len(self.profile.runs)

    @property
    def corrected(self) -> CostModel:
        """Predictions with what is known so far."""
        profile, cost = self._corrected or (None, self.cost)
        if profile is not self.profile:
            cost = self.context.corrected(self.cost, self.network, self.profile)
            self._corrected = self.profile, cost
        return cost

    @property
    def gained(self) -> bool:
        """Whether the plan that ran last is the fastest."""
        runs = self.profile.runs
        return bool(runs) and runs[-1] is min(runs, key=lambda run: run.latency_ms)

    def begin(
        self, singles: Sequence[Plan], others: Sequence[Plan], has_time: Callable[[], bool]
    ) -> None:
        """Profile each processor alone, unless the profile has that; `others` while there is time.

        Anchors tell whether the device is busy.
        """
        missing = [plan for plan in singles if self.profile.run_of(plan) is None]
        if not missing:
            return
        self.context.note(f"{self.network.name}: profiling each processor alone")
        usual_ms = drift.first_ms(self.context.dataset)
        rival = min(self.profile.runs, key=lambda run: run.latency_ms, default=None)
        observed = [self._observed(plan) for plan in missing]
        for plan in others if rival is None else ():
            if has_time():
                missing.append(plan)
                observed.append(self._observed(plan))
        beside = [] if rival is None else [rival.plan]
        times = self._timed([*missing, *beside], anchors=bool(usual_ms))
        # As of the pace at which others ran.
        pace = 1.0 if rival is None else rival.latency_ms / _level(times, rival.plan)
        slower = slowdown(times.anchors, usual_ms) or {}
        reasons = [
            f"anchors of the {side} take {factor:.2f} times as long as in the dataset"
            for side, factor in slower.items()
            if side in PROCESSORS and factor > BUSY
        ]
        runs = []
        for plan, parts in zip(missing, observed, strict=True):
            latency = times.latency_ms[plan.fingerprint]
            reasons += doubts(latency)
            runs.append(parts.run(plan, pace * latency.level))
        self.busy, self.has_run = "; ".join(reasons), True
        self.profile = replace(
            self.profile.with_runs(*runs), slowdown=self.profile.slowdown or slower
        )

    def run_next(self, strategy: str) -> bool:
        """Run the plan that is best by what is known now; False where it is among those that ran.

        It is compared with the fastest so far in turns.
        """
        plan = self._searched(strategy)
        if self.profile.run_of(plan) is not None:
            return False
        rival = min(self.profile.runs, key=lambda run: run.latency_ms)
        parts = self._observed(plan)
        times = self._timed([plan, rival.plan])
        new_ms, usual_ms = _level(times, plan), _level(times, rival.plan)
        # As of the pace at which the singles ran.
        pace = rival.latency_ms / usual_ms
        ran = self.profile.with_runs(parts.run(plan, pace * new_ms))
        self.profile = replace(ran, rounds=ran.rounds + 1)
        self.has_run = True
        split = sum(0 < chain.gpu_ratio < 1 for chain in plan.chains)
        self.context.note(
            f"{self.network.name}: {len(plan.chains)} chains, {split} of them split, take "
            f"{new_ms:.2f} ms, the best before {usual_ms:.2f} ms"
        )
        return True

    def _searched(self, strategy: str) -> Plan:
        """The best plan by what is known now, whichever library the CPU's shards are in.

        The library that is best for a whole network need not be the best for parts of it, of which
        each is a net with a call, and with packing at its ends.
        """
        method = self.context.method
        costs = in_each_library(self.network, self.corrected)
        plans = [search(self.network, cost, strategy, method=method) for cost in costs]
        return min(plans, key=lambda plan: plan.predicted_ms or inf)

    def best(self, singles: Sequence[Plan], *, alone: bool) -> Plan:
        """The fastest; one on both processors only where that is worth it, and not `alone`."""
        names = {plan.fingerprint for plan in singles}
        runs = sorted(self.profile.runs, key=lambda run: run.latency_ms)
        best = next(run for run in runs if run.plan.fingerprint in names)
        if not alone and runs[0].latency_ms < WORTH * best.latency_ms:
            best = runs[0]
        executable = lower(self.network, best.plan, self.context.local, self.context.tuning)
        method = best.plan.method or "one processor"
        return replace(
            best.plan,
            strategy=singles[0].strategy,
            predicted_ms=price(executable, self.corrected).latency_ms,
            method=f"{method}, the fastest of {len(runs)} that ran",
        )

    def _engine(self, plan: Plan) -> Engine:
        if plan.fingerprint not in self._engines:
            engine = Engine(self.network, plan, self.context.device, self.context.tuning)
            self._engines[plan.fingerprint] = engine
            engine.feed(random_inputs(self.network))
        return self._engines[plan.fingerprint]

    def _observed(self, plan: Plan) -> ObservedParts:
        clock, engine = self.context.clock, self._engine(plan)
        taken_s = 0.0
        for _ in range(WARM_UP):
            begin = clock()
            engine.run()
            taken_s = clock() - begin
        self._run_s[plan.fingerprint] = taken_s
        runs = int(PROFILE_S / max(2 * taken_s, 1e-9))
        return ObservedParts.of(engine, max(LEAST_PROFILED, min(PROFILED, runs)))

    def _timed(self, plans: Sequence[Plan], *, anchors: bool = False) -> TimedTogether:
        models = {plan.fingerprint: self._engine(plan).loaded for plan in plans}
        turn_s = sum(self._run_s.get(plan.fingerprint, 0.0) for plan in plans)
        warm = max(1, min(3, int(COMPARE_S / max(turn_s, 1e-9))))
        effort = Effort(min_rounds=3, min_seconds=COMPARE_S, warm=warm, max_seconds=2 * COMPARE_S)
        tuning = self.context.tuning if anchors else None
        times = self.context.device.time(models, effort, anchors=tuning)
        for reason in times.failed.values():
            raise DeviceError(reason)
        return times


def _level(times: TimedTogether, plan: Plan) -> float:
    return times.latency_ms[plan.fingerprint].level


def keep_run(engine: Engine, context: Context, latency_ms: float) -> None:
    """Add what an engine takes that has run to the profile of its network, for the next plan.

    Of a plan that ran in turns with others the latency stays the one of then.
    """
    profiles, network = context.profiling, engine.network
    if profiles is None:
        return
    wanted = profiles.wanted(network, context.soc, context.tuning.fingerprint, context.device)
    profile = profiles.read(wanted, context.note) or wanted
    before = profile.run_of(engine.plan)
    level_ms = latency_ms if before is None else before.latency_ms
    profile = profile.with_runs(ObservedParts.of(engine, PROFILED).run(engine.plan, level_ms))
    # One more plan may come of it.
    profile = replace(profile, rounds=max(0, profile.rounds - 1))
    profiles.remember(profile)
    context.note(f"Wrote {profile.save(profiles.path(profile))}")


@dataclass(frozen=True)
class ObservedParts:
    """Milliseconds of the parts of an executable, in profiled runs that take `length_ms`."""

    executable: str
    totals: Totals
    length_ms: float

    @classmethod
    def of(cls, engine: Engine, runs: int) -> ObservedParts:
        """Of an engine that is fed and warm; layers of nets are noted in runs of their own."""
        plain, noted = [], []
        for _ in range(runs):
            plain.append(engine.profile(1))
            noted.append(engine.profile(1, layers=True))
        totals = _typical(plain)
        layers = {key: ms for key, ms in _typical(noted).items() if key[0] == "layer"}
        for net in engine.executable.nets:
            names = [("layer", layer.name) for layer in net.layers]
            if all(name in layers for name in names):
                whole_ms = totals["net", net.label]
                totals |= _fitted({name: layers[name] for name in names}, whole_ms)
        return cls(engine.executable.digest(weights=False), totals, _length_ms(plain))

    def run(self, plan: Plan, latency_ms: float) -> PlanRun:
        """With what a plain run takes: where profiled runs are longer, all of their parts are."""
        pace = latency_ms / self.length_ms
        parts: dict[str, dict[str, float]] = {}
        for (kind, label), ms in self.totals.items():
            parts.setdefault(kind, {})[label] = pace * ms
        return PlanRun(plan=plan, executable=self.executable, latency_ms=latency_ms, parts_ms=parts)


def _length(spans: Sequence[TimeSpan]) -> float:
    return max(span.end_ms for span in spans)


def _length_ms(profiles: Sequence[Sequence[TimeSpan]]) -> float:
    return fmean(map(_length, nearest(profiles, _length)))


def _typical(profiles: Sequence[Sequence[TimeSpan]]) -> dict[tuple[str, str], float]:
    """Milliseconds by kind and label, in the mean of the profiles that count."""
    near = [totals_ms(spans) for spans in nearest(profiles, _length)]
    return {key: fmean(totals.get(key, 0.0) for totals in near) for key in near[0]}


def _fitted(
    layers: Mapping[tuple[str, str], float], whole_ms: float
) -> dict[tuple[str, str], float]:
    """Layers of a net that takes so long where they are not noted: each takes as long to note."""
    noting_ms = (sum(layers.values()) - whole_ms) / len(layers)
    less = {key: max(LEAST_PART * ms, ms - max(0.0, noting_ms)) for key, ms in layers.items()}
    scale = whole_ms / sum(less.values())
    return {key: scale * ms for key, ms in less.items()}
