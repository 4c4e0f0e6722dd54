"""The fastest plan under the predictor: a beam search over where chains end.

A label says how the network can have come to a point between two layers: which region of every
tensor that is still read each processor then holds, and when each is free. Of two labels that hold
the same, one that is later on both processors is of no use. Of the others those that promise most
go on: two in a first search; in a second one, where a network has few chains, enough that the
search is exact over its chains unless it says otherwise.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from codl.errors import CodlError, UnknownNameError
from codl.ir.plan import Sharing
from codl.plan.candidates import Candidates
from codl.plan.chain_costs import CandidateChain
from codl.plan.cost_model import Pair
from codl.plan.transitions import START, Holdings, Transitions
from codl.records.soc import PowerW, Soc

Goal: TypeAlias = Literal["latency", "energy", "energy-delay"]
GOALS: tuple[str, ...] = get_args(Goal)


class Spent(NamedTuple):
    """What chains have used besides time: millijoules above idling, and bytes of weights."""

    mj: float = 0.0
    bytes: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.mj + other.mj, self.bytes + other.bytes)


NOTHING = Spent()


@dataclass(frozen=True)
class Objective:
    """`power_w` is what the SoC's sensors said; only latency can do without.

    `memory_limit` bounds the bytes of weights on both processors together: rows split a chain's
    work but not its weights, which both then hold.
    """

    goal: Goal = "latency"
    power_w: PowerW | None = None
    memory_limit: int | None = None

    @classmethod
    def of(cls, goal: str, soc: Soc, memory_limit: int | None = None) -> Objective:
        """Raises `CodlError` where the goal needs a sensor and the SoC's power is not known."""
        if goal not in GOALS:
            raise UnknownNameError("objective", goal, GOALS)
        if goal != "latency" and soc.power_w is None:
            raise CodlError(
                f"The objective {goal!r} needs the power of {soc.name!r}, and its file has no "
                "`power_w`: it was not measured, or the machine has no energy sensor. `codl "
                f"devices` lists the sensors; `codl soc power {soc.name}` measures by them."
            )
        return cls(goal, soc.power_w, memory_limit)  # type: ignore[arg-type]

    @property
    def is_latency(self) -> bool:
        """Whether time alone decides."""
        return self.goal == "latency" and self.memory_limit is None

    def spent(self, works: Pair, weights: float) -> Spent:
        """Of a chain whose shards take `works` milliseconds and hold `weights` bytes."""
        size = weights if self.memory_limit is not None else 0.0
        if self.goal == "latency" or self.power_w is None:
            return Spent(0.0, size)
        power, (cpu_ms, gpu_ms) = self.power_w, works
        at_once = power.both - power.cpu - power.gpu + power.idle
        above = (power.cpu - power.idle) * cpu_ms + (power.gpu - power.idle) * gpu_ms
        return Spent(above + at_once * min(works), size)

    def allows(self, spent: Spent) -> bool:
        return self.memory_limit is None or spent.bytes <= self.memory_limit

    def energy_mj(self, latency_ms: float, spent: Spent) -> float | None:
        """Millijoules of a plan; None where the power is not known."""
        return None if self.power_w is None else self.power_w.idle * latency_ms + spent.mj

    def value(self, latency_ms: float, spent: Spent) -> float:
        """What is to be least: milliseconds, millijoules or their product."""
        if self.goal == "latency":
            return latency_ms
        energy_mj = self.energy_mj(latency_ms, spent)
        assert energy_mj is not None
        return energy_mj if self.goal == "energy" else energy_mj * latency_ms


LATENCY = Objective()


#: Labels that go on from one point; in the first, narrow search.
WIDEST, NARROW = 64, 2
#: Weights of the CPU's clock that a lower bound is tried with.
SHARES = tuple(i / 20 for i in range(1, 20))


class Label(NamedTuple):
    """One way to come to a point, and the best one that holds what it does."""

    clocks: Pair
    holdings: Holdings
    spent: Spent = NOTHING
    before: Label | None = None
    candidate: CandidateChain | None = None

    @property
    def end_ms(self) -> float:
        return max(self.clocks)

    def beats(self, other: Label) -> bool:
        """Whether this one is at least as good in everything."""
        return (
            self.clocks[0] <= other.clocks[0]
            and self.clocks[1] <= other.clocks[1]
            and self.spent.mj <= other.spent.mj
            and self.spent.bytes <= other.spent.bytes
        )

    def chains(self) -> tuple[CandidateChain, ...]:
        """The chains so far, first to last."""
        chains: list[CandidateChain] = []
        label: Label | None = self
        while label is not None and label.candidate is not None:
            chains.append(label.candidate)
            label = label.before
        return tuple(chains[::-1])


@dataclass(frozen=True)
class Best:
    """The chains of the best plan; `exact` where no label was ever dropped unseen.

    `value` is what the objective makes least, infinite where there is no plan; `energy_mj` is None
    where the SoC's power is not known.
    """

    chains: tuple[CandidateChain, ...]
    latency_ms: float
    value: float
    exact: bool
    energy_mj: float | None = None


@dataclass(frozen=True)
class LowerBound:
    """Admissible lower bound on the remaining latency, for pruning.

    The later of two clocks is never before a weighted mean of both, and every chain adds to that
    mean at least what its shards take, data sharing left out. `share` is the CPU's weight, and
    `left_ms` what is left from each point on.
    """

    share: float
    left_ms: tuple[float, ...]

    @classmethod
    def of(cls, candidates: Candidates) -> LowerBound:
        """With the weight that makes the bound tightest."""
        shares = np.array(SHARES)
        left = np.full((len(candidates.starting) + 1, len(shares)), inf)
        left[-1] = 0.0
        for at in reversed(range(len(candidates.starting))):
            own = candidates.starting[at]
            if own:
                cpu, gpu = np.array([candidate.work_ms for candidate in own]).T
                means = np.outer(cpu, shares) + np.outer(gpu, 1 - shares)
                left[at] = (means + left[[candidate.stop for candidate in own]]).min(axis=0)
        best = int(np.argmax(left[0]))
        return cls(SHARES[best], tuple(left[:, best].tolist()))

    def least_ms(self, clocks: Pair, at: int) -> float:
        """The least that a plan ends at which is at layer `at` now."""
        return self.share * clocks[0] + (1 - self.share) * clocks[1] + self.left_ms[at]


def fastest(
    candidates: Candidates,
    sharing: Sharing = "missing",
    *,
    objective: Objective = LATENCY,
    widest: int | None = None,
) -> Best:
    """Search all ways to put candidate chains one after another.

    A narrow search first: what cannot become faster than its result need not be followed. Then one
    with `widest` labels at a point, by default where there are few chains.
    """
    search = _LabelSearch(candidates, sharing, objective)
    bound = LowerBound.of(candidates)
    narrow = _sweep(search, bound, inf, NARROW)
    few = candidates.costs.cost.rules.few_chains
    if narrow.exact or (widest is None and sum(map(len, candidates.starting)) > few):
        return narrow
    limit_ms = narrow.latency_ms if objective.is_latency else inf
    wide = _sweep(search, bound, limit_ms, widest or WIDEST)
    # Where the narrow search had the best, the wide one has nothing better, but knows.
    return wide if wide.value <= narrow.value else replace(narrow, exact=wide.exact)


def every_plan(
    candidates: Candidates, sharing: Sharing = "missing", *, objective: Objective = LATENCY
) -> Best:
    """The same without a shortcut: every plan is followed to its end. For a handful of layers."""
    search = _LabelSearch(candidates, sharing, objective)
    best, least = None, inf
    open_ends = [(0, search.start)]
    while open_ends:
        at, label = open_ends.pop()
        if at == len(candidates.starting):
            if search.value(label) < least and objective.allows(label.spent):
                best, least = label, search.value(label)
            continue
        for candidate in candidates.starting[at]:
            open_ends.append((candidate.stop, search.after(label, candidate)))
    return search.best([] if best is None else [best], exact=True)


class _Point:
    """The labels that have come to a point, and how late the last is that may go on from there."""

    def __init__(self, widest: int, *, is_latency: bool) -> None:
        self.labels: dict[Holdings, list[Label]] = {}
        self._ends: list[float] = []
        self._widest, self._is_latency = widest, is_latency

    @property
    def latest_ms(self) -> float:
        """What ends later than this has as many labels before it as may go on."""
        if not self._is_latency or len(self._ends) < self._widest:
            return inf
        return self._ends[self._widest - 1]

    def keep(self, new: Label) -> None:
        """Add a label unless one that is there is as good in everything; drop what it beats."""
        own = self.labels.setdefault(new.holdings, [])
        for label in own:
            if label.beats(new):
                return
        for label in [label for label in own if new.beats(label)]:
            own.remove(label)
            self._ends.remove(label.end_ms)
        own.append(new)
        insort(self._ends, new.end_ms)


def _sweep(search: _LabelSearch, bound: LowerBound, limit_ms: float, widest: int) -> Best:
    """From the first layer to the last, with `widest` labels at a point and below a limit."""
    starting = search.candidates.starting
    is_latency = search.objective.is_latency
    points = [_Point(widest, is_latency=is_latency) for _ in range(len(starting) + 1)]
    points[0].keep(search.start)
    exact = True
    for at, nexts in enumerate(starting):
        open_ = [
            label
            for own in points[at].labels.values()
            for label in own
            if bound.least_ms(label.clocks, at) < limit_ms
        ]
        exact = exact and len(open_) <= widest
        ahead = _Ahead(search, bound, nexts)
        for label in sorted(open_, key=search.promise)[:widest]:
            for end_ms, candidate in ahead.within(label, limit_ms):
                point = points[candidate.stop]
                new = None
                if end_ms <= point.latest_ms:
                    new = search.after(label, candidate)
                if new is None or new.end_ms > point.latest_ms:
                    exact = False
                elif search.objective.allows(new.spent):
                    point.keep(new)
        points[at].labels.clear()
    ends = [label for own in points[-1].labels.values() for label in own]
    return search.best(ends, exact=exact)


class _Ahead:
    """The chains that begin at a point, as columns: what each adds to a label at the least."""

    def __init__(
        self, search: _LabelSearch, bound: LowerBound, candidates: Sequence[CandidateChain]
    ) -> None:
        self._candidates, self._share = candidates, bound.share
        works = np.array([one.work_ms for one in candidates], np.float64).reshape(-1, 2)
        self._cpu, self._gpu = works.T
        launches_ms = search.transitions.launches_ms
        self._launches = np.array([launches_ms(one.launches) for one in candidates])
        left = np.array([bound.left_ms[one.stop] for one in candidates])
        cpu = self._cpu + self._launches
        self._least = self._share * cpu + (1 - self._share) * self._gpu + left

    def within(self, label: Label, limit_ms: float) -> Iterable[tuple[float, CandidateChain]]:
        """Chains by which a plan may still end before a limit, each with the earliest it ends."""
        cpu, gpu = label.clocks
        least = self._share * cpu + (1 - self._share) * gpu + self._least
        works_on = (np.maximum(gpu, cpu) + self._gpu) * (self._gpu > 0)
        ends = np.maximum(cpu + self._cpu + self._launches, np.maximum(works_on, gpu))
        # The earliest first: what comes behind it need often not be looked at.
        order = np.argsort(ends, kind="stable")
        order = order[least[order] < limit_ms]
        candidates = [self._candidates[at] for at in order.tolist()]
        return zip(ends[order].tolist(), candidates, strict=True)


class _LabelSearch:
    """Labels, and what they are compared by."""

    def __init__(self, candidates: Candidates, sharing: Sharing, objective: Objective) -> None:
        self.candidates, self.objective = candidates, objective
        self.transitions = Transitions(candidates.costs, sharing)
        self.transitions.prefetch(candidates.table)
        self.start = Label(START, self.transitions.start)
        cost = candidates.costs.cost
        self._enqueues_at_once = cost.launches_ms(1) == 0 and cost.signals.first_launch_ms == 0

    def promise(self, label: Label) -> tuple[float, float]:
        """What labels at one point are compared by."""
        return self.objective.value(label.end_ms, label.spent), min(label.clocks)

    def value(self, label: Label) -> float:
        """What the objective says of a label behind the last layer."""
        return self.objective.value(self._end_ms(label), label.spent)

    def _end_ms(self, label: Label) -> float:
        return self.transitions.end_ms(label.clocks, label.holdings)

    def best(self, labels: Sequence[Label], *, exact: bool) -> Best:
        """The best of some labels behind the last layer."""
        if not labels:
            return Best((), inf, inf, exact)
        label = min(labels, key=self.value)
        latency_ms = self._end_ms(label)
        energy_mj = self.objective.energy_mj(latency_ms, label.spent)
        return Best(label.chains(), latency_ms, self.value(label), exact, energy_mj)

    def after(self, label: Label, candidate: CandidateChain) -> Label:
        """The label behind one more chain."""
        clocks, holdings = self.transitions.after(label.clocks, label.holdings, candidate)
        spent = label.spent
        if not self.objective.is_latency:
            spent = spent.plus(self.objective.spent(candidate.work_ms, candidate.weights))
        return Label(self._waited(clocks, holdings), holdings, spent, label, candidate)

    def _waited(self, clocks: Pair, holdings: Holdings) -> Pair:
        """A processor that holds nothing has nothing to do before the other one is done.

        But for the CPU where that takes time to enqueue what the GPU does next.
        """
        cpu, gpu = clocks
        if self._enqueues_at_once and not any(holdings[0::2]):
            return max(cpu, gpu), gpu
        if not any(holdings[1::2]):
            return cpu, max(cpu, gpu)
        return clocks
