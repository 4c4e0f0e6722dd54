"""Predicted cost of the shards of many chains: ops, layouts, copies, packing, weights.

On the CPU nets of several libraries run in turn. Which net a layer is in is known from the
layers behind it in its chain, by the rule of `codl.lower.rules.net_level`; here for all chains at
once. On the GPU a layer's storage is known from the layers behind it, too: the variant is taken
that is fastest with the copies which those need. Element-wise ops are planar where their
neighbours are, so those of transformers need no copies and those among convolutions stay in
blocks; a layer that only gives its input other sizes is the same memory inside of a chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer, Network, Op, split
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import those_of
from codl.ir.types import STORAGES, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.lower.rules import net_level, packs
from codl.plan.cost_model import ADDED_INSIDE, CostModel, Milliseconds, Move, WeightPlaces
from codl.plan.cpu_libraries import ANY
from codl.plan.region_array import NONE, Flags, Numbers, box, is_something
from codl.plan.sub_ops import PLACES, LayerPass, StorageOrders, SubOps, finite
from codl.records.soc import Soc


def planar_layers(network: Network, cost: CostModel) -> Flags:
    """By layer whether the GPU computes it on planar tensors, where its fastest variants run."""
    layers = network.layers
    cost.prefetch([layer.op for layer in layers], "gpu")
    fastest = (cost.fastest_by_storage(layer.op, "gpu").values() for layer in layers)
    return planar_of(layers, [next(iter(costs), None) for costs in fastest], cost.soc)


class _Stored(Protocol):
    """A variant, or what one costs: where its tensors lie, and what computes in its place."""

    @property
    def storage(self) -> Storage | None: ...
    @property
    def among_planar(self) -> str | None: ...


def planar_of(layers: Sequence[Layer], variants: Sequence[_Stored | None], soc: Soc) -> Flags:
    """By layer whether the GPU computes it on planar tensors, in a variant for such.

    That is a layer which may go planar, and of whose tensors more are planar than not: as the
    layers make them that have no choice, or want them. `variants` are those planned otherwise;
    None of layers without one.
    """
    #: The layers that have a variant, with whether its tensors are planar, or may as well be.
    planned: list[tuple[int, Layer, bool, bool]] = []
    for at, (layer, variant) in enumerate(zip(layers, variants, strict=True)):
        if variant is not None:
            wrong = {fallback.variant for fallback in those_of(soc.fallbacks, layer.op, "gpu")}
            is_planar = variant.storage is not None and variant.storage.layout == "planar"
            goes_planar = variant.among_planar not in (None, *wrong)
            planned.append((at, layer, is_planar, goes_planar))
    wanted: dict[str, bool] = {}
    for _, layer, is_planar, goes_planar in reversed(planned):
        want = wanted.get(layer.output) if goes_planar else is_planar
        if want is not None:
            wanted |= dict.fromkeys((*layer.inputs, layer.output), want)
    planar = np.zeros(len(layers), np.bool_)
    for at, layer, _, goes_planar in planned:
        if goes_planar:
            around = [wanted[name] for name in (*layer.inputs, layer.output) if name in wanted]
            wanted[layer.output] = planar[at] = 2 * sum(around) > len(around)
    return planar


T = TypeVar("T")
#: Fewer elements may as well be on both, but for those of products.
LEAST_ELEMENTS = 1 << 14
#: A processor has at most this many times its part: some are cut at whole words.
TOLERANCE = 1.01
#: Larger than what stands in any box.
ANYTHING = 1 << 40
#: A level of nets that no net has.
NEVER = 1 << 30


class LayerWeights:
    """What the layers of a network hold: weights, and constants that one alone reads."""

    def __init__(self, network: Network, places: WeightPlaces, lone: frozenset[str]) -> None:
        self._layers, self._places = network.layers, places
        #: The inputs of each layer that it alone reads and that never change.
        self._inputs = [
            tuple(at for at, name in enumerate(x.inputs) if name in lone) for x in network.layers
        ]
        self._known: dict[tuple[Op, tuple[int, ...]], tuple[Dim, ...]] = {}

    def allowed(self, at: int, ways: dict[Dim, T]) -> dict[Dim, T]:
        """Of the dimensions in which a layer could be cut those that cut what it holds, if any."""
        op, inputs = self._layers[at].op, self._inputs[at]
        if not self._places.once:
            return ways
        if (op, inputs) not in self._known:
            self._known[op, inputs] = _cutting(op, inputs)
        return {dim: way for dim, way in ways.items() if dim in self._known[op, inputs]}

    def cut(self, at: int) -> tuple[Dim, float] | None:
        """How a layer's chain is cut in the plan that is followed; None where that is open."""
        if not self._wholes[at]:
            return None
        return self._places.cuts.get(self._layers[at].name)

    def note(self, at: int) -> object:
        """What makes a layer differ from others with the same op."""
        name = self._layers[at].name
        return self._places.shares.get(name) if self._wholes[at] else None

    @cached_property
    def _wholes(self) -> NDArray[np.float64]:
        """Elements that each layer holds, 0 where they do not matter; (layers)."""
        if not self._places.once:
            return np.zeros(len(self._layers))
        pairs = zip(self._layers, self._inputs, strict=True)
        return np.array([_that_matters(layer.op, inputs) for layer, inputs in pairs], np.float64)

    @cached_property
    def _boxes(self) -> NDArray[np.int64]:
        """What each processor may compute of each layer, as far as weights go: (layers, 2, 6)."""
        boxes = np.full((len(self._layers), 2, 6), ANYTHING, np.int64)
        for at, layer in enumerate(self._layers):
            shares = self._places.shares.get(layer.name)
            if shares is None or not self._wholes[at]:
                continue
            firsts = [PLACES[dim] for dim in _cutting(layer.op, self._inputs[at])]
            places = [place for first in firsts for place in (first, first + 1)]
            for side, region in enumerate(shares):
                cut = slice(None) if region is None else places
                boxes[at, side, cut] = np.array(box(region))[cut]
        return boxes

    def misplaced(self, layers: Numbers, parts: Numbers, sub_ops: SubOps) -> Flags:
        """Whether what both processors compute of layers, (rows, 2), needs weights elsewhere."""
        misplaced = np.zeros(len(layers), np.bool_)
        rows = np.flatnonzero(self._wholes[layers])
        if not rows.size:
            return misplaced
        layers, parts = layers[rows], parts[rows]
        held: dict[tuple[int, tuple[int, ...]], int] = {}
        totals = []
        for at, pair in zip(layers.tolist(), parts.tolist(), strict=True):
            for number in pair:
                key = number, self._inputs[at]
                if key not in held:
                    held[key] = 0 if number == NONE else _held(sub_ops.op(number), key[1])
            totals.append(sum(held[number, self._inputs[at]] for number in pair))
        twice = np.array(totals) > TOLERANCE * self._wholes[layers]
        beyond = sub_ops.boxes[parts] > self._boxes[layers]
        misplaced[rows] = twice | (beyond & (parts != NONE)[..., None]).any(axis=(1, 2))
        return misplaced


def _held(op: Op, inputs: Sequence[int]) -> int:
    """Elements of weights, and of inputs that last; a bias counts for nothing."""
    weights = sum(prod(shape) for shape in op.weight_shapes.values() if len(shape) > 1)
    return weights + sum(op.inputs[at].elements for at in inputs)


def _that_matters(op: Op, inputs: Sequence[int]) -> int:
    """The same, 0 where it is too little to matter."""
    held = _held(op, inputs)
    return held if held >= LEAST_ELEMENTS or op.is_product else 0


def _cutting(op: Op, inputs: Sequence[int]) -> tuple[Dim, ...]:
    """The dimensions in which halves hold less than the whole; all of an op that holds little."""
    whole = _that_matters(op, inputs)

    def halves(dim: Dim) -> list[int]:
        shares = [share for share in split(op, dim, 0.5) if not share.is_empty]
        return [_held(op.restrict(op.around(share)), inputs) for share in shares]

    return tuple(
        dim
        for dim in op.dims
        if not whole or len(held := halves(dim)) < 2 or sum(held) <= TOLERANCE * whole
    )


class CpuShards:
    """Columns over the rows of some steps; a row is a layer in a walk.

    `layers` are the rows' layers, and `preferred` the libraries that are to compute them, by
    number, or `ANY`. `saved_ms` is what calls of nets take less because ops share them; `loaded`
    and `stored` how often nets that pack load and store what the layer makes. Layers join nets last
    to first, by the level of each net.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        sub_ops: SubOps,
        parts: Numbers,
        layers: Numbers,
        preferred: Numbers,
        walks: int,
    ) -> None:
        self._network, self._sub_ops, self._walks = network, sub_ops, walks
        self.parts = parts
        self.libraries, ms = self._chosen(cost, layers, preferred)
        self.ms, self.missing = finite(ms)
        self.saved_ms = np.zeros(len(parts))
        self.loaded = np.zeros((len(parts), len(LIBRARIES)), np.int64)
        self.stored = np.zeros(len(parts), np.int64)
        in_blocks = np.array([packs(layer.op, -1) for layer in network.layers])
        #: Whether rows read and write packed tensors.
        self.packs = (self.libraries == 0) | in_blocks[layers]
        self._are_all_ncnn = not self.libraries.any()
        self._call_ms = np.array([cost.inside("cpu", library).call_ms for library in LIBRARIES])
        #: By walk and level, how many layers a net has.
        self._counts = np.zeros((walks, 2 * len(LIBRARIES)), np.int64)
        #: By tensor: the least level that its maker may have, the lowest reader's, and by level
        #: whether a net reads it packed.
        self._least: dict[str, Numbers] = {}
        self._lowest: dict[str, Numbers] = {}
        self._readers: dict[str, Flags] = {}

    def _chosen(
        self, cost: CostModel, layers: Numbers, preferred: Numbers
    ) -> tuple[Numbers, Milliseconds]:
        """The library of each row, and its milliseconds there.

        A part that the preferred one cannot compute goes to the fastest. A light op is computed
        where it is preferred even if only others were measured, and counts as in those.
        """
        fastest_ms = self._sub_ops.fastest_ms(self.parts, 0)
        by_library = self._sub_ops.library_ms(self.parts)
        libraries, rows = by_library.argmin(axis=1), np.arange(len(self.parts))
        is_able = (preferred != ANY) & np.isfinite(by_library[rows, preferred])
        libraries[is_able] = preferred[is_able]
        ms = np.where(is_able, by_library[rows, preferred], fastest_ms)
        left = (preferred != ANY) & ~is_able & np.isfinite(fastest_ms)
        left &= np.array([layer.op.is_light for layer in self._network.layers])[layers]
        pairs = np.column_stack([self.parts, preferred])[left]
        able = [
            (number, library)
            for number, library in np.unique(pairs, axis=0).tolist()
            if registry.of_library(self._sub_ops.op(number), library, cost.soc) is not None
        ]
        for number, library in able:
            libraries[left & (self.parts == number) & (preferred == library)] = library
        return libraries, ms

    def step(self, step: LayerPass, rows: slice) -> None:
        """Put a layer's parts into nets; a model of its own is alone in one."""
        items = np.flatnonzero(self.parts[rows])
        walks, stores = step.walks[items], step.leaves[items]
        if self._are_all_ncnn:
            before = self._counts[walks, 0]
            loads = np.zeros((len(items), len(LIBRARIES)), np.int64)
            self._counts[walks, 0] += 1
        else:
            layer, is_packed = self._network.layers[step.layer], self.packs[rows][items]
            is_model = layer.op.kind == OnnxModel.kind
            least = self._least.pop(layer.output, np.zeros(self._walks, np.int64))[walks]
            lowest = self._lowest.pop(layer.output, np.full(self._walks, NEVER))[walks]
            library = self.libraries[rows][items]
            level = net_level(least, lowest < NEVER, is_model=is_model, library=library)
            while level.max(initial=0) >= self._counts.shape[1]:
                self._widen()
            before = np.zeros_like(level) if is_model else self._counts[walks, level]
            self._counts[walks, level] += not is_model
            loads = np.zeros((len(walks), len(LIBRARIES)), np.int64)
            readers = self._readers.pop(layer.output, None)
            if readers is not None:
                loads = _by_library(readers[walks])
                loads[np.arange(len(walks)), library] -= is_packed & readers[walks, level]
            stores = is_packed & (stores | (lowest < level))
            needs = is_something(self._sub_ops.needs[self.parts[rows][items]])
            for at, name in step.inputs:
                reads = needs[:, at]
                self._read(name, walks[reads], level[reads], is_packed[reads], is_model=is_model)
        self.saved_ms[rows][items] = self._call_ms[self.libraries[rows][items]] * (before > 0)
        self.loaded[rows][items], self.stored[rows][items] = loads, stores

    def _read(
        self, tensor: str, walks: Numbers, level: Numbers, is_packed: Flags, *, is_model: bool
    ) -> None:
        """Note that nets of walks read a tensor."""
        if tensor not in self._least:
            self._least[tensor] = np.zeros(self._walks, np.int64)
            self._lowest[tensor] = np.full(self._walks, NEVER)
            self._readers[tensor] = np.zeros(self._counts.shape, bool)
        least, lowest = self._least[tensor], self._lowest[tensor]
        least[walks] = np.maximum(least[walks], level + is_model)
        lowest[walks] = np.minimum(lowest[walks], level)
        self._readers[tensor][walks[is_packed], level[is_packed]] = True

    def _widen(self) -> None:
        """Room for twice as many levels."""
        self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        for tensor, readers in self._readers.items():
            self._readers[tensor] = np.concatenate([readers, np.zeros_like(readers)], axis=1)

    def loads(self, tensors: Sequence[str], walks: Numbers) -> Numbers:
        """How many nets of walks load tensors from outside their chains, by library.

        Shaped (tensors, walks, libraries).
        """
        if self._are_all_ncnn:
            loads = np.zeros((len(tensors), len(walks), len(LIBRARIES)), np.int64)
            loads[:, :, 0] = 1
            return loads
        return np.stack([_by_library(self._readers[tensor][walks]) for tensor in tensors])


def _by_library(levels: Flags) -> Numbers:
    """How many nets there are of each library, from those of each level; (rows, libraries)."""
    rounds = levels.shape[1] // len(LIBRARIES)
    return np.asarray(levels.reshape(len(levels), rounds, len(LIBRARIES)).sum(axis=1))


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
        planar: Flags,
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
        computed = self.parts != NONE
        one_each = np.isfinite(stored_ms[computed]).sum(axis=1).max(initial=0) <= 1
        #: The order of all tensors where every part can be stored in one way only, and all alike.
        self._only: int | None = None
        if one_each and len(set(self.storages[computed].tolist())) <= 1:
            self._only = int(orders.single[self.storages[computed][0]]) if computed.any() else 0
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
            orders, reads = self._wanted[name], needs[:, at]
            walks = step.walks[reads]
            orders[walks] = self._orders.prepend(orders[walks], storages[reads])

    def _fuse(self, step: LayerPass, rows: slice) -> None:
        """Residual adds that a convolution's kernels compute too."""
        k, parts, storages = step.layer, self.parts[rows], self.storages[rows]
        if k in self._adds.values():
            added = self._added[k] = np.zeros((self._walks, 2), np.int64)
            added[step.walks, 0], added[step.walks, 1] = parts, storages
        add = self._added.get(self._adds.get(k, -1))
        if add is None:
            return
        pairs = np.column_stack([parts, storages, add[step.walks]])
        is_fused: dict[tuple[int, ...], bool] = {}
        fused = []
        for pair in map(tuple, pairs.tolist()):
            if pair not in is_fused:
                is_fused[pair] = self._sub_ops.are_fused(pair[0], pair[2], (pair[1], pair[3]))
            fused.append(is_fused[pair])
        at = np.flatnonzero(fused)
        adds = pairs[at, 2]
        added_ms = self._sub_ops.added_ms(adds, pairs[at, 3])
        self.ms[rows][at] -= (1 - ADDED_INSIDE) * added_ms
        self.launches[rows][at] -= self._part_launches[adds]

    @property
    def is_planar(self) -> Flags:
        """Whether the output of each row lies planar."""
        planar = np.array([storage.layout == "planar" for storage in STORAGES])
        return np.asarray(planar[self.storages])

    def views(
        self, layers: Numbers, walks: Numbers, leaves: Flags, viewed: Numbers
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
