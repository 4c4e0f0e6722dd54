"""Numbered sub-ops: the parts that chains cut from the layers of a network.

Each part is predicted once, and layers with equal ops share their parts. A chain is a list of part
numbers, so the costs of thousands of chains are sums over the columns of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer, Op, Region
from codl.ir.columns import amounts
from codl.ir.ops.base import AXES, cuts
from codl.ir.types import PLANAR, PROCESSORS, STORAGES, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES, Variant
from codl.lower.rules import fuses
from codl.plan import region_array as boxes
from codl.plan.cost_model import CostModel
from codl.plan.region_array import NONE, Boxes, Numbers

DIMS: tuple[Dim, ...] = tuple(AXES)
#: The number of each storage, its index in `STORAGES`.
_STORAGE_NUMBER = {storage: number for number, storage in enumerate(STORAGES)}
#: The initial capacity of the tables, in parts; it doubles when they are full.
ROOM = 1024
#: The index of the first of a dimension's two entries in a box (see `region_array`).
PLACES: Mapping[Dim, int] = {"N": 0, "OC": 2, "H": 4}


class SubOps:
    """Tables of the parts of layers; `NONE` is the number of the empty part.

    `ops` are the distinct ops of the network, and `op_of` has the op number of each layer. `boxes`
    (parts, 6) are the output regions of parts, `elements` (parts) their sizes, and `needs` (parts,
    inputs, 6) the input regions. The tables have spare rows at their end. Ops are cut at `ratios`,
    the first of which is 0 and the last 1.
    """

    def __init__(self, ops: Sequence[Op], cost: CostModel, ratios: Sequence[float]) -> None:
        numbers: dict[Op, int] = {}
        self.op_of = [numbers.setdefault(op, len(numbers)) for op in ops]
        self.ops = list(numbers)
        self.ratios = tuple(ratios)
        self._cost, self._block = cost, cost.soc.gpu.vector_width
        element: Any = cost.soc.gpu.element
        self._planar = Storage(PLANAR.layout, element)
        outputs = [op.output for op in self.ops]
        self._whole = np.array([boxes.box(Region.whole(shape)) for shape in outputs])
        self._width = np.array([shape.w for shape in outputs])
        self._channel_step = np.array([op.channel_step for op in self.ops])
        #: By op and entry of a box, True where no dimension cuts that axis of the op.
        self._is_fixed = np.array([_fixed_places(op) for op in self.ops])
        #: A box of op i has the unique key `weights[i] @ box + first_key[i]`.
        self._weights = np.array([boxes.weights_of(shape) for shape in outputs])
        counts = [boxes.count_of(shape) for shape in outputs]
        self._first_key = np.array([0, *accumulate(counts[:-1])], np.int64)
        self._known: dict[int, int] = {}
        self._cuts: dict[tuple[int, Dim], list[int]] = {}
        self._shares: list[Boxes | None] = [None] * len(self.ops)
        self._made: list[Op] = []
        inputs = max(len(op.inputs) for op in self.ops)
        self._count = 1
        self.boxes: Boxes = np.full((ROOM, 6), boxes.NOTHING, np.int64)
        self.needs: Boxes = np.full((ROOM, inputs, 6), boxes.NOTHING, np.int64)
        self.elements = np.zeros(ROOM, np.int64)
        #: Milliseconds in the fastest variant of each processor; NaN where not predicted yet.
        self._fastest_ms = np.full((2, ROOM), np.nan)
        self._fastest_ms[:, NONE] = 0.0
        #: Milliseconds of the GPU's fastest variant for each storage.
        self._stored_ms = np.full((ROOM, len(STORAGES)), np.inf)
        self._stored_ms[NONE] = 0.0
        #: Milliseconds of the CPU's fastest variant in each library.
        self._library_ms = np.full((ROOM, len(LIBRARIES)), np.inf)
        self._library_ms[NONE] = 0.0
        self._variants: dict[tuple[str, str], Variant] = {}
        self._amounts: dict[str, NDArray[np.float64]] = {}

    # Cutting.

    def cuts(self, op: int, dim: Dim) -> list[int]:
        """For each ratio, how many rows, channels or images of an op the GPU gets."""
        if (op, dim) not in self._cuts:
            self._cuts[op, dim] = cuts(self.ops[op], dim, self.ratios, align=self._block)
        return self._cuts[op, dim]

    def shares(self, op: int) -> Boxes:
        """The boxes of an op for the CPU and the GPU at each cut, shaped (dims x ratios, 2, 6)."""
        shares = self._shares[op]
        if shares is None:
            halves = [self.halves(op, dim, self.cuts(op, dim)) for dim in DIMS]
            shares = self._shares[op] = np.concatenate(halves)
        return shares

    def halves(self, op: int, dim: Dim, places: Sequence[int]) -> Boxes:
        """The boxes of an op where the GPU gets the first `places` of `dim`, (places, 2, 6)."""
        halves, place, ends = np.empty((len(places), 2, 6), np.int64), PLACES[dim], np.array(places)
        halves[:] = self._whole[op]
        halves[:, 0, place], halves[:, 1, place + 1] = -ends, ends
        halves[halves[..., place] + halves[..., place + 1] <= 0] = boxes.NOTHING
        return halves

    def cut(self, dim: Dim, step: int | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """The index in `shares` of the cut at a dimension and a ratio number."""
        return DIMS.index(dim) * len(self.ratios) + step

    def of(self, op: int | Numbers, wanted: Boxes) -> Numbers:
        """The numbers of the parts with boxes `wanted` (items, 2, 6); shaped (items, 2).

        `op` is one op or an array of one op per item. Boxes are extended as `Op.around` does: to
        all of an axis that no dimension cuts, and to whole groups of channels.
        """
        is_there = boxes.is_something(wanted)
        if (fixed := self._is_fixed[op][..., None, :]).any():
            wanted = np.where(is_there[..., None] & fixed, self._whole[op][..., None, :], wanted)
        if (step := self._channel_step[op][..., None, None]).max() > 1:
            channels = -(-wanted[..., 2:4] // step) * step  # outwards: first channels are negated
            wanted[..., 2:4] = np.where(is_there[..., None], channels, wanted[..., 2:4])
        keys = (wanted @ self._weights[op][..., None])[..., 0]
        keys = np.where(is_there, keys + self._first_key[op][..., None], -1)
        flat, numbers_by_key = keys.ravel().tolist(), self._known
        places = dict(zip(flat, range(len(flat)), strict=True))
        places.pop(-1, None)
        new = {key: at for key, at in places.items() if key not in numbers_by_key}
        if new:
            at = list(new.values())
            ops = np.broadcast_to(np.asarray(op)[..., None], keys.shape).ravel()[at]
            first = self._make(ops, wanted.reshape(-1, 6)[at])
            numbers_by_key.update(zip(new, range(first, first + len(new)), strict=True))
        numbers = np.array([numbers_by_key.get(key, NONE) for key in flat], np.int64)
        return numbers.reshape(keys.shape)

    def _make(self, ops: Numbers, new: Boxes) -> int:
        """Add parts, each of its op; returns the number of the first one."""
        first, self._count = self._count, self._count + len(new)
        while self._count > len(self.boxes):
            self._make_room()
        added = slice(first, self._count)
        self.boxes[added] = new
        self.elements[added] = boxes.sizes(new).prod(axis=1) * self._width[ops]
        for number, (op, row) in enumerate(zip(ops.tolist(), new.tolist(), strict=True), first):
            whole_op, region = self.ops[op], boxes.region(row)
            self._made.append(whole_op.restrict(region))
            for at in range(len(whole_op.inputs)):
                self.needs[number, at] = boxes.box(whole_op.needs(region, at))
        return first

    def _make_room(self) -> None:
        """Double the capacity of the tables."""
        self.boxes = np.concatenate([self.boxes, self.boxes])
        self.elements = np.concatenate([self.elements, self.elements])
        self.needs = np.concatenate([self.needs, np.full_like(self.needs, boxes.NOTHING)])
        new = np.full_like(self._fastest_ms, np.nan)
        self._fastest_ms = np.concatenate([self._fastest_ms, new], axis=1)
        stored = np.full_like(self._stored_ms, np.inf)
        self._stored_ms = np.concatenate([self._stored_ms, stored])
        by_library = np.full_like(self._library_ms, np.inf)
        self._library_ms = np.concatenate([self._library_ms, by_library])

    # Latencies.

    def op(self, number: int) -> Op:
        return self._made[number - 1]

    def fastest_ms(self, numbers: Numbers, side: int) -> NDArray[np.float64]:
        """Milliseconds of parts in their fastest variants on a processor; infinite without one.

        Parts that were not predicted yet are predicted in one batch.
        """
        asked = np.zeros(len(self.boxes), bool)
        asked[numbers] = True
        new = np.flatnonzero(asked & np.isnan(self._fastest_ms[side])).tolist()
        if new:
            self._predict(new, side)
        latencies: NDArray[np.float64] = self._fastest_ms[side][numbers]
        return latencies

    def _predict(self, new: Sequence[int], side: int) -> None:
        ops = [self.op(number) for number in new]
        fastest = self._fastest_ms[side]
        for number, op_costs in zip(new, self._cost.prefetch(ops, PROCESSORS[side]), strict=True):
            best = min(op_costs.values(), key=lambda cost: cost.latency_ms, default=None)
            fastest[number] = np.inf if best is None else best.latency_ms
            for cost in op_costs.values() if side == 0 else ():
                known_ms = self._library_ms[number, cost.library]
                self._library_ms[number, cost.library] = min(known_ms, cost.latency_ms)
            for cost in op_costs.values() if side == 1 else ():
                assert cost.storage is not None
                at = _STORAGE_NUMBER[cost.storage]
                self._stored_ms[number, at] = min(self._stored_ms[number, at], cost.latency_ms)

    def stored_ms(self, numbers: Numbers) -> NDArray[np.float64]:
        """Milliseconds of predicted GPU parts by storage, shaped (..., storages)."""
        latencies: NDArray[np.float64] = self._stored_ms[numbers]
        return latencies

    def added_ms(self, numbers: Numbers, storages: Numbers) -> NDArray[np.float64]:
        """Milliseconds of each part in its storage, or in its fastest variant (planar fallback)."""
        stored_ms = self._stored_ms[numbers]
        in_storage = stored_ms[np.arange(len(numbers)), storages]
        return np.where(np.isfinite(in_storage), in_storage, stored_ms.min(axis=1, initial=np.inf))

    def planar_ms(self, numbers: Numbers) -> NDArray[np.float64]:
        """Milliseconds by storage of parts that run in their planar fallbacks."""
        latencies = np.full((len(numbers), len(STORAGES)), np.inf)
        fastest_ms = self._stored_ms[numbers].min(axis=1)
        latencies[:, _STORAGE_NUMBER[self._planar]] = fastest_ms
        return latencies

    def library_ms(self, numbers: Numbers) -> NDArray[np.float64]:
        """Milliseconds of predicted CPU parts by library, shaped (..., libraries)."""
        latencies: NDArray[np.float64] = self._library_ms[numbers]
        return latencies

    def gpu_variant(self, number: int, storage: int) -> str:
        """The name of the fastest variant of a part in a storage, or of its planar fallback."""
        fastest = self._cost.fastest_by_storage(self.op(number), "gpu")
        if STORAGES[storage] in fastest:
            return fastest[STORAGES[storage]].variant
        planar = next(iter(fastest.values())).planar_fallback
        assert planar is not None
        return planar

    def cpu_variant(self, number: int, library: int) -> str:
        """The name of a library's fastest variant of a part, or of its first one if unpredicted."""
        op = self.op(number)
        (op_costs,) = self._cost.prefetch([op], "cpu")
        able = [cost for cost in op_costs.values() if cost.library == library]
        if able:
            return min(able, key=lambda cost: cost.latency_ms).variant
        first = registry.of_library(op, library, self._cost.soc)
        assert first is not None
        return first.name

    def are_fused(self, convolution: int, add: int, storages: tuple[int, int]) -> bool:
        """True where one GPU kernel computes the part of a convolution and that of an add."""
        if (self.boxes[convolution] != self.boxes[add]).any() or not min(convolution, add) > NONE:
            return False
        variants = []
        for number, storage in zip((convolution, add), storages, strict=True):
            stored_ms = self._stored_ms[number]
            if not np.isfinite(stored_ms[storage]) and STORAGES[storage] != self._planar:
                return False
            if not np.isfinite(stored_ms).any():
                return False
            op = self.op(number)
            key = (op.kind, self.gpu_variant(number, storage))
            if key not in self._variants:
                self._variants[key] = registry.find(op, key[1])
            variants.append(self._variants[key])
        return fuses(variants[0], variants[1], self._cost.soc)

    def amounts(self) -> Mapping[str, NDArray[np.float64]]:
        """Columns over all parts: bytes in all, FLOPs, bytes of weights, images and launches."""
        known = len(self._amounts["bytes"]) if self._amounts else 1
        if self._amounts and known == self._count:
            return self._amounts
        made = self._made[known - 1 :]
        inputs, weights, outputs, flops = amounts(made)
        images = np.array([op.images for op in made], np.float64)
        columns = {
            "bytes": 4 * (inputs + weights + outputs),
            "flops": flops,
            "weights": 4 * weights,
            "images": images,
            "launches": images if self._cost.soc.gpu.is_cpu else np.ones_like(images),
        }
        before = self._amounts or dict.fromkeys(columns, np.zeros(1))
        self._amounts = {
            name: np.concatenate([before[name], column]) for name, column in columns.items()
        }
        return self._amounts


def _fixed_places(op: Op) -> list[bool]:
    """For each entry of a box, True where no dimension of an op cuts its axis."""
    fixed = {PLACES[dim] for dim in AXES if dim not in op.dims}
    return [place - place % 2 in fixed for place in range(6)]


def finite(latencies_ms: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Latencies with 0 in place of infinity (running sums stay finite), and where those were."""
    missing = ~np.isfinite(latencies_ms)
    return np.where(missing, 0.0, latencies_ms), missing


class StorageOrders:
    """Numbered lists ("orders") of the storages that the readers of a tensor want, first one first.

    The GPU keeps a tensor that it receives in the storage of the first reader, and a tensor that it
    computes in the storage of its kernel; each further storage is a copy. `others` (orders,
    storages) counts the storages of an order besides a given one, and `measured_others` those of
    them to which a copy was measured. Order 0 is empty; `single` has the orders of one storage.
    """

    def __init__(self, measured: Collection[Storage]) -> None:
        self._measured = frozenset(_STORAGE_NUMBER[storage] for storage in measured)
        self._numbers: dict[tuple[int, ...], int] = {}
        self.orders: list[tuple[int, ...]] = []
        self.others = np.empty((0, len(STORAGES)), np.int64)
        self.measured_others = np.empty((0, len(STORAGES)), np.int64)
        self._number(())
        self.single = np.array([self._number((at,)) for at in range(len(STORAGES))], np.int64)

    def _number(self, order: tuple[int, ...]) -> int:
        if order not in self._numbers:
            self._numbers[order] = len(self.orders)
            self.orders.append(order)
            others = [[at for at in order if at != storage] for storage in range(len(STORAGES))]
            measured = [self._measured.intersection(rest) if storage in self._measured else ()
                        for storage, rest in enumerate(others)]  # fmt: skip
            self.others = np.vstack([self.others, [len(rest) for rest in others]])
            self.measured_others = np.vstack([self.measured_others, [len(m) for m in measured]])
        return self._numbers[order]

    def prepend(self, orders: Numbers, storages: Numbers) -> Numbers:
        """Each order with one more reader in front, which wants one of `storages`; (items)."""
        keys = orders * len(STORAGES) + storages
        prepended = np.empty_like(orders)
        for key in set(keys.tolist()):
            order, storage = divmod(key, len(STORAGES))
            rest = (at for at in self.orders[order] if at != storage)
            prepended[keys == key] = self._number((storage, *rest))
        return prepended

    def copies(self, kept: int, wanted: int) -> tuple[int, int, int]:
        """The order in which the GPU keeps a tensor with readers `wanted`, and its copies.

        `kept` is the order of the resident tensor: of one storage, or empty where the GPU has no
        part yet. Returns the kept order, the number of copies, and that of measured copies.
        """
        storage = (self.orders[kept] or self.orders[wanted])[0]
        counts = self.others[wanted, storage], self.measured_others[wanted, storage]
        return int(self.single[storage]), int(counts[0]), int(counts[1])


#: Both processors together compute at most this many times the elements of each layer.
MOST_OVERLAP = 1.15


class Walk(NamedTuple):
    """Chains with a common end and cut: they end before layer `stop`, and begin at `starts`.

    `step` is the number of the partition ratio.
    """

    stop: int
    dim: Dim
    step: int
    starts: frozenset[int]


class ChainReads(NamedTuple):
    """The input boxes `needed` (tensors, walks, 2, 6) of chains that begin at a layer.

    `tensors` come in the order in which the layers read them.
    """

    tensors: list[str]
    walks: Numbers
    needed: Boxes


class LayerPass(NamedTuple):
    """One layer in all walks that pass it.

    `parts` (walks, 2) are the part numbers of both processors. `leaves` (walks) is True where a
    later chain reads the output. `reads` are the inputs of chains that begin here, if any. `inputs`
    are the indices and names of the layer's inputs without private tensors.
    """

    layer: int
    inputs: Sequence[tuple[int, str]]
    walks: Numbers
    parts: Numbers
    leaves: NDArray[np.bool_]
    reads: ChainReads | None


class HaloPropagation:
    """Propagates the needed regions of walks through a network, from the last layer to the first.

    `begins` (layers, walks) is True where a chain begins; its rows are the layers from `first` on.
    With `limited`, chains with too large a halo are left out. Walks do not need private tensors.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        sub_ops: SubOps,
        last_reader: Mapping[str, int],
        private_tensors: Collection[str],
        walks: Sequence[Walk],
        *,
        limited: bool,
    ) -> None:
        self._layers, self._sub_ops, self._limited = layers, sub_ops, limited
        self._last_reader, self._private, self._count = last_reader, private_tensors, len(walks)
        self._stop = np.array([walk.stop for walk in walks], np.int64)
        self._first = np.array([min(walk.starts) for walk in walks], np.int64)
        dims = np.array([DIMS.index(walk.dim) for walk in walks], np.int64)
        ratios = np.array([walk.step for walk in walks], np.int64)
        self._cut = dims * len(sub_ops.ratios) + ratios
        self._goes_on = np.ones(self._count, bool)
        self.first = int(self._first.min(initial=len(layers)))
        self._last = int(self._stop.max(initial=self.first))
        self.begins = np.zeros((self._last - self.first, self._count), bool)
        for at, walk in enumerate(walks):
            self.begins[[start - self.first for start in walk.starts], at] = True
        #: The boxes (walks, 2, 6) that walks need of each tensor made earlier, in reading order.
        self._needed: dict[str, Boxes] = {}

    def steps(self) -> list[LayerPass]:
        """The passes of all layers on the walks, last layer first."""
        steps = []
        for layer in reversed(range(self.first, self._last)):
            step = self._pass(layer)
            if step is not None:
                steps.append(step)
        return steps

    def _pass(self, k: int) -> LayerPass | None:
        """The walks that pass layer `k`: their parts of it, and the inputs of these parts."""
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
            self.begins[: k + 1 - self.first, lost] = False
            passing, parts, leaves = passing[stays], parts[stays], leaves[stays]
        needs = self._sub_ops.needs[parts]
        inputs = [
            (at, name)
            for at, name in enumerate(self._layers[k].inputs)
            if name not in self._private
        ]
        for at, name in inputs:
            if name not in self._needed:
                self._needed[name] = np.full((self._count, 2, 6), boxes.NOTHING, np.int64)
            needed_boxes = self._needed[name]
            needed_boxes[passing] = np.maximum(needed_boxes[passing], needs[:, :, at])
        self._needed = {name: self._needed[name] for _, name in inputs} | self._needed
        reads = self._reads(passing[self.begins[k - self.first, passing]])
        return LayerPass(k, inputs, passing, parts, leaves, reads)

    def _reads(self, begin: Numbers) -> ChainReads | None:
        """The inputs of the chains of some walks that begin here."""
        if not len(begin) or not self._needed:
            return None
        needed = np.stack([needed_boxes[begin] for needed_boxes in self._needed.values()])
        return ChainReads(list(self._needed), begin, needed)

    def _parts_of(
        self, k: int, passing: Numbers, needed: Boxes | None, leaves: NDArray[np.bool_]
    ) -> Numbers:
        """The parts of a layer: the regions that later layers need, and the chain's outputs."""
        op = self._sub_ops.op_of[k]
        shares = self._sub_ops.shares(op)[self._cut[passing]]
        if needed is None:
            wanted = np.where(leaves[:, None, None], shares, boxes.NOTHING)
        else:
            wanted = needed[passing]
            np.maximum(wanted, shares, out=wanted, where=leaves[:, None, None])
        return self._sub_ops.of(op, wanted)
