"""The fastest plan under the predictor: dynamic programming over where chains end.

A label says how the network can have come to a point between two layers: which region of every
tensor that is still read each processor then holds, and when each is free. Of two labels that hold
the same, one that is later on both processors is of no use. Nothing else is dropped as long as
there are few; then the search is exact over its chains. Where a network is wide and tensors may lie
in many ways, only the labels that promise most go on, and the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np

from codl.execute.program import WAYS, Residency, lacking
from codl.kernels.base import PROCESSORS
from codl.ops import Network, Region
from codl.ops.plan import Sharing
from codl.plan.clocks import START, Move, Pair, after_stage, priced
from codl.plan.cost import CostModel, Moved
from codl.plan.objective import LATENCY, NOTHING, Objective, Spent
from codl.plan.segments import Segment, Segments

#: Labels that go on from one point; in the first, narrow search.
WIDEST, NARROW = 16, 3
#: Weights of the CPU's clock that are tried for a bound.
SHARES = tuple(i / 20 for i in range(1, 20))
#: What a processor holds of a tensor.
Held: TypeAlias = Region | None
#: The name of each tensor that is still read, with what the CPU and the GPU hold of it.
Key: TypeAlias = tuple[tuple[str, Held, Held], ...]
#: A tensor, the side that needs a region of it, what that side holds, and the region.
_Need: TypeAlias = tuple[str, int, Held, Region]


@dataclass(frozen=True, slots=True)
class Label:
    """One way to come to a point, and the best one that holds what it does."""

    clocks: Pair
    key: Key
    spent: Spent = NOTHING
    before: Label | None = None
    segment: Segment | None = None

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

    def segments(self) -> list[Segment]:
        """The chains so far, first to last."""
        found: list[Segment] = []
        label: Label | None = self
        while label is not None and label.segment is not None:
            found.append(label.segment)
            label = label.before
        return found[::-1]


@dataclass(frozen=True)
class Found:
    """The chains of the best plan; `exact` where no label was ever dropped unseen.

    `value` is what the objective makes least, infinite where nothing was found; `energy_mj` is None
    where the SoC's power is not known.
    """

    segments: tuple[Segment, ...]
    latency_ms: float
    value: float
    exact: bool
    energy_mj: float | None = None


def fastest(
    network: Network,
    cost: CostModel,
    segments: Segments,
    sharing: Sharing = "missing",
    *,
    objective: Objective = LATENCY,
    widest: int = WIDEST,
) -> Found:
    """Search all ways to put `segments` one after another.

    A narrow search first: what cannot become faster than its result need not be followed.
    """
    search = _Search(network, cost, segments, sharing, objective)
    bound = Bound.of(segments)
    narrow = _sweep(search, bound, inf, NARROW)
    if narrow.exact:
        return narrow
    limit_ms = narrow.latency_ms if objective.is_latency else inf
    return min(_sweep(search, bound, limit_ms, widest), narrow, key=lambda found: found.value)


def _sweep(search: _Search, bound: Bound, limit_ms: float, widest: int) -> Found:
    """From the first layer to the last, with so many labels at a point and below a limit."""
    starting = search.segments.starting
    points: list[dict[Key, list[Label]]] = [{} for _ in range(len(starting) + 1)]
    points[0][search.start] = [Label(START, search.start)]
    exact = True
    for at, nexts in enumerate(starting):
        open_ = [
            x for own in points[at].values() for x in own if bound.least_ms(x.clocks, at) < limit_ms
        ]
        exact = exact and len(open_) <= widest
        labels = sorted(open_, key=search.promise)[:widest]
        search.prepare(labels, nexts)
        for label in labels:
            for segment in nexts:
                if bound.least_ms(label.clocks, segment.stop, segment.work_ms) < limit_ms:
                    found = search.after(label, segment)
                    if search.objective.allows(found.spent):
                        _keep(points[segment.stop].setdefault(found.key, []), found)
        points[at].clear()
    ends = [label for own in points[-1].values() for label in own]
    if not ends:
        return Found((), inf, inf, exact)
    return search.found(min(ends, key=search.value), exact=exact)


@dataclass(frozen=True)
class Bound:
    """What any plan must still take from a point on.

    The later of two clocks is never before a weighted mean of both, and every op adds to that mean
    at least what its best cut adds, data sharing and contention left out.
    """

    share: float
    left_ms: tuple[float, ...]

    @classmethod
    def of(cls, segments: Segments) -> Bound:
        """With the weight that makes the bound tightest."""
        means = {share: segments.least_ms(share) for share in SHARES}
        share = max(means, key=lambda share: float(means[share].sum()))
        left = np.cumsum(means[share][::-1])[::-1]
        return cls(share, (*left.tolist(), 0.0))

    def least_ms(self, clocks: Pair, at: int, work_ms: Pair = START) -> float:
        """The least that a plan ends at which is at layer `at` after some more work."""
        cpu, gpu = clocks[0] + work_ms[0], clocks[1] + work_ms[1]
        return self.share * cpu + (1 - self.share) * gpu + self.left_ms[at]


def _waited(clocks: Pair, key: Key) -> Pair:
    """A processor that holds nothing has nothing to do before the other one is done."""
    cpu, gpu = clocks
    if all(mine is None for _, mine, _ in key):
        return max(cpu, gpu), gpu
    if all(mine is None for *_, mine in key):
        return cpu, max(cpu, gpu)
    return clocks


def every_way(
    network: Network,
    cost: CostModel,
    segments: Segments,
    sharing: Sharing = "missing",
    *,
    objective: Objective = LATENCY,
) -> Found:
    """The same without a shortcut: every plan is followed to its end. For a handful of layers."""
    search = _Search(network, cost, segments, sharing, objective)
    best, least = None, inf
    open_ends = [(0, Label(START, search.start))]
    while open_ends:
        at, label = open_ends.pop()
        if at == len(network.layers):
            if search.value(label) < least and objective.allows(label.spent):
                best, least = label, search.value(label)
            continue
        for segment in segments.starting[at]:
            open_ends.append((segment.stop, search.after(label, segment)))
    assert best is not None
    return search.found(best, exact=True)


def _keep(labels: list[Label], new: Label) -> None:
    """Add a label unless one that is there is as good in everything; drop what it beats."""
    if not any(label.beats(new) for label in labels):
        labels[:] = [label for label in labels if not new.beats(label)]
        labels.append(new)


class _Search:
    """From a label over a segment to the next label."""

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        segments: Segments,
        sharing: Sharing,
        objective: Objective,
    ) -> None:
        self.objective = objective
        self._network, self._cost, self._sharing = network, cost, sharing
        self.segments = segments
        self._last_reader = segments.last_reader
        fresh = Residency(network, sharing)
        held = [fresh.held[side] for side in PROCESSORS]
        names = {*held[0], *held[1]}
        self.start: Key = tuple(
            (name, held[0].get(name), held[1].get(name))
            for name in sorted(names)
            if self._last_reader[name] >= 0
        )
        self._results = {
            holder: Region.whole(network.shapes[holder]) for holder, _ in network.outputs.values()
        }
        self._needed: dict[_Need, tuple[Region, list[Move]]] = {}
        self._launches: dict[int, float] = {}

    def prepare(self, labels: Sequence[Label], segments: Sequence[Segment]) -> None:
        """Predict all that may move between these in one batch."""
        new: dict[_Need, tuple[Region, list[Moved]]] = {}
        for label in labels:
            held = {name: (cpu, gpu) for name, cpu, gpu in label.key}
            for segment in segments:
                for side in (0, 1):
                    for name, need in segment.inputs[side].items():
                        asked = (name, side, held[name][side], need)
                        if asked not in self._needed and asked not in new:
                            new[asked] = self._transfers(*asked)
        self._cost.prefetch_sharing(move for _, moves in new.values() for move in moves)
        for asked, (region, moves) in new.items():
            self._needed[asked] = region, priced(self._cost, moves)

    def promise(self, label: Label) -> tuple[float, float]:
        """What labels at one point are compared by."""
        return self.objective.value(label.end_ms, label.spent), min(label.clocks)

    def value(self, label: Label) -> float:
        """What the objective says of a label behind the last layer."""
        return self.objective.value(self.end_ms(label), label.spent)

    def found(self, label: Label, *, exact: bool) -> Found:
        segments, latency_ms = tuple(label.segments()), self.end_ms(label)
        energy_mj = self.objective.energy_mj(latency_ms, label.spent)
        return Found(segments, latency_ms, self.value(label), exact, energy_mj)

    def after(self, label: Label, segment: Segment) -> Label:
        """The clocks after a segment, and what is then held of all that is still read."""
        held = {name: (cpu, gpu) for name, cpu, gpu in label.key}
        moves: list[Move] = []
        for side in (0, 1):
            for name, need in segment.inputs[side].items():
                region, own = self._need(name, side, held[name][side], need)
                held[name] = (region, held[name][1]) if side == 0 else (held[name][0], region)
                moves += own
        count = segment.kernels + len(moves)
        clocks = after_stage(label.clocks, moves, self._launches_ms(count), segment.work_ms)
        for name in {**segment.outputs[0], **segment.outputs[1]}:
            held[name] = (segment.outputs[0].get(name), segment.outputs[1].get(name))
        last, stop = self._last_reader, segment.stop
        key = tuple((n, *held[n]) for n in sorted(held) if last[n] >= stop)
        spent = label.spent
        if not self.objective.is_latency:
            spent = spent.plus(self.objective.spent(segment.work_ms, segment.weights))
        return Label(_waited(clocks, key), key, spent, label, segment)

    def end_ms(self, label: Label) -> float:
        """When the results lie whole with the CPU."""
        held = {name: cpu for name, cpu, _ in label.key}
        moves: list[Move] = []
        for name, whole in self._results.items():
            mine = held[name]
            if mine is None or not mine.covers(whole):
                moves += self._need(name, 0, mine, whole)[1]
        return max(after_stage(label.clocks, moves))

    def _need(self, name: str, side: int, mine: Held, need: Region) -> tuple[Region, list[Move]]:
        """What a processor holds after it needed a region, and the transfers that took."""
        asked = (name, side, mine, need)
        if asked not in self._needed:
            region, moves = self._transfers(*asked)
            self._needed[asked] = region, priced(self._cost, moves)
        return self._needed[asked]

    def _transfers(
        self, name: str, side: int, mine: Held, need: Region
    ) -> tuple[Region, list[Moved]]:
        shape, way = self._network.shapes[name], WAYS[PROCESSORS[side]]
        held, regions = lacking(shape, mine, need, self._sharing)
        return held, [(way, region.shape(shape)) for region in regions]

    def _launches_ms(self, count: int) -> float:
        if count not in self._launches:
            self._launches[count] = self._cost.launches_ms(count)
        return self._launches[count]


def merged(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Neighbours that may as well be one chain: on the same processor, or of the same images."""
    groups: list[list[Segment]] = []
    for segment in segments:
        alike = segment.gpu_ratio in (0.0, 1.0) or segment.dim == "N"
        last = groups[-1][-1] if groups else None
        if last and alike and _cut(last) == _cut(segment):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _cut(segment: Segment) -> tuple[str, float]:
    """Where a chain is cut; on one processor its dimension means nothing."""
    both = 0 < segment.gpu_ratio < 1
    return (segment.dim if both else "", segment.gpu_ratio)
