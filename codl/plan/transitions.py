"""Transitions between chains of a search: tensors held, transfers, and when processors are free.

A state is when each processor is done with what it was given, and what it holds of every tensor
that is still read.
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

#: What the CPU and the GPU hold of each tensor that is still read, by the numbers of regions.
ResidentRegions: TypeAlias = tuple[int, ...]


class RegionTransfer(NamedTuple):
    """What a processor holds of a tensor once it has a region that it needed, and what that took.

    `to_cpu` of the transfers go to the CPU; `copies` to other storages on the GPU take `copies_ms`
    in all.
    """

    held: int
    transfers: tuple[TransferCost, ...] = ()
    to_cpu: int = 0
    copies: int = 0
    copies_ms: float = 0.0


class PreChainTransfers(NamedTuple):
    """Transfers needed before a chain, given the regions already resident.

    `launches_ms` is what enqueueing them and the chain takes, `copies_ms` what copies on the GPU
    take. `held` are the regions resident afterwards of what the chain needs and makes.
    """

    transfers: tuple[TransferCost, ...]
    launches_ms: float
    copies_ms: float
    held: ResidentRegions


class ChainEffect(NamedTuple):
    """What chains that are alike do to what is held.

    `needs` are the processors and the regions' numbers of what they need, and `held` takes what is
    held of that from the resident; `made` are the numbers of what they leave. `exchanges` are those
    that are known, by what was held; `next` takes the next resident from the last ones and an
    exchange's.
    """

    needs: tuple[tuple[int, int], ...]
    held: Callable[[ResidentRegions], ResidentRegions]
    made: tuple[int, ...]
    next: Callable[[ResidentRegions], ResidentRegions]
    exchanges: dict[ResidentRegions, PreChainTransfers]


class Transitions:
    """From one state over a chain to the next, for the chains of one network."""

    def __init__(self, costs: ChainCosts, sharing: Sharing) -> None:
        self.costs, self.network = costs, costs.network
        self._cost, self._sharing, self._regions = costs.cost, sharing, costs.regions
        self._signals = costs.cost.signals
        self._live = costs.live
        #: The places in the resident of what the CPU and the GPU have of each tensor, by point.
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
        self._results = {
            name: self._regions.one(shape, box(Region.whole(shape))) for name, shape in shapes
        }
        #: By the rows of chains that are alike.
        self._changes: dict[tuple[Chosen, int, int], ChainEffect] = {}
        self._supplies: dict[tuple[int, int, int], RegionTransfer] = {}
        self._launches_ms: dict[int, float] = {}
        self._transfer_costs: dict[Move, TransferCost] = {}

    def after(
        self, clocks: Pair, resident: ResidentRegions, candidate: CandidateChain
    ) -> tuple[Pair, ResidentRegions]:
        """The clocks after a chain, and what is then held of all that is still read."""
        change = self._changes.get(candidate.rows) or self._change(candidate)
        held = change.held(resident)
        exchange = change.exchanges.get(held) or self._exchange(change, held, candidate)
        transfers, launches_ms, copies_ms, now = exchange
        begin_ms, works = self._signals.first_launch_ms, candidate.work_ms
        clocks = after_stage(clocks, transfers, launches_ms, works, copies_ms, begin_ms)
        return clocks, change.next(resident + now)

    def _exchange(self, change: ChainEffect, held: ResidentRegions, candidate: CandidateChain) -> PreChainTransfers:
        """What happens before chains that are alike where that is held of what they need."""
        supplies = [
            self.supply(side, held_region, need)
            for held_region, (side, need) in zip(held, change.needs, strict=True)
        ]
        now = (*(supply.held for supply in supplies), *change.made)
        exchange = PreChainTransfers(*self._enqueued(supplies, candidate.launches), now)
        change.exchanges[held] = exchange
        return exchange

    def stage_ms(
        self, clocks: Pair, supplies: Sequence[RegionTransfer], candidate: CandidateChain | None = None
    ) -> Pair:
        """The clocks after an exchange and, where there is one, a chain."""
        works, launches = (candidate.work_ms, candidate.launches) if candidate else (START, 0)
        transfers, launches_ms, copies_ms = self._enqueued(supplies, launches)
        begin_ms = self._signals.first_launch_ms
        return after_stage(clocks, transfers, launches_ms, works, copies_ms, begin_ms)

    def _enqueued(
        self, supplies: Sequence[RegionTransfer], launches: int
    ) -> tuple[tuple[TransferCost, ...], float, float]:
        """The transfers of an exchange, what enqueueing them and a chain takes, and copies."""
        transfers: list[TransferCost] = []
        count, copies_ms = launches, 0.0
        for supply in supplies:
            transfers += supply.transfers
            count += supply.copies + (self._signals.launches - 1) * supply.to_cpu
            copies_ms += supply.copies_ms
        return tuple(transfers), self.launches_ms(count + len(transfers)), copies_ms

    def end_ms(self, clocks: Pair, resident: ResidentRegions) -> float:
        """When the results lie whole with the CPU."""
        supplies = []
        for name, whole in self._results.items():
            place, _ = self._places[-1][name]
            supplies.append(self.supply(0, resident[place], whole))
        return max(self.stage_ms(clocks, supplies))

    def launches_ms(self, count: int) -> float:
        if count not in self._launches_ms:
            self._launches_ms[count] = self._cost.launches_ms(count)
        return self._launches_ms[count]

    def supply(self, side: int, held: int, need: int) -> RegionTransfer:
        """What a processor that holds a region of a tensor does to have another, by number."""
        asked = (side, held, need)
        if asked not in self._supplies:
            self._supplies[asked] = self._supply(side, held, need)
        return self._supplies[asked]

    def _supply(self, side: int, held: int, need: int) -> RegionTransfer:
        regions, shape = self._regions, self._regions.wholes[need]
        needed = regions.region(need)
        mine = regions.region(held) if held != NONE else None
        joined, missing = missing_regions(shape, mine, needed, self._sharing)
        way = WAYS[PROCESSORS[side]]
        transfers = tuple(self._transfer((way, region.shape(shape))) for region in missing)
        now = regions.one(shape, box(joined)) if missing else held
        if side == 0:
            return RegionTransfer(now, transfers, len(transfers))
        kept, copies, measured = self.costs.orders.copies(regions.notes[held], regions.notes[need])
        copies_ms = 0.0
        if measured:
            copies_ms = measured * self._cost.sharing_ms("relayout", needed.shape(shape))
        return RegionTransfer(regions.noted(now, kept), transfers, 0, copies, copies_ms)

    def _transfer(self, move: Move) -> TransferCost:
        if move not in self._transfer_costs:
            parts = self._cost.transfer_parts(*move)
            self._transfer_costs[move] = TransferCost.of(move[0], parts)
        return self._transfer_costs[move]

    def _change(self, candidate: CandidateChain) -> ChainEffect:
        """What a chain does to what is held; noted for all that are alike."""
        start, stop = candidate.start, candidate.stop
        before, live = self._places[start], self._live[stop]
        name_of = self.costs.tensor
        needs = [(name_of(start, seen), side, need) for seen, side, need in candidate.reads]
        new = {name: 2 * at for at, name in enumerate(n for n in live if n not in before)}
        made = [NONE] * (2 * len(new))  # also of one of no size, of which neither has anything
        for seen, side, number in candidate.leaves:
            made[new[name_of(start, seen)] + side] = number
        # Behind what was held stands what is held of what was needed, and then what is made.
        first = 2 * len(before)
        at_needs = [before[name][side] for name, side, _ in needs]
        now = list(range(first))
        for at, place in enumerate(at_needs):
            now[place] = first + at
        first += len(needs)
        places = {name: (now[cpu], now[gpu]) for name, (cpu, gpu) in before.items()}
        places |= {name: (first + at, first + at + 1) for name, at in new.items()}
        change = ChainEffect(
            tuple((side, need) for _, side, need in needs),
            _taking(at_needs),
            tuple(made),
            _taking([place for name in live for place in places[name]]),
            {},
        )
        self._changes[candidate.rows] = change
        return change

    def prefetch(self, candidates: Sequence[CandidateChain]) -> None:
        """Predict all that may have to move between any two chains, in one batch.

        A search meets a few hundred shapes of regions, over and over. To predict them where they
        are met would be as many small batches, each of which costs as much as a hundred shapes do.
        What a third reader still lacks is predicted when the search meets it.
        """
        if self._sharing == "gather":
            return
        made, names, all_boxes = len(self.costs.makers), self.costs.tensors, self._regions.boxes
        #: By processor and tensor, the numbers of the regions that chains leave, and read.
        left: dict[tuple[int, int], set[int]] = {}
        read: dict[tuple[int, int], set[int]] = {
            (0, names.index(name)): {number} for name, number in self._results.items()
        }
        for candidate in candidates:
            start = candidate.start
            for regions, rows in ((left, candidate.leaves), (read, candidate.reads)):
                for seen, side, number in rows:
                    tensor = start + seen if seen < made else seen - made
                    regions.setdefault((side, tensor), set()).add(number)
        # For tensors of one width alike: a network has few widths and many tensors.
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


def _taking(places: Sequence[int]) -> Callable[[ResidentRegions], ResidentRegions]:
    """What takes these places out of resident."""
    if len(places) > 1:
        getter: Callable[[ResidentRegions], ResidentRegions] = itemgetter(*places)
        return getter
    return lambda resident: tuple(resident[place] for place in places)
