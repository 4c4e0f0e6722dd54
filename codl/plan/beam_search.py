"""Beam search for the chains of a plan with the least predicted latency.

A state has the clock of each processor, and the region of each live tensor that each processor
holds. A tensor is live while a later layer reads it. `Transitions.after` gives the state after a
chain, with the transfers before the chain; `after_stage` moves the clocks.

A label is a state at a point between two layers, and the chains that lead to it. Of two labels with
equal regions, one that is later on both clocks is dropped. At each point the best labels are
extended: eight in large searches, and 64 in small ones, where the search is mostly exact.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from codl.ir import Region, Shape
from codl.ir.plan import Sharing
from codl.ir.types import PROCESSORS, Direction
from codl.lower.partition import WAYS, Residency, missing_regions
from codl.plan.chain_costs import CandidateChain, ChainCosts, Chosen
from codl.plan.cost_model import Milliseconds, Pair
from codl.plan.parts import NONE, Numbers, box, key_factors, missing_sizes

#: The labels that are extended at a point, in networks with at most `FEW` candidate chains and in
#: larger ones.
WIDEST, NARROW, FEW = 64, 8, 200
#: The regions, by number, of each live tensor that the CPU and the GPU hold: cpu, gpu, cpu, gpu,
#: ...
ResidentRegions: TypeAlias = tuple[int, ...]
#: Both clocks at the start of an inference.
START: Pair = (0.0, 0.0)


class TransferCost(NamedTuple):
    """Milliseconds of a transfer: the GPU's work, the delay until the CPU's work, that work."""

    way: Direction
    gpu_ms: float
    wait_ms: float
    cpu_ms: float

    @classmethod
    def of(cls, way: Direction, parts: Mapping[str, float]) -> TransferCost:
        """From the parts of data sharing by name; the GPU maps the memory that it reads."""
        kernel, mapped = parts.get("transform", 0.0), parts.get("map", 0.0)
        copied = parts.get("copy", 0.0) + parts.get("unmap", 0.0)
        if way == "to_cpu":
            return cls(way, kernel, parts.get("sync", 0.0) + mapped, copied)
        return cls(way, kernel + mapped, 0.0, copied)


def after_stage(
    clocks: Pair,
    transfers: Sequence[TransferCost],
    launches_ms: float = 0.0,
    works: Pair = START,
    copies_ms: float = 0.0,
) -> Pair:
    """The clocks of both processors after a stage: an exchange and the shards of a chain.

    The order of events is that of `codl.lower.lowering`. The GPU's transfers to the CPU run right
    after its previous shard. The CPU sends its transfers to the GPU, enqueues the GPU's kernels,
    waits for the GPU's transfers, and computes. A chain waits only for the data that it needs.

    `clocks` are milliseconds since the start of the inference. Enqueueing takes the CPU
    `launches_ms`; the shards take `works`, and copies between storages take the GPU `copies_ms`.
    """
    cpu, gpu = clocks
    arrivals = []
    for way, gpu_ms, wait_ms, cpu_ms in transfers:
        if way == "to_cpu":
            gpu += gpu_ms
            arrivals.append((gpu + wait_ms, cpu_ms))
    for way, gpu_ms, _, cpu_ms in transfers:
        if way == "to_gpu":
            cpu += cpu_ms
            gpu = max(gpu, cpu) + gpu_ms
    if works[1] or copies_ms:
        gpu = max(gpu, cpu) + copies_ms + works[1]
    cpu += launches_ms
    for arrival, cpu_ms in arrivals:
        cpu = max(cpu, arrival) + cpu_ms
    return cpu + works[0], gpu


class RegionTransfer(NamedTuple):
    """The transfers that bring a needed region of a tensor to a processor.

    `resident` is the region that the processor then holds, and `copies` the number of copies to
    other storages on the GPU, which take `copies_ms`.
    """

    resident: int
    transfers: tuple[TransferCost, ...] = ()
    copies: int = 0
    copies_ms: float = 0.0


class PreChainTransfers(NamedTuple):
    """The transfers before a chain, given the regions that are already resident.

    `launches_ms` is the CPU's time to enqueue them and the chain, and `copies_ms` the GPU's time
    for copies between storages. `resident` are the regions of the chain's inputs and outputs
    afterwards.
    """

    transfers: tuple[TransferCost, ...]
    launches_ms: float
    copies_ms: float
    resident: ResidentRegions


class ChainEffect(NamedTuple):
    """Effect of a chain on the resident regions, shared by equal chains at any place.

    `needs` are the (processor, region) pairs that the chain reads, and `made` the regions that it
    writes. `select` takes the resident regions of the tensors that it reads. `merge` takes the next
    resident regions from the old ones followed by those of `PreChainTransfers`. `before` caches the
    transfers by the selected regions.
    """

    needs: tuple[tuple[int, int], ...]
    select: Callable[[ResidentRegions], ResidentRegions]
    made: tuple[int, ...]
    merge: Callable[[ResidentRegions], ResidentRegions]
    before: dict[ResidentRegions, PreChainTransfers]


class Transitions:
    """Computes the state after a chain, for the chains of one network."""

    def __init__(self, costs: ChainCosts, sharing: Sharing) -> None:
        self.costs, self.network = costs, costs.network
        self._cost, self._sharing, self._regions = costs.cost, sharing, costs.regions
        fresh = Residency(self.network, sharing)
        self.start: ResidentRegions = tuple(
            self._regions.one(self.network.shapes[name], box(fresh.held[side].get(name)))
            for name in costs.live[0]
            for side in PROCESSORS
        )
        shapes = ((name, self.network.shapes[name]) for name, _ in self.network.outputs.values())
        #: The region number of each whole output.
        self.results = {
            name: self._regions.one(shape, box(Region.whole(shape))) for name, shape in shapes
        }
        #: By `CandidateChain.rows`, which equal chains share.
        self._effects: dict[tuple[Chosen, int, int], ChainEffect] = {}
        self._region_transfers: dict[tuple[int, int, int], RegionTransfer] = {}
        #: The CPU's milliseconds to enqueue a number of kernels, and the parts of a transfer.
        self.launches_ms = cache(costs.cost.launches_ms)
        self._parts = cache(costs.cost.transfer_parts)

    def after(
        self, clocks: Pair, resident: ResidentRegions, candidate: CandidateChain
    ) -> tuple[Pair, ResidentRegions]:
        """The clocks and the resident regions after a chain."""
        effect = self._effects.get(candidate.rows) or self._effect(candidate)
        selected = effect.select(resident)
        before = effect.before.get(selected)
        if before is None:
            held = zip(selected, effect.needs, strict=True)
            moves = [self.region_transfer(side, region, need) for region, (side, need) in held]
            before = self._enqueued(moves, candidate.launches, effect.made)
            effect.before[selected] = before
        transfers, launches_ms, copies_ms, now = before
        clocks = after_stage(clocks, transfers, launches_ms, candidate.work_ms, copies_ms)
        return clocks, effect.merge(resident + now)

    def stage_ms(
        self, clocks: Pair, moves: Sequence[RegionTransfer], candidate: CandidateChain | None = None
    ) -> Pair:
        works, launches = (candidate.work_ms, candidate.launches) if candidate else (START, 0)
        transfers, launches_ms, copies_ms, _ = self._enqueued(moves, launches)
        return after_stage(clocks, transfers, launches_ms, works, copies_ms)

    def _enqueued(
        self, moves: Sequence[RegionTransfer], launches: int, made: ResidentRegions = ()
    ) -> PreChainTransfers:
        """All transfers before a chain of some launches that writes the regions `made`."""
        transfers: list[TransferCost] = []
        count, copies_ms = launches, 0.0
        for move in moves:
            transfers += move.transfers
            count += move.copies
            copies_ms += move.copies_ms
        launches_ms = self.launches_ms(count + len(transfers))
        now = (*(move.resident for move in moves), *made)
        return PreChainTransfers(tuple(transfers), launches_ms, copies_ms, now)

    def end_ms(self, clocks: Pair, resident: ResidentRegions) -> float:
        """The time at which the CPU holds all results."""
        moves = []
        for name, whole in self.results.items():
            place = 2 * self.costs.live[-1].index(name)
            moves.append(self.region_transfer(0, resident[place], whole))
        return max(self.stage_ms(clocks, moves))

    def region_transfer(self, side: int, resident: int, need: int) -> RegionTransfer:
        """How a processor that holds one region of a tensor gets another; regions are numbers."""
        key = (side, resident, need)
        if key not in self._region_transfers:
            self._region_transfers[key] = self._region_transfer(side, resident, need)
        return self._region_transfers[key]

    def _region_transfer(self, side: int, resident: int, need: int) -> RegionTransfer:
        regions, shape = self._regions, self._regions.wholes[need]
        needed = regions.region(need)
        mine = regions.region(resident) if resident != NONE else None
        joined, missing = missing_regions(shape, mine, needed, self._sharing)
        way = WAYS[PROCESSORS[side]]
        parts = (self._parts(way, region.shape(shape)) for region in missing)
        transfers = tuple(TransferCost.of(way, each) for each in parts)
        now = regions.one(shape, box(joined)) if missing else resident
        if side == 0:
            return RegionTransfer(now, transfers)
        kept, copies, measured = self.costs.orders.copies(
            regions.notes[resident], regions.notes[need]
        )
        copies_ms = 0.0
        if measured:
            copies_ms = measured * self._cost.sharing_ms("relayout", needed.shape(shape))
        return RegionTransfer(regions.noted(now, kept), transfers, copies, copies_ms)

    def _effect(self, candidate: CandidateChain) -> ChainEffect:
        start, stop = candidate.start, candidate.stop
        live, named = self.costs.live[stop], self.costs.named
        before = {name: (2 * at, 2 * at + 1) for at, name in enumerate(self.costs.live[start])}
        needs = named(start, candidate.reads)
        new = {name: 2 * at for at, name in enumerate(n for n in live if n not in before)}
        made = [NONE] * (2 * len(new))  # a tensor of size 0 stays `NONE` on both processors
        for name, side, number in named(start, candidate.writes):
            made[new[name] + side] = number
        # `merge` indexes: the old resident regions, the regions of the needs, the made regions.
        first = 2 * len(before)
        at_needs = [before[name][side] for name, side, _ in needs]
        now = list(range(first))
        for at, place in enumerate(at_needs):
            now[place] = first + at
        first += len(needs)
        places = {name: (now[cpu], now[gpu]) for name, (cpu, gpu) in before.items()}
        places |= {name: (first + at, first + at + 1) for name, at in new.items()}
        effect = ChainEffect(
            tuple((side, need) for _, side, need in needs),
            _selector(at_needs),
            tuple(made),
            _selector([place for name in live for place in places[name]]),
            {},
        )
        self._effects[candidate.rows] = effect
        return effect

    def prefetch(self, candidates: Sequence[CandidateChain]) -> None:
        """Predict the transfers that may be needed between any two chains, in one batch.

        A search meets a few hundred shapes of regions many times. Small batches are slow: each
        costs as much as a hundred shapes. Regions that only a third reader needs are predicted
        later.
        """
        if self._sharing == "gather":
            return
        made, names, all_boxes = len(self.costs.makers), self.costs.tensors, self._regions.boxes
        #: By (processor, tensor), the numbers of the regions that chains write, and that they read.
        written: dict[tuple[int, int], set[int]] = {}
        read: dict[tuple[int, int], set[int]] = {
            (0, names.index(name)): {number} for name, number in self.results.items()
        }
        for candidate in candidates:
            start = candidate.start
            for regions, rows in ((written, candidate.writes), (read, candidate.reads)):
                for at, side, number in rows:
                    tensor = start + at if at < made else at - made
                    regions.setdefault((side, tensor), set()).add(number)
        # Tensors of one width share predictions: a network has few widths and many tensors.
        sizes: dict[tuple[int, int], list[Numbers]] = {}
        seen_pairs: set[tuple[int, int, bytes, bytes]] = set()
        for (side, tensor), needed in read.items():
            shape = self.network.shapes[names[tensor]]
            needs = np.array([*{all_boxes[number]: None for number in needed}], np.int64)
            mine = {all_boxes[number]: None for number in (NONE, *written.get((side, tensor), ()))}
            held = np.array([*mine], np.int64)
            if len(self.network.readers(names[tensor])) > 1:
                both = np.maximum(held[:, None], needs)
                held = np.concatenate([held, both.reshape(-1, 6)])
                held = held[np.unique(held @ key_factors(shape), return_index=True)[1]]
            pairs = (side, shape.w, held.tobytes(), needs.tobytes())
            if pairs not in seen_pairs:
                seen_pairs.add(pairs)
                sizes.setdefault((side, shape.w), []).append(missing_sizes(held, needs))
        self._cost.prefetch_sharing(
            (WAYS[PROCESSORS[side]], Shape(n, c, h, width))
            for (side, width), missing in sizes.items()
            # A set is several times as fast as `np.unique` along an axis.
            for n, c, h in set(map(tuple, np.concatenate(missing).tolist()))
        )


def _selector(places: Sequence[int]) -> Callable[[ResidentRegions], ResidentRegions]:
    """A function that selects these places of a tuple."""
    if len(places) > 1:  # several times as fast
        getter: Callable[[ResidentRegions], ResidentRegions] = itemgetter(*places)
        return getter
    return lambda regions: tuple(regions[place] for place in places)


class Label(NamedTuple):
    """One way to execute the network up to a point: `candidate` after the label `before`."""

    clocks: Pair
    resident: ResidentRegions
    before: Label | None = None
    candidate: CandidateChain | None = None

    @property
    def end_ms(self) -> float:
        return max(self.clocks)

    def beats(self, other: Label) -> bool:
        """True where no clock is later than that of another label."""
        return self.clocks[0] <= other.clocks[0] and self.clocks[1] <= other.clocks[1]

    def chains(self) -> tuple[CandidateChain, ...]:
        chains: list[CandidateChain] = []
        label: Label | None = self
        while label is not None and label.candidate is not None:
            chains.append(label.candidate)
            label = label.before
        return tuple(chains[::-1])


@dataclass(frozen=True)
class Best:
    """The chains of the fastest plan; none where no chains lead through the network.

    `exact` is True where labels were dropped only because another one was at least as good.
    """

    chains: tuple[CandidateChain, ...]
    latency_ms: float
    exact: bool


def fastest(
    costs: ChainCosts,
    starting: Sequence[Sequence[CandidateChain]],
    sharing: Sharing = "missing",
    *,
    widest: int | None = None,
) -> Best:
    """The fastest sequence of candidate chains, which `starting` lists by their first layer.

    `widest` labels are extended at each point.
    """
    transitions = Transitions(costs, sharing)
    transitions.prefetch([candidate for at in starting for candidate in at])
    widest = widest or (WIDEST if sum(map(len, starting)) <= FEW else NARROW)
    enqueues_at_once = costs.cost.launches_ms(1) == 0
    #: By point, True where candidate chains lead from it to the network's end.
    leads_on = [False] * len(starting) + [True]
    for at in reversed(range(len(starting))):
        leads_on[at] = any(leads_on[candidate.stop] for candidate in starting[at])
    points = [_Point(widest) for _ in leads_on]
    points[0].keep(Label(START, transitions.start))
    exact = True
    for at, nexts in enumerate(starting):
        labels = [label for kept in points[at].labels.values() for label in kept]
        exact = exact and len(labels) <= widest
        reaching = [candidate for candidate in nexts if leads_on[candidate.stop]]
        works_ms = _works_ms(reaching, transitions)
        for label in sorted(labels, key=lambda x: (x.end_ms, min(x.clocks)))[:widest]:
            for end_ms, number in _earliest(label, works_ms):
                candidate = reaching[number]
                point = points[candidate.stop]
                if end_ms > point.latest_ms:
                    exact = False
                    continue
                clocks, resident = transitions.after(label.clocks, label.resident, candidate)
                clocks = _waited(clocks, resident, enqueues_at_once)
                if max(clocks) > point.latest_ms:
                    exact = False
                else:
                    point.keep(Label(clocks, resident, label, candidate))
        points[at].labels.clear()
    ends = [
        (transitions.end_ms(label.clocks, label.resident), label)
        for kept in points[-1].labels.values()
        for label in kept
    ]
    if not ends:
        return Best((), inf, exact)
    latency_ms, label = min(ends, key=itemgetter(0))
    return Best(label.chains(), latency_ms, exact)


class _Point:
    """The labels at a point, and the latest time at which a label can still be extended."""

    def __init__(self, widest: int) -> None:
        self.labels: dict[ResidentRegions, list[Label]] = {}
        self._ends: list[float] = []
        self._widest = widest

    @property
    def latest_ms(self) -> float:
        """Labels that end later than this are not among the `widest` best ones."""
        return inf if len(self._ends) < self._widest else self._ends[self._widest - 1]

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


def _works_ms(candidates: Sequence[CandidateChain], transitions: Transitions) -> Milliseconds:
    """The least milliseconds of each processor for each chain, shaped (2, chains).

    The CPU also enqueues the GPU's kernels.
    """
    works = np.array([candidate.work_ms for candidate in candidates], np.float64).reshape(-1, 2)
    launches_ms = [transitions.launches_ms(candidate.launches) for candidate in candidates]
    return np.stack([works[:, 0] + np.array(launches_ms), works[:, 1]])


def _earliest(label: Label, works_ms: Milliseconds) -> Iterable[tuple[float, int]]:
    """A lower bound of the end of each chain after a label, and the chain's number.

    The chain that can end first comes first; the search mostly looks at the first few only.
    """
    cpu, gpu = label.clocks
    works_on = (max(gpu, cpu) + works_ms[1]) * (works_ms[1] > 0)
    ends = np.maximum(cpu + works_ms[0], np.maximum(works_on, gpu))
    order = np.argsort(ends, kind="stable")
    return zip(ends[order].tolist(), order.tolist(), strict=True)


def _waited(clocks: Pair, resident: ResidentRegions, enqueues_at_once: bool) -> Pair:
    """Advance the clock of a processor without resident regions to the other one's clock.

    It has no work before then, except that the CPU may have to enqueue the GPU's next kernels.
    """
    cpu, gpu = clocks
    if enqueues_at_once and not any(resident[0::2]):
        return max(cpu, gpu), gpu
    if not any(resident[1::2]):
        return cpu, max(cpu, gpu)
    return clocks
