"""State transitions of the search: from before a chain to after it.

A state has the clock of each processor, and the region of each live tensor that each processor
holds. A tensor is live while a later layer reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from codl.ir import Region, Shape
from codl.ir.plan import Sharing
from codl.ir.types import PROCESSORS
from codl.lower.partition import WAYS, Residency, missing_regions
from codl.plan.chain_costs import CandidateChain, ChainCosts, Chosen
from codl.plan.cost_model import Move, Pair
from codl.plan.price import START, TransferCost, after_stage
from codl.plan.region_array import NONE, Numbers, box, missing_sizes, weights_of

#: The regions, by number, of each live tensor that the CPU and the GPU hold: cpu, gpu, cpu, gpu,
#: ...
ResidentRegions: TypeAlias = tuple[int, ...]


class RegionTransfer(NamedTuple):
    """The transfers that bring a needed region of a tensor to a processor.

    `resident` is the region that the processor then holds, `to_cpu` the number of transfers to the
    CPU, and `copies` the number of copies to other storages on the GPU, which take `copies_ms`.
    """

    resident: int
    transfers: tuple[TransferCost, ...] = ()
    to_cpu: int = 0
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
    leaves. `select` takes the resident regions of the tensors that it reads. `merge` takes the next
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
        self._signals = costs.cost.signals
        self._live = costs.live
        #: By point, the places of each tensor's two regions in `ResidentRegions`.
        self._places = [
            {name: (2 * at, 2 * at + 1) for at, name in enumerate(names)} for names in self._live
        ]
        fresh = Residency(self.network, sharing)
        self.start: ResidentRegions = tuple(
            self._regions.one(self.network.shapes[name], box(fresh.held[side].get(name)))
            for name in self._live[0]
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
        self._launches_ms: dict[int, float] = {}
        self._transfer_costs: dict[Move, TransferCost] = {}

    def after(
        self, clocks: Pair, resident: ResidentRegions, candidate: CandidateChain
    ) -> tuple[Pair, ResidentRegions]:
        """The clocks and the resident regions after a chain."""
        effect = self._effects.get(candidate.rows) or self._effect(candidate)
        selected = effect.select(resident)
        before = effect.before.get(selected) or self._before(effect, selected, candidate)
        transfers, launches_ms, copies_ms, now = before
        clocks = after_stage(clocks, transfers, launches_ms, candidate.work_ms, copies_ms)
        return clocks, effect.merge(resident + now)

    def _before(
        self, effect: ChainEffect, selected: ResidentRegions, candidate: CandidateChain
    ) -> PreChainTransfers:
        """The transfers before a chain whose inputs are resident as `selected`."""
        moves = [
            self.region_transfer(side, region, need)
            for region, (side, need) in zip(selected, effect.needs, strict=True)
        ]
        now = (*(move.resident for move in moves), *effect.made)
        before = PreChainTransfers(*self._enqueued(moves, candidate.launches), now)
        effect.before[selected] = before
        return before

    def stage_ms(
        self, clocks: Pair, moves: Sequence[RegionTransfer], candidate: CandidateChain | None = None
    ) -> Pair:
        """The clocks after some transfers and the chain, if any."""
        works, launches = (candidate.work_ms, candidate.launches) if candidate else (START, 0)
        transfers, launches_ms, copies_ms = self._enqueued(moves, launches)
        return after_stage(clocks, transfers, launches_ms, works, copies_ms)

    def _enqueued(
        self, moves: Sequence[RegionTransfer], launches: int
    ) -> tuple[tuple[TransferCost, ...], float, float]:
        """The transfers, the milliseconds to enqueue them and a chain, and those of copies."""
        transfers: list[TransferCost] = []
        count, copies_ms = launches, 0.0
        for move in moves:
            transfers += move.transfers
            count += move.copies + (self._signals.launches - 1) * move.to_cpu
            copies_ms += move.copies_ms
        return tuple(transfers), self.launches_ms(count + len(transfers)), copies_ms

    def end_ms(self, clocks: Pair, resident: ResidentRegions) -> float:
        """The time at which the CPU holds all results."""
        moves = []
        for name, whole in self.results.items():
            place, _ = self._places[-1][name]
            moves.append(self.region_transfer(0, resident[place], whole))
        return max(self.stage_ms(clocks, moves))

    def launches_ms(self, count: int) -> float:
        if count not in self._launches_ms:
            self._launches_ms[count] = self._cost.launches_ms(count)
        return self._launches_ms[count]

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
        transfers = tuple(self._transfer((way, region.shape(shape))) for region in missing)
        now = regions.one(shape, box(joined)) if missing else resident
        if side == 0:
            return RegionTransfer(now, transfers, len(transfers))
        kept, copies, measured = self.costs.orders.copies(
            regions.notes[resident], regions.notes[need]
        )
        copies_ms = 0.0
        if measured:
            copies_ms = measured * self._cost.sharing_ms("relayout", needed.shape(shape))
        return RegionTransfer(regions.noted(now, kept), transfers, 0, copies, copies_ms)

    def _transfer(self, move: Move) -> TransferCost:
        if move not in self._transfer_costs:
            parts = self._cost.transfer_parts(*move)
            self._transfer_costs[move] = TransferCost.of(move[0], parts)
        return self._transfer_costs[move]

    def _effect(self, candidate: CandidateChain) -> ChainEffect:
        """The effect of a chain on the resident regions, cached for equal chains."""
        start, stop = candidate.start, candidate.stop
        before, live = self._places[start], self._live[stop]
        name_of = self.costs.tensor
        needs = [(name_of(start, seen), side, need) for seen, side, need in candidate.reads]
        new = {name: 2 * at for at, name in enumerate(n for n in live if n not in before)}
        made = [NONE] * (2 * len(new))  # a tensor of size 0 stays `NONE` on both processors
        for seen, side, number in candidate.leaves:
            made[new[name_of(start, seen)] + side] = number
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
        #: By (processor, tensor), the numbers of the regions that chains leave, and that they read.
        left: dict[tuple[int, int], set[int]] = {}
        read: dict[tuple[int, int], set[int]] = {
            (0, names.index(name)): {number} for name, number in self.results.items()
        }
        for candidate in candidates:
            start = candidate.start
            for regions, rows in ((left, candidate.leaves), (read, candidate.reads)):
                for seen, side, number in rows:
                    tensor = start + seen if seen < made else seen - made
                    regions.setdefault((side, tensor), set()).add(number)
        # Tensors of one width share predictions: a network has few widths and many tensors.
        sizes: dict[tuple[int, int], list[Numbers]] = {}
        seen_pairs: set[tuple[int, int, bytes, bytes]] = set()
        for (side, tensor), needed in read.items():
            shape = self.network.shapes[names[tensor]]
            needs = np.array([*{all_boxes[number]: None for number in needed}], np.int64)
            mine = {all_boxes[number]: None for number in (NONE, *left.get((side, tensor), ()))}
            held = np.array([*mine], np.int64)
            if len(self.network.readers(names[tensor])) > 1:
                both = np.maximum(held[:, None], needs)
                held = np.concatenate([held, both.reshape(-1, 6)])
                held = held[np.unique(held @ weights_of(shape), return_index=True)[1]]
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
    if len(places) > 1:
        getter: Callable[[ResidentRegions], ResidentRegions] = itemgetter(*places)
        return getter
    return lambda regions: tuple(regions[place] for place in places)
