"""Sub-ops of a network by number: the parts that chains cut from layers, each predicted once.

Layers with equal ops share their parts, and a chain is rows of numbers. What chains take is then
sums over columns, instead of a walk over ops for each of thousands of chains.
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
#: Tables give storages by their place in `STORAGES`.
_STORAGE_NUMBER = {storage: number for number, storage in enumerate(STORAGES)}
#: There is room for this many parts from the start; then twice as many, and so on.
ROOM = 1024
#: Where the entries of each dimension stand in a box.
PLACES: Mapping[Dim, int] = {"N": 0, "OC": 2, "H": 4}


class SubOps:
    """Parts of layers by number; `NONE` is the part of nothing.

    `ops` are the network's ops, each once, and `op_of` says which is whose layer's. `boxes` (parts,
    6) are the parts' own regions, of `elements` (parts) each, and `needs` (parts, inputs, 6) the
    regions of inputs that each part needs; behind the last part is room for more. Ops are cut at
    `ratios`, which begin with 0 and end with 1.
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
        #: By op, which places of a box are those of all of it, since no dimension cuts there.
        self._is_fixed = np.array([_fixed_places(op) for op in self.ops])
        #: What an op's box is multiplied by, and what is added, for a number that no other has.
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
        #: Milliseconds on each processor in the fastest variants; NaN where not asked for yet.
        self._fastest_ms = np.full((2, ROOM), np.nan)
        self._fastest_ms[:, NONE] = 0.0
        #: Of the GPU's fastest variant for every storage.
        self._stored_ms = np.full((ROOM, len(STORAGES)), np.inf)
        self._stored_ms[NONE] = 0.0
        #: Of the CPU's fastest variant in every library.
        self._library_ms = np.full((ROOM, len(LIBRARIES)), np.inf)
        self._library_ms[NONE] = 0.0
        self._variants: dict[tuple[str, str], Variant] = {}
        self._amounts: dict[str, NDArray[np.float64]] = {}

    # Cutting.

    def cuts(self, op: int, dim: Dim) -> list[int]:
        """How much of an op the GPU gets when it is cut at each of the ratios."""
        if (op, dim) not in self._cuts:
            self._cuts[op, dim] = cuts(self.ops[op], dim, self.ratios, align=self._block)
        return self._cuts[op, dim]

    def shares(self, op: int) -> Boxes:
        """What the CPU and the GPU get of an op, shaped (dims x ratios, 2, 6)."""
        shares = self._shares[op]
        if shares is None:
            halves = [self.halves(op, dim, self.cuts(op, dim)) for dim in DIMS]
            shares = self._shares[op] = np.concatenate(halves)
        return shares

    def halves(self, op: int, dim: Dim, places: Sequence[int]) -> Boxes:
        """The same where the GPU gets so much of a dimension, shaped (places, 2, 6)."""
        halves, place, ends = np.empty((len(places), 2, 6), np.int64), PLACES[dim], np.array(places)
        halves[:] = self._whole[op]
        halves[:, 0, place], halves[:, 1, place + 1] = -ends, ends
        halves[halves[..., place] + halves[..., place + 1] <= 0] = boxes.NOTHING
        return halves

    def cut(self, dim: Dim, step: int | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """Where the shares of a dimension and a ratio's number stand among an op's."""
        return DIMS.index(dim) * len(self.ratios) + step

    def of(self, op: int | Numbers, wanted: Boxes) -> Numbers:
        """The parts of an op, or one for each item, shaped (items, 2), of boxes (items, 2, 6).

        As `codl.ir.ops.base.Op.around` has it: all of what no dimension cuts is computed, and of
        channels that belong together all.
        """
        is_there = boxes.is_something(wanted)
        if (fixed := self._is_fixed[op][..., None, :]).any():
            wanted = np.where(is_there[..., None] & fixed, self._whole[op][..., None, :], wanted)
        if (step := self._channel_step[op][..., None, None]).max() > 1:
            channels = -(-wanted[..., 2:4] // step) * step  # outwards: first ones have a minus sign
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
        """The number of the first of new parts, each of an op."""
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
        """Twice as much."""
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

        What is new is predicted in one batch.
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
        """Milliseconds of the GPU's parts by storage, (..., storages), of what was predicted."""
        latencies: NDArray[np.float64] = self._stored_ms[numbers]
        return latencies

    def added_ms(self, numbers: Numbers, storages: Numbers) -> NDArray[np.float64]:
        """Milliseconds of parts in a storage each, or computed planar in place of their fastest."""
        stored_ms = self._stored_ms[numbers]
        in_storage = stored_ms[np.arange(len(numbers)), storages]
        return np.where(np.isfinite(in_storage), in_storage, stored_ms.min(axis=1, initial=np.inf))

    def planar_ms(self, numbers: Numbers) -> NDArray[np.float64]:
        """The same of parts that are all computed planar, in place of their fastest variants."""
        latencies = np.full((len(numbers), len(STORAGES)), np.inf)
        fastest_ms = self._stored_ms[numbers].min(axis=1)
        latencies[:, _STORAGE_NUMBER[self._planar]] = fastest_ms
        return latencies

    def library_ms(self, numbers: Numbers) -> NDArray[np.float64]:
        """Milliseconds of the CPU's parts by library, (..., libraries), of what was predicted."""
        latencies: NDArray[np.float64] = self._library_ms[numbers]
        return latencies

    def gpu_variant(self, number: int, storage: int) -> str:
        """The name of the fastest variant of a part in a storage.

        Of a part that is computed planar in place of what it is in otherwise, that variant.
        """
        fastest = self._cost.fastest_by_storage(self.op(number), "gpu")
        if STORAGES[storage] in fastest:
            return fastest[STORAGES[storage]].variant
        planar = next(iter(fastest.values())).planar_fallback
        assert planar is not None
        return planar

    def cpu_variant(self, number: int, library: int) -> str:
        """The name of a library's fastest variant of a part; its first where none was predicted."""
        op = self.op(number)
        (op_costs,) = self._cost.prefetch([op], "cpu")
        able = [cost for cost in op_costs.values() if cost.library == library]
        if able:
            return min(able, key=lambda cost: cost.latency_ms).variant
        first = registry.of_library(op, library, self._cost.soc)
        assert first is not None
        return first.name

    def are_fused(self, convolution: int, add: int, storages: tuple[int, int]) -> bool:
        """Whether the GPU computes a part of an add together with that of a convolution."""
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
        """Of every part the bytes in all, FLOPs, and bytes of weights; its images and launches."""
        if self._amounts and len(self._amounts["bytes"]) == self._count:
            return self._amounts
        inputs, weights, outputs, flops = amounts(self._made)
        images = np.array([op.images for op in self._made], np.float64)
        columns = {
            "bytes": 4 * (inputs + weights + outputs),
            "flops": flops,
            "weights": 4 * weights,
            "images": images,
            "launches": images if self._cost.soc.gpu.is_cpu else np.ones_like(images),
        }
        self._amounts = {name: np.concatenate([[0.0], column]) for name, column in columns.items()}
        return self._amounts


def _fixed_places(op: Op) -> list[bool]:
    """Of the places of a box, those of axes that no dimension of an op cuts."""
    fixed = {PLACES[dim] for dim in AXES if dim not in op.dims}
    return [place - place % 2 in fixed for place in range(6)]


def finite(latencies_ms: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Latencies with 0 where there is none, and where that is: sums past those would be no use."""
    missing = ~np.isfinite(latencies_ms)
    return np.where(missing, 0.0, latencies_ms), missing


class StorageOrders:
    """Orders of storages by number: what readers of a tensor want, the first reader's first.

    A tensor that the GPU does not compute lies as its first reader wants it, one that it computes
    as its maker writes it; every other storage is a copy. By order and storage, `others` (orders,
    storages) are the storages that an order has besides one, and `measured_others` those of them
    between which a copy was measured. Order 0 is of no storage, `single` (storages) those of one.
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
        """The orders with a reader before the others that wants one of `storages`; (items)."""
        keys = orders * len(STORAGES) + storages
        prepended = np.empty_like(orders)
        for key in set(keys.tolist()):
            order, storage = divmod(key, len(STORAGES))
            rest = (at for at in self.orders[order] if at != storage)
            prepended[keys == key] = self._number((storage, *rest))
        return prepended

    def copies(self, kept: int, wanted: int) -> tuple[int, int, int]:
        """Where the GPU keeps what chains read in the storages of an order, and copies of it.

        `kept` is an order too: that of one storage, or of none where the GPU has nothing yet. Then
        the order of what it keeps, and how many copies there are, and of those how many measured.
        """
        storage = (self.orders[kept] or self.orders[wanted])[0]
        counts = self.others[wanted, storage], self.measured_others[wanted, storage]
        return int(self.single[storage]), int(counts[0]), int(counts[1])


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
    large is left out. Constants that are `private_tensors` are no part of what walks need.
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
            (at, name) for at, name in enumerate(self._layers[k].inputs) if name not in self._private
        ]
        for at, name in inputs:
            if name not in self._needed:
                self._needed[name] = np.full((self._count, 2, 6), boxes.NOTHING, np.int64)
            needed_boxes = self._needed[name]
            needed_boxes[passing] = np.maximum(needed_boxes[passing], needs[:, :, at])
        self._needed = {name: self._needed[name] for _, name in inputs} | self._needed
        reads = self._reads(passing[self.begins[k, passing]])
        return LayerPass(k, inputs, passing, parts, leaves, reads)

    def _reads(self, begin: Numbers) -> ChainReads | None:
        """What the chains of some walks read that begin here."""
        if not len(begin) or not self._needed:
            return None
        needed = np.stack([needed_boxes[begin] for needed_boxes in self._needed.values()])
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
