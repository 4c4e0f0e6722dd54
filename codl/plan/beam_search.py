"""Beam search of the chains of a plan by predicted latency or energy, and its objectives.

A label says how the network can have come to a point between two layers: which region of every
tensor that is still read each processor then holds, and when each is free. Of two labels that hold
the same, one that is later on both processors is of no use. Of the others those that promise most
go on: eight where there are many chains, and elsewhere as many as make most searches exact over
their chains.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from codl.errors import CodlError, UnknownNameError
from codl.ir.plan import Sharing
from codl.plan.candidates import Candidates
from codl.plan.chain_costs import CandidateChain
from codl.plan.cost_model import Pair
from codl.plan.price import START
from codl.plan.transitions import ResidentRegions, Transitions
from codl.records.soc import PowerW, Soc

Goal: TypeAlias = Literal["latency", "energy", "energy-delay"]
GOALS: tuple[str, ...] = get_args(Goal)
#: Labels that go on from a point: where networks have at most `FEW` candidate chains, and else.
WIDEST, NARROW, FEW = 64, 8, 200


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


class Label(NamedTuple):
    """One way to come to a point, and the best one that holds what it does."""

    clocks: Pair
    resident: ResidentRegions
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

    @property
    def how(self) -> str:
        """In a plan's words."""
        return "exact" if self.exact else "widest labels only"


def fastest(
    candidates: Candidates,
    sharing: Sharing = "missing",
    *,
    objective: Objective = LATENCY,
    widest: int | None = None,
) -> Best:
    """Search the ways to put candidate chains one after another, `widest` labels at a point."""
    search, starting = _LabelSearch(candidates, sharing, objective), candidates.starting
    widest = widest or (WIDEST if sum(map(len, starting)) <= FEW else NARROW)
    #: Whether the network's end can be reached from each point.
    leads_on = [False] * len(starting) + [True]
    for at in reversed(range(len(starting))):
        leads_on[at] = any(leads_on[candidate.stop] for candidate in starting[at])
    points = [_Point(widest, is_latency=objective.is_latency) for _ in leads_on]
    points[0].keep(search.start)
    exact = True
    for at, nexts in enumerate(starting):
        labels = [label for kept in points[at].labels.values() for label in kept]
        exact = exact and len(labels) <= widest
        ahead = _Ahead(search, [candidate for candidate in nexts if leads_on[candidate.stop]])
        for label in sorted(labels, key=search.promise)[:widest]:
            for end_ms, candidate in ahead.within(label):
                point = points[candidate.stop]
                new = search.after(label, candidate) if end_ms <= point.latest_ms else None
                if new is None or new.end_ms > point.latest_ms:
                    exact = False
                elif objective.allows(new.spent):
                    point.keep(new)
        points[at].labels.clear()
    return search.best([x for kept in points[-1].labels.values() for x in kept], exact=exact)


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
        self.labels: dict[ResidentRegions, list[Label]] = {}
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
        labels = self.labels.setdefault(new.resident, [])
        if any(label.beats(new) for label in labels):
            return
        for label in [label for label in labels if new.beats(label)]:
            labels.remove(label)
            self._ends.remove(label.end_ms)
        labels.append(new)
        insort(self._ends, new.end_ms)


class _Ahead:
    """The chains that begin at a point, as columns: what each adds to a label at the least."""

    def __init__(self, search: _LabelSearch, candidates: Sequence[CandidateChain]) -> None:
        self._candidates = candidates
        works = np.array([candidate.work_ms for candidate in candidates], np.float64).reshape(-1, 2)
        launches_ms = search.transitions.launches_ms
        launches = np.array([launches_ms(candidate.launches) for candidate in candidates])
        self._cpu, self._gpu = works[:, 0] + launches, works[:, 1]

    def within(self, label: Label) -> Iterable[tuple[float, CandidateChain]]:
        """Each chain with the earliest that it ends, in that order.

        What comes behind the first ones need often not be looked at.
        """
        cpu, gpu = label.clocks
        works_on = (max(gpu, cpu) + self._gpu) * (self._gpu > 0)
        ends = np.maximum(cpu + self._cpu, np.maximum(works_on, gpu))
        order = np.argsort(ends, kind="stable")
        return zip(ends[order].tolist(), map(self._candidates.__getitem__, order), strict=True)


class _LabelSearch:
    """Labels, and what they are compared by."""

    def __init__(self, candidates: Candidates, sharing: Sharing, objective: Objective) -> None:
        self.candidates, self.objective = candidates, objective
        self.transitions = Transitions(candidates.costs, sharing)
        self.transitions.prefetch([candidate for at in candidates.starting for candidate in at])
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
        return self.transitions.end_ms(label.clocks, label.resident)

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
        clocks, resident = self.transitions.after(label.clocks, label.resident, candidate)
        spent = label.spent
        if not self.objective.is_latency:
            spent = spent.plus(self.objective.spent(candidate.work_ms, candidate.weights))
        return Label(self._waited(clocks, resident), resident, spent, label, candidate)

    def _waited(self, clocks: Pair, resident: ResidentRegions) -> Pair:
        """A processor that holds nothing has nothing to do before the other one is done.

        But for the CPU where that takes time to enqueue what the GPU does next.
        """
        cpu, gpu = clocks
        if self._enqueues_at_once and not any(resident[0::2]):
            return max(cpu, gpu), gpu
        if not any(resident[1::2]):
            return cpu, max(cpu, gpu)
        return clocks
