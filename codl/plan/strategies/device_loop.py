"""Planning loop on a device: propose a plan, run it, measure its parts, improve it, run again.

The first plan comes from predictions. It runs beside each processor alone and the plans of the
baselines. Then each round runs the next proposal of `Improver` in turns with the fastest
plan so far. Effort is counted in rounds and runs, so a slow device has as many as a fast one. The
measurements are kept in a file (`codl.ir.records.profile`), from which the next search starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from statistics import fmean

from codl.engine.engine import Engine
from codl.errors import CodlError, DeviceError, InvalidFileError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records.profile import PlanRun
from codl.ir.records.results import TimeSpan, doubts
from codl.ir.records.statistic import nearest
from codl.ir.types import PROCESSORS
from codl.machine.threads import one_blas_thread
from codl.measure import drift
from codl.measure.budget import Budget
from codl.measure.drift import slowdown
from codl.measure.inputs import random_inputs
from codl.measure.timing import Effort, TimedTogether
from codl.plan.corrections import Improver
from codl.plan.coverage import covered
from codl.plan.predicted_plan import cpu_plans, one_processor
from codl.plan.price import Totals
from codl.plan.strategies.base import STRATEGIES, Context
from codl.predict import DEFAULT
from codl.runtime.loaded import totals_ms

#: The least number of rounds, and the most without a planning time.
LEAST_ROUNDS, MOST_ROUNDS = 3, 8
#: Planning continues while one of the last two rounds gained this part of the best latency.
GAIN = 0.01
#: The least and the most profiled runs of a plan, each with and without the layers of nets.
LEAST_PROFILED, PROFILED = 1, 7
#: Seconds to profile a plan, and to compare plans; long runs are measured by the least number.
PROFILE_S, COMPARE_S = 0.3, 0.5
#: The least number of turns of compared plans.
LEAST_TURNS = 2
#: Runs before a plan is profiled: the first one allocates memory and faults pages in.
WARM_UP = 2
#: A plan on both processors must take less than this part of the better processor's latency: other
#: programs disturb it more often, and a smaller gain is not worth a second processor.
WORTH = 0.97
#: A baseline's plan runs if its prediction is within the first factor of the best latency, and a
#: plan of the CPU in a further library if it is within the second: predictions of whole networks in
#: ONNX Runtime and OpenVINO are up to 1.8 times too high (docs/decisions.md).
PROMISING, PROMISING_ALONE = 1.2, 2.0
#: A plan whose profiled runs take this many times the fastest plan's is not timed in turns.
HOPELESS = 1.5
#: The least part of a layer's noted time that remains after the cost of noting is subtracted.
LEAST_PART = 0.3
#: A processor is busy with other work if its anchors are this many times slower than in the
#: dataset.
BUSY = 1.25
#: A comparison is repeated up to this many times while it is doubtful, or while the fastest plan
#: takes this many times as long as before: other programs slow one processor for seconds.
REPEATS, DISTURBED = 3, 1.1
#: The baselines whose plans are candidates, and the most layers of a network for them.
BASELINES, MOST_LAYERS = ("codl-paper", "mulayer"), 400
#: Planning ends after this many plans failed to run.
MOST_FAILURES = 3


def planned_on_device(network: Network, context: Context, *, strategy: str) -> Plan:
    """The fastest plan that ran on the context's target, also after Ctrl-C.

    Raises `DeviceError` or `UnsupportedError` where no plan runs.
    """
    with one_blas_thread(), DeviceLoop(network, context, strategy) as loop:
        with loop.kept():
            loop.begin()
            loop.improve()
            loop.run(plan for plan in loop.cpu[1:] if loop.is_promising(plan, PROMISING_ALONE))
        return loop.chosen()


def fastest_on_cpu(network: Network, context: Context, *, strategy: str) -> Plan:
    """The plan of the CPU alone in the library that runs fastest on the context's target.

    Raises `DeviceError` or `UnsupportedError` where no plan runs.
    """
    with DeviceLoop(network, context, strategy) as loop:
        with loop.kept():
            loop.run(loop.cpu)
        return loop.chosen(alone=True)


class DeviceLoop:
    """Runs plans of a network on a device, and adds them to its profile, the stored one at first.

    `cpu` are the plans of the CPU alone, the one predicted fastest first; `gpu` is the GPU's plan.
    """

    def __init__(self, network: Network, context: Context, strategy: str) -> None:
        assert context.profiling is not None
        self.network, self.context, self.strategy = network, context, strategy
        self.profiles = context.profiling
        cost = covered(context.cost(DEFAULT), network)
        self.improver = Improver(network, cost, context.local, strategy)
        self.profile = self.profiles.load(network, context)
        self.improver.observe(self.profile.runs)
        self.cpu: Sequence[Plan] = cpu_plans(network, cost, strategy=strategy)
        self.gpu = one_processor(network, cost, "gpu", strategy=strategy)
        self.budget = Budget(context.plan_time_s, context.clock)
        #: Why the device seems busy with other work; empty if it does not.
        self.busy = ""
        self.has_run = False
        self._failed: dict[str, str] = {}
        self._engines: dict[str, Engine] = {}
        #: By plan, approximate seconds of a run.
        self._run_s: dict[str, float] = {}

    def __enter__(self) -> DeviceLoop:
        return self

    def __exit__(self, *error: object) -> None:
        for name in [*self._engines]:
            self._engines.pop(name).close()

    def __len__(self) -> int:
        """The number of plans that ran."""
        return len(self.profile.runs)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context manager that stores the profile at its end, and at Ctrl-C."""
        with self.budget.keeping(self):
            try:
                yield
            except (DeviceError, UnsupportedError) as error:
                if not self.profile.runs:
                    raise
                self.context.note(f"{self.network.name}: planning ends early. {error}")
        if self.budget.ended == "interrupted":
            self.context.note(f"{self.network.name}: interrupted. The best plan so far is taken.")
        self.profiles.remember(self.profile)
        if self.busy:
            self.context.note(
                f"{self.network.name}: its profile is not kept. The device seems busy: {self.busy}."
            )
        elif self.has_run:
            self.context.note(f"Wrote {self.profiles.save(self.profile)}")

    # Running plans.

    def begin(self) -> None:
        """Run the plan predicted fastest, single processors and baselines, unless profiled."""
        first = [] if self.improver.best else [*islice(self.improver.proposals(), 1)]
        self.run([*first, self.gpu, *self.cpu[:1]])
        self.run(plan for plan in self._baselines() if self.is_promising(plan))

    def improve(self) -> None:
        """Run proposals of the improver until rounds gain nothing, or the planning time is over."""
        proposed, gains = self._proposed(), list[float]()
        while not self._is_done(gains) and (plan := next(proposed, None)):
            before = self._best
            self.run([plan])
            self.profile = replace(self.profile, rounds=self.profile.rounds + 1)
            gains.append(1 - self._best.latency_ms / before.latency_ms)

    def _is_done(self, gains: Sequence[float]) -> bool:
        """True once the planning time is over or, without one, once rounds stop gaining."""
        if self.context.plan_time_s is not None:
            return self.budget.is_over()
        rounds = self.profile.rounds
        gained = max(gains[-2:], default=0.0) >= GAIN
        return rounds >= MOST_ROUNDS or (rounds >= LEAST_ROUNDS and not gained)

    def _proposed(self) -> Iterator[Plan]:
        """Proposals of the improver, each made with all measurements so far."""
        while plan := next(self.improver.proposals(self._failed), None):
            yield plan

    def _baselines(self) -> Iterator[Plan]:
        for name in BASELINES:
            if name != self.strategy and len(self.network.layers) <= MOST_LAYERS:
                try:
                    yield STRATEGIES.find(name).plan(self.network, self.context)
                except (InvalidFileError, UnsupportedError):
                    continue  # no trained predictor, or an unsupported op

    def is_promising(self, plan: Plan, factor: float = PROMISING) -> bool:
        """True where a plan is predicted to take less than `factor` times the best latency."""
        return self.improver.predicted_ms(plan) < factor * self._best.latency_ms

    def run(self, plans: Iterable[Plan]) -> None:
        """Profile plans that have not run, and time them in turns with the fastest plan so far.

        Plans that fail are left out. The last of `MOST_FAILURES` raises its `DeviceError` or
        `UnsupportedError`.
        """
        known = {run.plan.fingerprint for run in self.profile.runs} | {*self._failed}
        new = {plan.fingerprint: plan for plan in plans if plan.fingerprint not in known}
        if not new:
            return
        rival = min(self.profile.runs, key=lambda run: run.latency_ms, default=None)
        observed: dict[str, ObservedParts] = {}
        for name, plan in new.items():
            try:
                observed[name] = parts = self._observed(plan)
            except (DeviceError, UnsupportedError) as error:
                self._give_up(plan, error)
                continue
            # Ctrl-C during the comparison then keeps this run.
            self._add([parts.run(plan, parts.length_ms)])
        if not observed:
            return
        lengths = [parts.length_ms for parts in observed.values()]
        limit_ms = HOPELESS * min([*lengths, *([rival.latency_ms] if rival else [])])
        for name in observed:
            self._observe_again(new[name], observed, limit_ms)
        near = {n: new[n] for n, parts in observed.items() if parts.length_ms <= limit_ms}
        if near:
            self._compare(near, observed, rival)
        by_name = {run.plan.fingerprint: run for run in self.profile.runs}
        ran = [by_name[name] for name in observed if name not in self._failed]
        self.improver.observe(ran)
        for run in ran:
            self._note(run, rival)
        if self.profile.runs:
            # Release all engines but one, to save memory.
            for name in self._engines.keys() - {self._best.plan.fingerprint}:
                self._engines.pop(name).close()

    def _compare(
        self,
        plans: Mapping[str, Plan],
        observed: dict[str, ObservedParts],
        rival: PlanRun | None,
    ) -> None:
        """Time plans in turns with the fastest plan so far, and add their latencies."""
        usual_ms = {} if rival else drift.first_ms(self.context.dataset)
        beside = {} if rival is None else {rival.plan.fingerprint: rival.plan}
        levels: dict[str, float] = {}
        for _ in range(REPEATS):
            running = {n: p for n, p in {**plans, **beside}.items() if n not in self._failed}
            times = self._timed(running, anchors=bool(usual_ms))
            for name, reason in times.failed.items():
                if name in beside:
                    raise DeviceError(reason)
                self._give_up(plans[name], DeviceError(reason))
            for name, latency in times.latency_ms.items():
                levels[name] = min(latency.level, levels.get(name, latency.level))
            slower = levels[rival.plan.fingerprint] / rival.latency_ms if rival else 1.0
            reasons = [*chain.from_iterable(map(doubts, times.latency_ms.values()))]
            if slower <= DISTURBED and not reasons:
                break
        if rival is None:
            slowdowns = slowdown(times.anchors, usual_ms) or {}
            anchors = [
                f"anchors of the {side} take {factor:.2f} times as long as in the dataset"
                for side, factor in slowdowns.items()
                if side in PROCESSORS and factor > BUSY
            ]
            self.busy = "; ".join([*anchors, *reasons])
            self.profile = replace(self.profile, slowdown=slowdowns)
        # Scale latencies to the pace at which the fastest plan ran before. A plan that is disturbed
        # on one processor says nothing about the pace of the others.
        pace = 1 / slower if slower <= DISTURBED else 1.0
        done = [name for name in plans if name in levels and name not in self._failed]
        for name in done:
            self._observe_again(plans[name], observed, BUSY * levels[name])
        self._add([observed[name].run(plans[name], pace * levels[name]) for name in done])

    def _observe_again(
        self, plan: Plan, observed: dict[str, ObservedParts], limit_ms: float
    ) -> None:
        """Profile a split plan again that took longer than a limit; keep the shortest profile."""
        parts = observed[plan.fingerprint]
        for _ in range(REPEATS - 1 if plan.is_split else 0):
            if parts.length_ms <= limit_ms:
                break
            parts = min(self._observed(plan), parts, key=lambda each: each.length_ms)
        observed[plan.fingerprint] = parts

    def _add(self, runs: Sequence[PlanRun]) -> None:
        self.has_run = True
        self.profile = self.profile.with_runs(*runs)

    def _give_up(self, plan: Plan, error: CodlError) -> None:
        """Record that a plan does not run; raise `error` after too many failures."""
        self._failed[plan.fingerprint] = str(error)
        self.profile = replace(
            self.profile,
            runs=tuple(r for r in self.profile.runs if r.plan.fingerprint not in self._failed),
        )
        if len(self._failed) == MOST_FAILURES:
            raise error
        self.context.note(f"{self.network.name}: a plan of {plan.strategy} does not run: {error}")

    def _note(self, run: PlanRun, rival: PlanRun | None) -> None:
        """Report the latency of a plan and the best latency so far."""
        split = sum(0 < chain.gpu_ratio < 1 for chain in run.plan.chains)
        sides = sorted({"cpu" if c.gpu_ratio == 0 else "gpu" for c in run.plan.chains})
        what = f"{split} split chains of {len(run.plan.chains)}" if split else " and ".join(sides)
        best = f"; best {self._best.latency_ms:.2f} ms" if rival else ""
        self.context.note(f"{self.network.name}: {what}: {run.latency_ms:.2f} ms{best}")

    # Results.

    @property
    def _best(self) -> PlanRun:
        return min(self.profile.runs, key=lambda run: run.latency_ms)

    def chosen(self, *, alone: bool = False) -> Plan:
        """The fastest plan, both processors only if worth it (`WORTH`); or `alone` on the CPU."""
        runs = sorted(self.profile.runs, key=lambda run: run.latency_ms)
        cpu = {plan.fingerprint for plan in self.cpu}
        single = [run for run in runs if not run.plan.is_split]
        if alone:
            single = [run for run in single if run.plan.fingerprint in cpu]
        best = single[0] if single else runs[0]
        if not alone and runs[0].latency_ms < WORTH * best.latency_ms:
            best = runs[0]
        method = best.plan.method or "one processor"
        return replace(
            best.plan,
            strategy=self.strategy,
            predicted_ms=self.improver.predicted_ms(best.plan),
            method=f"{method}, the fastest of {len(runs)} that ran",
        )

    # Engines.

    def _engine(self, plan: Plan) -> Engine:
        if plan.fingerprint not in self._engines:
            engine = Engine(self.network, plan, self.context.device, self.context.tuning)
            self._engines[plan.fingerprint] = engine
            engine.feed(random_inputs(self.network))
        return self._engines[plan.fingerprint]

    def _observed(self, plan: Plan) -> ObservedParts:
        clock, engine = self.context.clock, self._engine(plan)
        taken_s = 0.0
        for left in reversed(range(WARM_UP)):
            begin = clock()
            engine.run()
            taken_s = clock() - begin
            if left * taken_s > PROFILE_S:
                break
        self._run_s[plan.fingerprint] = taken_s
        runs = int(PROFILE_S / max(2 * taken_s, 1e-9))
        return ObservedParts.of(engine, max(LEAST_PROFILED, min(PROFILED, runs)))

    def _timed(self, plans: Mapping[str, Plan], *, anchors: bool = False) -> TimedTogether:
        models = {name: self._engine(plan).loaded for name, plan in plans.items()}
        effort = comparing(sum(self._run_s.get(name, 0.0) for name in plans))
        tuning = self.context.tuning if anchors else None
        return self.context.device.time(models, effort, anchors=tuning)


def comparing(turn_s: float) -> Effort:
    """The effort to compare plans whose runs take `turn_s` seconds together."""
    warm = max(1, min(3, int(COMPARE_S / max(turn_s, 1e-9))))
    return Effort(
        min_rounds=LEAST_TURNS, min_seconds=COMPARE_S, warm=warm, max_seconds=2 * COMPARE_S
    )


def keep_run(engine: Engine, context: Context, latency_ms: float) -> None:
    """Add the measured parts of an engine's plan to the profile of its network.

    A plan that was timed in turns with others before keeps that latency.
    """
    profiles, network = context.profiling, engine.network
    if profiles is None:
        return
    profile = profiles.load(network, context)
    before = profile.run_of(engine.plan)
    level_ms = latency_ms if before is None else before.latency_ms
    profile = profile.with_runs(ObservedParts.of(engine, PROFILED).run(engine.plan, level_ms))
    # The new run may lead to one more proposal.
    profile = replace(profile, rounds=max(0, profile.rounds - 1))
    profiles.remember(profile)
    context.note(f"Wrote {profiles.save(profile)}")


@dataclass(frozen=True)
class ObservedParts:
    """Milliseconds of the parts of an executable; its profiled runs take `length_ms`."""

    executable: str
    totals: Totals
    length_ms: float

    @classmethod
    def of(cls, engine: Engine, runs: int) -> ObservedParts:
        """Profile an engine that is fed and warm; separate runs note the layers of nets."""
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
        length_ms = fmean(map(_length, nearest(plain, _length)))
        return cls(engine.executable.digest(weights=False), totals, length_ms)

    def run(self, plan: Plan, latency_ms: float) -> PlanRun:
        """The run of a plan with its parts scaled to the latency of plain runs."""
        pace = latency_ms / self.length_ms
        parts: dict[str, dict[str, float]] = {}
        for (kind, label), ms in self.totals.items():
            parts.setdefault(kind, {})[label] = pace * ms
        return PlanRun(plan=plan, executable=self.executable, latency_ms=latency_ms, parts_ms=parts)


def _length(spans: Sequence[TimeSpan]) -> float:
    return max(span.end_ms for span in spans)


def _typical(profiles: Sequence[Sequence[TimeSpan]]) -> dict[tuple[str, str], float]:
    """Milliseconds by (kind, label): the mean of the profiles nearest to the statistic."""
    near = [totals_ms(spans) for spans in nearest(profiles, _length)]
    return {key: fmean(totals.get(key, 0.0) for totals in near) for key in near[0]}


def _fitted(
    layers: Mapping[tuple[str, str], float], whole_ms: float
) -> dict[tuple[str, str], float]:
    """Noted layer times, less an equal cost of noting each, scaled to the net's plain time."""
    noting_ms = (sum(layers.values()) - whole_ms) / len(layers)
    less = {key: max(LEAST_PART * ms, ms - max(0.0, noting_ms)) for key, ms in layers.items()}
    scale = whole_ms / sum(less.values())
    return {key: scale * ms for key, ms in less.items()}
