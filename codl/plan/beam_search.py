"""The fastest plan under the predictor: dynamic programming over where chains end.

A label says how the network can have come to a point between two layers: which region of every
tensor that is still read each processor then holds, and when each is free. Of two labels that hold
the same, one that is later on both processors is of no use. Of the others those that promise most
go on: two in a first search; in a second one, where a network has few chains, so many that the
search is exact over its chains unless it says otherwise.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import ge, itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from codl.ir import Network, Region
from codl.ir.plan import Sharing
from codl.ir.types import PROCESSORS
from codl.lower.program import WAYS, Residency
from codl.plan import region_array as boxes
from codl.plan.candidate_transfers import between
from codl.plan.candidates import Segment, Segments
from codl.plan.cost_model import CostModel, Moved
from codl.plan.lower_bound import Bound
from codl.plan.objective import LATENCY, NOTHING, Objective, Spent
from codl.plan.pipeline_model import START, Move, Pair, after_stage, priced
from codl.plan.region_array import NONE

#: Labels that go on from one point; in the first, narrow search.
WIDEST, NARROW = 64, 2
#: With more chains than this, the narrow search is all there is.
FEW = 200
#: What the CPU and the GPU hold of each tensor that is still read, by the numbers of regions.
Key: TypeAlias = tuple[int, ...]


class Label(NamedTuple):
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
    widest: int | None = None,
) -> Found:
    """Search all ways to put `segments` one after another.

    A narrow search first: what cannot become faster than its result need not be followed. Then one
    with `widest` labels at a point, by default where there are few chains.
    """
    search = _Search(network, cost, segments, sharing, objective)
    bound = Bound.of(segments)
    narrow = _sweep(search, bound, inf, NARROW)
    if narrow.exact or (widest is None and sum(map(len, segments.starting)) > FEW):
        return narrow
    limit_ms = narrow.latency_ms if objective.is_latency else inf
    wide = _sweep(search, bound, limit_ms, widest or WIDEST)
    # Where the narrow search had found the best, the wide one finds nothing better, but knows.
    return wide if wide.value <= narrow.value else replace(narrow, exact=wide.exact)


class _Point:
    """The labels that have come to a point, and how late the last is that may go on from there."""

    def __init__(self, widest: int, *, is_latency: bool) -> None:
        self.labels: dict[Key, list[Label]] = {}
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
        own = self.labels.setdefault(new.key, [])
        if any(label.beats(new) for label in own):
            return
        for label in [label for label in own if new.beats(label)]:
            own.remove(label)
            self._ends.remove(label.end_ms)
        own.append(new)
        insort(self._ends, new.end_ms)


def _sweep(search: _Search, bound: Bound, limit_ms: float, widest: int) -> Found:
    """From the first layer to the last, with so many labels at a point and below a limit."""
    starting = search.segments.starting
    is_latency = search.objective.is_latency
    points = [_Point(widest, is_latency=is_latency) for _ in range(len(starting) + 1)]
    points[0].keep(Label(START, search.start))
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
            for end_ms, segment in ahead.within(label, limit_ms):
                point = points[segment.stop]
                found = None
                if end_ms <= point.latest_ms:
                    found = search.after(label, segment, point.latest_ms)
                if found is None:
                    exact = False
                elif search.objective.allows(found.spent):
                    point.keep(found)
        points[at].labels.clear()
    ends = [label for own in points[-1].labels.values() for label in own]
    if not ends:
        return Found((), inf, inf, exact)
    return search.found(min(ends, key=search.value), exact=exact)


class _Ahead:
    """The chains that begin at a point, as columns: what each adds to a label at the least."""

    def __init__(self, search: _Search, bound: Bound, segments: Sequence[Segment]) -> None:
        self._segments, self._share = segments, bound.share
        works = np.array([segment.work_ms for segment in segments], np.float64).reshape(-1, 2)
        self._cpu, self._gpu = works.T
        self._launches = np.array([search.launches_ms(s.kernels) for s in segments])
        left = np.array([bound.left_ms[segment.stop] for segment in segments])
        cpu = self._cpu + self._launches
        self._least = self._share * cpu + (1 - self._share) * self._gpu + left

    def within(self, label: Label, limit_ms: float) -> Iterable[tuple[float, Segment]]:
        """Chains by which a plan may still end before a limit, each with the earliest it ends."""
        cpu, gpu = label.clocks
        least = self._share * cpu + (1 - self._share) * gpu + self._least
        works_on = (np.maximum(gpu, cpu) + self._gpu) * (self._gpu > 0)
        ends = np.maximum(cpu + self._cpu + self._launches, np.maximum(works_on, gpu))
        # The earliest first: what comes behind it need often not be looked at.
        order = np.argsort(ends, kind="stable")
        order = order[least[order] < limit_ms]
        segments = [self._segments[at] for at in order.tolist()]
        return zip(ends[order].tolist(), segments, strict=True)


def _waited(clocks: Pair, key: Key) -> Pair:
    """A processor that holds nothing has nothing to do before the other one is done."""
    cpu, gpu = clocks
    if not any(key[0::2]):
        return max(cpu, gpu), gpu
    if not any(key[1::2]):
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
            next_ = search.after(label, segment)
            assert next_ is not None
            open_ends.append((segment.stop, next_))
    assert best is not None
    return search.found(best, exact=True)


class _Way(NamedTuple):
    """What a segment does to what is held.

    `needs` are places in the key, the processors, and the regions' numbers; `made` the numbers of
    what it leaves; and `key` takes the next key from the last one and those.
    """

    needs: tuple[tuple[int, int, int], ...]
    made: tuple[int, ...]
    key: itemgetter[Any] | None


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
        self.segments, self._regions = segments, segments.regions
        self._live = _live(segments)
        #: The places in the key of what the CPU and the GPU hold of each tensor, at every point.
        self._places = [
            {name: (2 * at, 2 * at + 1) for at, name in enumerate(names)} for names in self._live
        ]
        fresh = Residency(network, sharing)
        self.start: Key = tuple(
            self._regions.one(name, boxes.box(fresh.held[side].get(name)))
            for name in self._live[0]
            for side in PROCESSORS
        )
        self._results = {
            holder: self._regions.one(holder, boxes.box(Region.whole(network.shapes[holder])))
            for holder, _ in network.outputs.values()
        }
        self._ways: dict[int, _Way] = {}
        self._stretches: dict[tuple[int, int], tuple[dict[str, int], itemgetter[Any] | None]] = {}
        self._needed: dict[tuple[int, int, int], tuple[int, list[Move]]] = {}
        self._launches: dict[int, float] = {}
        self._moves: dict[Moved, Move] = {}
        cost.prefetch_sharing(between(segments, sharing))

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

    def after(self, label: Label, segment: Segment, latest_ms: float = inf) -> Label | None:
        """The clocks after a segment, and what is then held of all that is still read.

        None where that ends later than it may.
        """
        way = self._ways.get(id(segment)) or self._way(segment)
        held = list(label.key)
        moves: list[Move] = []
        for place, side, need in way.needs:
            held[place], own = self._need(side, held[place], need)
            moves += own
        launches_ms = self.launches_ms(segment.kernels + len(moves))
        clocks = after_stage(label.clocks, moves, launches_ms, segment.work_ms)
        if clocks[0] > latest_ms or clocks[1] > latest_ms:
            return None
        key = way.key((*held, *way.made)) if way.key else ()
        spent = label.spent
        if not self.objective.is_latency:
            spent = spent.plus(self.objective.spent(segment.work_ms, segment.weights))
        return Label(_waited(clocks, key), key, spent, label, segment)

    def end_ms(self, label: Label) -> float:
        """When the results lie whole with the CPU."""
        moves: list[Move] = []
        for name, whole in self._results.items():
            place, _ = self._places[-1][name]
            moves += self._need(0, label.key[place], whole)[1]
        return max(after_stage(label.clocks, moves))

    def launches_ms(self, count: int) -> float:
        if count not in self._launches:
            self._launches[count] = self._cost.launches_ms(count)
        return self._launches[count]

    def _way(self, segment: Segment) -> _Way:
        tensor_of, before = self._regions.tensors, self._places[segment.start]
        needs = tuple(
            (before[tensor_of[need]][side], side, need) for side, need in segment.reads.tolist()
        )
        new, key = self._stretch(segment.start, segment.stop)
        made = [NONE] * (2 * len(new))  # also of one of no size, of which neither has anything
        for side, number in segment.leaves.tolist():
            made[2 * new[tensor_of[number]] + side] = number
        self._ways[id(segment)] = way = _Way(needs, tuple(made), key)
        return way

    def _stretch(self, start: int, stop: int) -> tuple[dict[str, int], itemgetter[Any] | None]:
        """What chains from one point to another make, numbered, and what takes the next key."""
        if (start, stop) not in self._stretches:
            before, after = self._places[start], self._live[stop]
            made = [name for name in after if name not in before]
            # Behind what was held stands what is made, on the CPU and the GPU, tensor by tensor.
            first = 2 * len(before)
            places = dict(before)
            for at, name in enumerate(made):
                places[name] = first + 2 * at, first + 2 * at + 1
            getter = _getter([place for name in after for place in places[name]])
            self._stretches[start, stop] = {name: at for at, name in enumerate(made)}, getter
        return self._stretches[start, stop]

    def _need(self, side: int, mine: int, need: int) -> tuple[int, list[Move]]:
        """What a processor holds after it needed a region, and the transfers that took.

        Regions are of one tensor, by number.
        """
        asked = (side, mine, need)
        if asked not in self._needed:
            self._needed[asked] = self._lacking(side, mine, need)
        return self._needed[asked]

    def _lacking(self, side: int, mine: int, need: int) -> tuple[int, list[Move]]:
        """As `codl.lower.program.lacking` has it."""
        regions, tensor = self._regions, self._regions.tensors[need]
        held, wanted = regions.boxes[mine], regions.boxes[need]
        if all(map(ge, held, wanted)):
            return mine, []
        shape = self._network.shapes[tensor]
        if self._sharing == "gather":
            wanted = boxes.box(Region.whole(shape))
        joined = tuple(map(max, held, wanted))
        way = WAYS[PROCESSORS[side]]
        moves = [self._move((way, one)) for one in boxes.added(held, joined, shape.w)]
        return regions.one(tensor, joined), moves

    def _move(self, what: Moved) -> Move:
        if what not in self._moves:
            (self._moves[what],) = priced(self._cost, [what])
        return self._moves[what]


def _getter(places: Sequence[int]) -> itemgetter[Any] | None:
    """Takes a tuple of these places; None where there are none. (There are always two or more.)"""
    return itemgetter(*places) if places else None


def _live(segments: Segments) -> list[tuple[str, ...]]:
    """At every point between layers, the tensors that are there and still read."""
    made = dict.fromkeys(segments.last_reader, 0)
    made |= {layer.output: at + 1 for at, layer in enumerate(segments.network.layers)}
    return [
        tuple(sorted(n for n, last in segments.last_reader.items() if made[n] <= at <= last))
        for at in range(len(segments.starting) + 1)
    ]
