"""What the GPU's shards of many chains take: ops, storages, copies between those, fused adds.

How a layer is stored is known from the layers behind it in its chain: the variant is taken that is
fastest with the copies which those need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network
from codl.ir.types import STORAGES
from codl.plan.cost_model import CostModel, Milliseconds, Move
from codl.plan.halo_propagation import LayerPass
from codl.plan.region_array import NONE, Numbers, is_something
from codl.plan.subop_table import StorageOrders, SubOps, finite


class GpuShards:
    """Columns over the rows of some steps; a row is a layer in a walk.

    `launches` are kernels, or small groups of them. `planar` are rows that are computed planar in
    place of what is planned. `adds` has the number of the layer of the
    residual add that each convolution may compute too, by its own.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        sub_ops: SubOps,
        parts: Numbers,
        orders: StorageOrders,
        walks: int,
        adds: Mapping[int, int],
        planar: NDArray[np.bool_],
    ) -> None:
        self._layers, self._cost, self._sub_ops = network.layers, cost, sub_ops
        self._orders, self._walks, self._adds = orders, walks, adds
        self.parts = parts
        self.ms, self.missing = finite(sub_ops.fastest_ms(self.parts, 1))
        self._part_launches = sub_ops.amounts()["launches"]
        self.launches = self._part_launches[self.parts]
        self._planar = planar
        #: What the parts take themselves, and their kernels, without copies between storages.
        self.alone_ms, self.part_launches = self.ms.copy(), self.launches.copy()
        stored_ms = self._stored_ms(slice(None))
        self.storages = stored_ms.argmin(axis=1)
        there = self.parts != NONE
        one_each = np.isfinite(stored_ms[there]).sum(axis=1).max(initial=0) <= 1
        #: The order of all tensors where every part can be stored in one way only, and all alike.
        self._only: int | None = None
        if one_each and len(set(self.storages[there].tolist())) <= 1:
            self._only = int(orders.single[self.storages[there][0]]) if there.any() else 0
        self._copied_ms = self._copies_ms()
        #: By tensor, the order of storages that readers in each walk's chain want.
        self._wanted: dict[str, Numbers] = {}
        #: By layer of a residual add, each walk's part of it, and its storage.
        self._added: dict[int, Numbers] = {}

    def _copies_ms(self) -> Milliseconds:
        """What a copy of each part between two of the SoC's storages takes; (parts)."""
        copies_ms = np.zeros(len(self._sub_ops.boxes))
        if len(self._cost.storages) > 1:
            numbers = [number for number in np.unique(self.parts).tolist() if number != NONE]
            moves: list[Move] = [("relayout", self._sub_ops.op(n).output) for n in numbers]
            self._cost.prefetch_sharing(moves)
            copies_ms[numbers] = [self._cost.sharing_ms(*move) for move in moves]
        return copies_ms

    def _stored_ms(self, rows: slice) -> Milliseconds:
        """What the parts in some rows take by storage."""
        parts, planar = self.parts[rows], self._planar[rows]
        stored_ms = self._sub_ops.stored_ms(parts)
        if planar.any():
            stored_ms = np.where(planar[:, None], self._sub_ops.planar_ms(parts), stored_ms)
        return stored_ms

    def step(self, step: LayerPass, rows: slice) -> None:
        """Choose how a layer is stored, and which kernels compute it with a residual add."""
        if self._only is None:
            self._store(step, rows)
        self._fuse(step, rows)

    def _store(self, step: LayerPass, rows: slice) -> None:
        layer, parts = self._layers[step.layer], self.parts[rows]
        wanted = self._wanted.pop(layer.output, None)
        order = np.zeros(len(parts), np.int64) if wanted is None else wanted[step.walks]
        stored_ms, copied_ms = self._stored_ms(rows), self._copied_ms[parts]
        copies = self._orders.measured_others[order]
        storages = (stored_ms + copied_ms[:, None] * copies).argmin(axis=1)
        chosen = np.arange(len(parts)), storages
        self.storages[rows] = storages
        self.alone_ms[rows] = finite(stored_ms[chosen])[0]
        self.ms[rows] = self.alone_ms[rows] + copied_ms * copies[chosen]
        self.launches[rows] += (parts != NONE) * self._orders.others[order, storages]
        needs = is_something(self._sub_ops.needs[parts])
        for at, name in step.inputs:
            if name not in self._wanted:
                self._wanted[name] = np.zeros(self._walks, np.int64)
            own, reads = self._wanted[name], needs[:, at]
            walks = step.walks[reads]
            own[walks] = self._orders.prepend(own[walks], storages[reads])

    def _fuse(self, step: LayerPass, rows: slice) -> None:
        """Residual adds that a convolution's kernels compute too."""
        k, parts, storages = step.layer, self.parts[rows], self.storages[rows]
        if k in self._adds.values():
            own = self._added[k] = np.zeros((self._walks, 2), np.int64)
            own[step.walks, 0], own[step.walks, 1] = parts, storages
        add = self._added.get(self._adds.get(k, -1))
        if add is None:
            return
        pairs = np.column_stack([parts, storages, add[step.walks]])
        known: dict[tuple[int, ...], bool] = {}
        fused = []
        for pair in map(tuple, pairs.tolist()):
            if pair not in known:
                known[pair] = self._sub_ops.are_fused(pair[0], pair[2], (pair[1], pair[3]))
            fused.append(known[pair])
        at = np.flatnonzero(fused)
        adds = pairs[at, 2]
        added_ms = self._sub_ops.stored_ms(adds)[np.arange(len(at)), pairs[at, 3]]
        self.ms[rows][at] -= (1 - self._cost.rules.added_inside) * added_ms
        self.launches[rows][at] -= self._part_launches[adds]

    @property
    def is_planar(self) -> NDArray[np.bool_]:
        """Whether the output of each row lies planar."""
        planar = np.array([storage.layout == "planar" for storage in STORAGES])
        return np.asarray(planar[self.storages])

    def views(
        self, layers: Numbers, walks: Numbers, leaves: NDArray[np.bool_], viewed: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The rows of what is memory of the layer before it, as lowering has it, and of those.

        It costs nothing in a chain that has both, and is taken off what the first one takes.
        `layers` and `walks` are those of each row, which `leaves` its chain or not; `viewed` is the
        layer whose memory it may be, or -1.
        """
        views = np.flatnonzero((viewed >= 0) & ~leaves & (self.parts != NONE))
        if not len(views):
            return views, views
        keys = layers * self._walks + walks
        order = np.argsort(keys)
        wanted = viewed[views] * self._walks + walks[views]
        places = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
        sources = order[places]
        needs, boxes = self._sub_ops.needs, self._sub_ops.boxes
        is_view = (keys[sources] == wanted) & ~leaves[sources] & self.is_planar[views]
        is_view &= self.storages[views] == self.storages[sources]
        is_view &= (needs[self.parts[views], 0] == boxes[self.parts[sources]]).all(axis=1)
        return views[is_view], sources[is_view]

    def orders(self, rows: Numbers) -> Numbers:
        """The orders of what the parts in some rows leave: each that of its own storage."""
        return np.asarray(self._orders.single[self.storages[rows]])

    def wanted(self, tensors: Sequence[str], walks: Numbers) -> Numbers:
        """The orders in which chains of walks that begin here want tensors, (tensors, walks)."""
        if self._only is not None:
            return np.full((len(tensors), len(walks)), self._only)
        return np.stack([self._wanted[tensor][walks] for tensor in tensors])
