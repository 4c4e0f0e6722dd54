"""Beam search for the chains of a plan with the least predicted latency or energy.

A label is one way to execute the network up to a point between two layers. It has the clock of each
processor, and the region of each live tensor that each processor holds. Of two labels with equal
regions, one that is later on both clocks is dropped. At each point the best labels are extended:
eight in large searches, and 64 in small ones, where the search is mostly exact.
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
#: The labels that are extended at a point, in networks with at most `FEW` candidate chains and in
#: larger ones.
WIDEST, NARROW, FEW = 64, 8, 200


class Spent(NamedTuple):
    """What chains consume besides time: millijoules above idle power, and bytes of weights."""

    mj: float = 0.0
    bytes: float = 0.0

    def plus(self, other: Spent) -> Spent:
        return Spent(self.mj + other.mj, self.bytes + other.bytes)


NOTHING = Spent()


@dataclass(frozen=True)
class Objective:
    """The quantity to minimise, and a limit of memory.

    `power_w` is the measured power of the SoC; only the goal `latency` works without it.
    `memory_limit` bounds the bytes of weights on both processors together. A chain that is split by
    rows has its weights on both.
    """

    goal: Goal = "latency"
    power_w: PowerW | None = None
    memory_limit: int | None = None

    @classmethod
    def of(cls, goal: str, soc: Soc, memory_limit: int | None = None) -> Objective:
        """An objective by name; raises `CodlError` where it needs `power_w` of the SoC file."""
        if goal not in GOALS:
            raise UnknownNameError("objective", goal, GOALS)
        if goal != "latency" and soc.power_w is None:
            raise CodlError(
                f"The objective {goal!r} needs `power_w` in the SoC file of {soc.name!r}. `codl "
                f"devices` lists energy sensors; `codl soc power {soc.name}` measures by them."
            )
        return cls(goal, soc.power_w, memory_limit)  # type: ignore[arg-type]

    @property
    def is_latency(self) -> bool:
        """True where latency is minimised without a memory limit."""
        return self.goal == "latency" and self.memory_limit is None

    def spent(self, works: Pair, weights: float) -> Spent:
        """The consumption of a chain whose shards take `works` ms and hold `weights` bytes."""
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
        """Millijoules of a plan; None without measured power."""
        return None if self.power_w is None else self.power_w.idle * latency_ms + spent.mj

    def value(self, latency_ms: float, spent: Spent) -> float:
        """The value to minimise: milliseconds, millijoules or their product."""
        if self.goal == "latency":
            return latency_ms
        energy_mj = self.energy_mj(latency_ms, spent)
        assert energy_mj is not None
        return energy_mj if self.goal == "energy" else energy_mj * latency_ms


LATENCY = Objective()


class Label(NamedTuple):
    """One way to execute the network up to a point: `candidate` after the label `before`."""

    clocks: Pair
    resident: ResidentRegions
    spent: Spent = NOTHING
    before: Label | None = None
    candidate: CandidateChain | None = None

    @property
    def end_ms(self) -> float:
        return max(self.clocks)

    def beats(self, other: Label) -> bool:
        """True where this label is at least as good as another in time, energy and memory."""
        return (
            self.clocks[0] <= other.clocks[0]
            and self.clocks[1] <= other.clocks[1]
            and self.spent.mj <= other.spent.mj
            and self.spent.bytes <= other.spent.bytes
        )

    def chains(self) -> tuple[CandidateChain, ...]:
        """The chains up to this point, first one first."""
        chains: list[CandidateChain] = []
        label: Label | None = self
        while label is not None and label.candidate is not None:
            chains.append(label.candidate)
            label = label.before
        return tuple(chains[::-1])


@dataclass(frozen=True)
class Best:
    """The chains of the best plan.

    `exact` is True where labels were dropped only because another one was at least as good. `value`
    is the minimised value, infinite without a plan, and `energy_mj` is None without measured power.
    """

    chains: tuple[CandidateChain, ...]
    latency_ms: float
    value: float
    exact: bool
    energy_mj: float | None = None

    @property
    def how(self) -> str:
        """How complete the search was, for `Plan.method`."""
        return "exact" if self.exact else "widest labels only"


def fastest(
    candidates: Candidates,
    sharing: Sharing = "missing",
    *,
    objective: Objective = LATENCY,
    widest: int | None = None,
) -> Best:
    """The best sequence of candidate chains; `widest` labels are extended at each point."""
    search, starting = _LabelSearch(candidates, sharing, objective), candidates.starting
    widest = widest or (WIDEST if sum(map(len, starting)) <= FEW else NARROW)
    #: By point, True where candidate chains lead from it to the network's end.
    leads_on = [False] * len(starting) + [True]
    for at in reversed(range(len(starting))):
        leads_on[at] = any(leads_on[candidate.stop] for candidate in starting[at])
    points = [_Point(widest, is_latency=objective.is_latency) for _ in leads_on]
    points[0].keep(search.start)
    exact = True
    for at, nexts in enumerate(starting):
        labels = [label for kept in points[at].labels.values() for label in kept]
        exact = exact and len(labels) <= widest
        reaching = [candidate for candidate in nexts if leads_on[candidate.stop]]
        extensions = _Extensions(search, reaching)
        for label in sorted(labels, key=search.rank)[:widest]:
            for end_ms, candidate in extensions.after(label):
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
    """The best sequence of candidate chains, by enumeration; for networks of a few layers."""
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
    """The labels at a point, and the latest time at which a label can still be extended."""

    def __init__(self, widest: int, *, is_latency: bool) -> None:
        self.labels: dict[ResidentRegions, list[Label]] = {}
        self._ends: list[float] = []
        self._widest, self._is_latency = widest, is_latency

    @property
    def latest_ms(self) -> float:
        """Labels that end later than this are not among the `widest` best ones."""
        if not self._is_latency or len(self._ends) < self._widest:
            return inf
        return self._ends[self._widest - 1]

    def keep(self, new: Label) -> None:
        """Add a label unless an equal or better one is there; drop the labels that it beats."""
        labels = self.labels.setdefault(new.resident, [])
        if any(label.beats(new) for label in labels):
            return
        for label in [label for label in labels if new.beats(label)]:
            labels.remove(label)
            self._ends.remove(label.end_ms)
        labels.append(new)
        insort(self._ends, new.end_ms)


class _Extensions:
    """The candidate chains that begin at a point, with lower bounds of their times as columns."""

    def __init__(self, search: _LabelSearch, candidates: Sequence[CandidateChain]) -> None:
        self._candidates = candidates
        works = np.array([candidate.work_ms for candidate in candidates], np.float64).reshape(-1, 2)
        launches_ms = search.transitions.launches_ms
        launches = np.array([launches_ms(candidate.launches) for candidate in candidates])
        self._cpu, self._gpu = works[:, 0] + launches, works[:, 1]

    def after(self, label: Label) -> Iterable[tuple[float, CandidateChain]]:
        """Each chain with a lower bound of its end after a label, the earliest first.

        The search mostly looks at the first few only.
        """
        cpu, gpu = label.clocks
        works_on = (max(gpu, cpu) + self._gpu) * (self._gpu > 0)
        ends = np.maximum(cpu + self._cpu, np.maximum(works_on, gpu))
        order = np.argsort(ends, kind="stable")
        return zip(ends[order].tolist(), map(self._candidates.__getitem__, order), strict=True)


class _LabelSearch:
    """Extends labels, and compares them."""

    def __init__(self, candidates: Candidates, sharing: Sharing, objective: Objective) -> None:
        self.candidates, self.objective = candidates, objective
        self.transitions = Transitions(candidates.costs, sharing)
        self.transitions.prefetch([candidate for at in candidates.starting for candidate in at])
        self.start = Label(START, self.transitions.start)
        cost = candidates.costs.cost
        self._enqueues_at_once = cost.launches_ms(1) == 0

    def rank(self, label: Label) -> tuple[float, float]:
        """The key that orders the labels of a point, the best one first."""
        return self.objective.value(label.end_ms, label.spent), min(label.clocks)

    def value(self, label: Label) -> float:
        """The value to minimise of a label after the last layer."""
        return self.objective.value(self._end_ms(label), label.spent)

    def _end_ms(self, label: Label) -> float:
        return self.transitions.end_ms(label.clocks, label.resident)

    def best(self, labels: Sequence[Label], *, exact: bool) -> Best:
        """The best of some labels after the last layer."""
        if not labels:
            return Best((), inf, inf, exact)
        label = min(labels, key=self.value)
        latency_ms = self._end_ms(label)
        energy_mj = self.objective.energy_mj(latency_ms, label.spent)
        return Best(label.chains(), latency_ms, self.value(label), exact, energy_mj)

    def after(self, label: Label, candidate: CandidateChain) -> Label:
        """The label after one more chain."""
        clocks, resident = self.transitions.after(label.clocks, label.resident, candidate)
        spent = label.spent
        if not self.objective.is_latency:
            spent = spent.plus(self.objective.spent(candidate.work_ms, candidate.weights))
        return Label(self._waited(clocks, resident), resident, spent, label, candidate)

    def _waited(self, clocks: Pair, resident: ResidentRegions) -> Pair:
        """Advance the clock of a processor without resident regions to the other one's clock.

        It has no work before then, except that the CPU may have to enqueue the GPU's next kernels.
        """
        cpu, gpu = clocks
        if self._enqueues_at_once and not any(resident[0::2]):
            return max(cpu, gpu), gpu
        if not any(resident[1::2]):
            return cpu, max(cpu, gpu)
        return clocks
