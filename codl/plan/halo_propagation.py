"""Backward region inference, from where chains end: all chains of a network, layer by layer.

The regions that a shard needs of a layer do not depend on where its chain begins. So one walk from
a chain's end, at one dimension and ratio, gives all chains that end there. What a walk needs of a
tensor stands in a row of that tensor's boxes, so that a layer is passed by all walks together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer
from codl.plan import region_array as boxes
from codl.plan.region_array import Boxes, Numbers
from codl.plan.subop_table import DIMS, SubOps

#: A chain on both processors computes at most this much more than its rows.
MOST_OVERLAP = 1.15


class Walk(NamedTuple):
    """Where chains end, how they are cut, and where they may begin.

    They end before the layer `stop`, and are cut at the ratio numbered `step`.
    """

    stop: int
    dim: Dim
    step: int
    starts: frozenset[int]


class ChainReads(NamedTuple):
    """What chains of some walks that begin at a layer read, boxes (tensors, walks, 2, 6).

    Tensors are in the order in which layers read them.
    """

    tensors: list[str]
    walks: Numbers
    needed: Boxes


class LayerPass(NamedTuple):
    """The walks that pass a layer, their parts of it (walks, 2), and whether its output is read
    behind their chains; and what those of them read whose chains begin here.

    `inputs` are the places and names of the layer's inputs, but for constants of its own.
    """

    layer: int
    inputs: Sequence[tuple[int, str]]
    walks: Numbers
    parts: Numbers
    leaves: NDArray[np.bool_]
    reads: ChainReads | None


class HaloPropagation:
    """Walks of a network, last layer to first.

    `begins` (layers, walks) says where chains begin; with `limited`, a chain whose halo is too
    large is left out. Constants that are `lone` are no part of what walks need.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        sub_ops: SubOps,
        last_reader: Mapping[str, int],
        lone: Collection[str],
        walks: Sequence[Walk],
        *,
        limited: bool,
    ) -> None:
        self._layers, self._sub_ops, self._limited = layers, sub_ops, limited
        self._last_reader, self._lone, self._count = last_reader, lone, len(walks)
        self._stop = np.array([walk.stop for walk in walks], np.int64)
        self._first = np.array([min(walk.starts) for walk in walks], np.int64)
        dims = np.array([DIMS.index(walk.dim) for walk in walks], np.int64)
        ratios = np.array([walk.step for walk in walks], np.int64)
        self._cut = dims * len(sub_ops.ratios) + ratios
        self._goes_on = np.ones(self._count, bool)
        self.begins = np.zeros((len(layers), self._count), bool)
        for at, walk in enumerate(walks):
            self.begins[list(walk.starts), at] = True
        #: What every walk needs of tensors from before the layers that it has passed, in the order
        #: in which those read them.
        self._needed: dict[str, Boxes] = {}

    def steps(self) -> list[LayerPass]:
        """Every layer that a walk passes, last to first."""
        steps = []
        for layer in reversed(range(int(self._stop.max(initial=0)))):
            step = self._pass(layer)
            if step is not None:
                steps.append(step)
        return steps

    def _pass(self, k: int) -> LayerPass | None:
        """All walks that pass a layer: what they compute of it, and what they need for that."""
        passing = np.flatnonzero(self._goes_on & (self._first <= k) & (k < self._stop))
        needed = self._needed.pop(self._layers[k].output, None)
        if not len(passing):
            return None
        leaves = self._last_reader[self._layers[k].output] >= self._stop[passing]
        parts = self._parts_of(k, passing, needed, leaves)
        computed = self._sub_ops.elements[parts].sum(axis=1)
        most = MOST_OVERLAP * self._layers[k].op.output.elements
        if self._limited and (computed > most).any():
            lost, stays = passing[computed > most], computed <= most
            self._goes_on[lost] = False
            self.begins[: k + 1, lost] = False
            passing, parts, leaves = passing[stays], parts[stays], leaves[stays]
        needs = self._sub_ops.needs[parts]
        inputs = [
            (at, name) for at, name in enumerate(self._layers[k].inputs) if name not in self._lone
        ]
        for at, name in inputs:
            if name not in self._needed:
                self._needed[name] = np.full((self._count, 2, 6), boxes.NOTHING, np.int64)
            own = self._needed[name]
            own[passing] = np.maximum(own[passing], needs[:, :, at])
        self._needed = {name: self._needed[name] for _, name in inputs} | self._needed
        reads = self._reads(passing[self.begins[k, passing]])
        return LayerPass(k, inputs, passing, parts, leaves, reads)

    def _reads(self, begin: Numbers) -> ChainReads | None:
        """What the chains of some walks read that begin here."""
        if not len(begin) or not self._needed:
            return None
        needed = np.stack([own[begin] for own in self._needed.values()])
        return ChainReads(list(self._needed), begin, needed)

    def _parts_of(
        self, k: int, passing: Numbers, needed: Boxes | None, leaves: NDArray[np.bool_]
    ) -> Numbers:
        """The parts that walks compute of a layer: what they need, and what is the chain's."""
        op = self._sub_ops.op_of[k]
        shares = self._sub_ops.shares(op)[self._cut[passing]]
        if needed is None:
            wanted = np.where(leaves[:, None, None], shares, boxes.NOTHING)
        else:
            wanted = needed[passing]
            np.maximum(wanted, shares, out=wanted, where=leaves[:, None, None])
        return self._sub_ops.of(op, wanted)
