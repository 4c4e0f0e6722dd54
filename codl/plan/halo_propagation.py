"""Walks backwards from where chains end, all of a network at once: layer by layer, last to first.

The regions that a shard needs of a layer do not depend on where its chain begins. So one walk from
a chain's end, at one dimension and ratio, gives all chains that end there. What a walk needs of a
tensor stands in a row of that tensor's boxes, so that a layer is passed by all walks together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Network
from codl.plan import region_array as boxes
from codl.plan.region_array import Boxes, Numbering, Numbers
from codl.plan.subop_table import DIMS, Parts

#: A chain on both processors computes at most so many times its rows.
MOST_OVERLAP = 1.15
#: By draft, tensor and side, which region is read or left.
Held = NDArray[np.int64]


class Way(NamedTuple):
    """Where chains end, how they are cut, and where they may begin."""

    stop: int
    dim: Dim
    step: int
    starts: frozenset[int]


@dataclass(frozen=True)
class Drafts:
    """Chains before they are predicted, as columns (drafts), in the order of their ways.

    `way` is the number of each one's way and `start` its first layer; `parts` (layers, ways, 2) the
    parts on the CPU and the GPU of each way's layers. `reads` and `leaves` are rows of a draft, a
    processor's number, and a region's, ordered by draft: what a shard needs from outside, and what
    it leaves for others.
    """

    ways: Sequence[Way]
    way: NDArray[np.int64]
    start: NDArray[np.int64]
    parts: Numbers
    reads: Held
    leaves: Held


class Walks:
    """Walks of a network; `numbering` counts the regions that their chains read and leave."""

    def __init__(
        self,
        network: Network,
        parts: Parts,
        last_reader: Mapping[str, int],
        ways: Sequence[Way],
        *,
        complete: bool,
    ) -> None:
        self._layers, self._parts, self._complete = network.layers, parts, complete
        self._last_reader, self._ways = last_reader, ways
        self.numbering = Numbering(network.shapes)
        count = len(ways)
        self._stop = np.array([way.stop for way in ways], np.int64)
        self._first = np.array([min(way.starts) for way in ways], np.int64)
        self._dim = np.array([DIMS.index(way.dim) for way in ways], np.int64)
        steps = np.array([way.step for way in ways], np.int64)
        self._cut = self._dim * (parts.steps + 1) + steps
        self._goes_on = np.ones(count, bool)
        self._begins = np.zeros((len(self._layers), count), bool)
        for at, way in enumerate(ways):
            self._begins[list(way.starts), at] = True
        #: What every walk needs of tensors from before the layers that it has passed.
        self._needed: dict[str, Boxes] = {}
        self._numbers = np.zeros((len(self._layers), count, 2), np.int64)
        #: Rows of a layer, a way, a processor and a region.
        self._read: list[NDArray[np.int64]] = []
        self._left: list[NDArray[np.int64]] = []

    def drafts(self) -> Drafts:
        """The chains of all ways but those whose halo is too large."""
        for layer in reversed(range(int(self._stop.max(initial=0)))):
            self._pass(layer)
        begins = self._begins.T
        way, start = np.nonzero(begins[:, ::-1])
        start = len(self._layers) - 1 - start
        # Drafts of one way stand together, the shortest first.
        number = np.cumsum(begins[:, ::-1]).reshape(begins.shape)[:, ::-1] - 1
        behind = np.cumsum(begins.sum(axis=1))
        read, left = (np.concatenate([np.empty((0, 4), np.int64), *found])
                      for found in (self._read, self._left))  # fmt: skip
        reads = np.column_stack([number[read[:, 1], read[:, 0]], read[:, 2:]])
        # A layer's output is left by all chains of the way that begin at the layer or before it.
        first = number[left[:, 1], left[:, 0]] + ~begins[left[:, 1], left[:, 0]]
        counts = behind[left[:, 1]] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(left[:, 2:], counts, axis=0)
        leaves = np.column_stack([np.repeat(first, counts) + within, rows])
        reads, leaves = (rows[np.argsort(rows[:, 0], kind="stable")] for rows in (reads, leaves))
        return Drafts(self._ways, way, start, self._numbers, reads, leaves)

    def _pass(self, k: int) -> None:
        """All walks that pass a layer: what they compute of it, and what they need for that."""
        passing = np.flatnonzero(self._goes_on & (self._first <= k) & (k < self._stop))
        needed = self._needed.pop(self._layers[k].output, None)
        if not len(passing):
            return
        numbers = self._numbers_of(k, passing, needed)
        computed = self._parts.elements[numbers].sum(axis=1)
        most = MOST_OVERLAP * self._layers[k].op.output.elements
        if not self._complete and (computed > most).any():
            self._stop_at(k, passing[computed > most])
            goes_on = computed <= most
            passing, numbers = passing[goes_on], numbers[goes_on]
        self._numbers[k, passing] = numbers
        self._note_left(k, passing, numbers)
        needs = self._parts.needs[numbers]
        for at, name in enumerate(self._layers[k].inputs):
            if name not in self._needed:
                shape = (len(self._ways), 2, 6)
                self._needed[name] = np.full(shape, boxes.NOTHING, np.int64)
            own = self._needed[name]
            own[passing] = np.maximum(own[passing], needs[:, :, at])
        self._note_read(k, passing)

    def _numbers_of(self, k: int, passing: Numbers, needed: Boxes | None) -> Numbers:
        """The parts that walks compute of a layer: what they need, and what is the chain's."""
        op = self._parts.op_of[k]
        leaves = self._leaves(k, passing)
        shares = self._parts.shares(op)[self._cut[passing]]
        if needed is None:
            wanted = np.where(leaves[:, None, None], shares, boxes.NOTHING)
        else:
            wanted = needed[passing]
            np.maximum(wanted, shares, out=wanted, where=leaves[:, None, None])
        return self._parts.of(op, wanted, self._dim[passing])

    def _leaves(self, k: int, passing: Numbers) -> NDArray[np.bool_]:
        """Whether a layer's output is read behind the ends of chains."""
        found: NDArray[np.bool_] = self._last_reader[self._layers[k].output] >= self._stop[passing]
        return found

    def _stop_at(self, k: int, lost: Numbers) -> None:
        """Chains of these walks do not begin at a layer or before it."""
        self._goes_on[lost] = False
        self._begins[: k + 1, lost] = False

    def _note_left(self, k: int, passing: Numbers, numbers: Numbers) -> None:
        leaves = self._leaves(k, passing)
        if leaves.any():
            made = self._parts.boxes[numbers[leaves]]
            self._left += self._noted(k, self._layers[k].output, passing[leaves], made)

    def _note_read(self, k: int, passing: Numbers) -> None:
        """What the chains read that begin here."""
        begin = passing[self._begins[k, passing]]
        if len(begin):
            for name, needed in self._needed.items():
                self._read += self._noted(k, name, begin, needed[begin])

    def _noted(self, k: int, tensor: str, ways: Numbers, regions: Boxes) -> list[Held]:
        """Rows of a layer, a way, a processor and a region, of all but nothing."""
        way, side = np.nonzero(boxes.is_something(regions))
        if not len(way):
            return []
        numbers = self.numbering.of(tensor, regions[way, side])
        found = np.empty((len(way), 4), np.int64)
        found[:, 0], found[:, 1], found[:, 2], found[:, 3] = k, ways[way], side, numbers
        return [found]
