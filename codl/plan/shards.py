"""Shards of chains: libraries and nets of the CPU, storages and kernels of the GPU.

The CPU's libraries are ncnn, ONNX Runtime and OpenVINO. A change of library unpacks and packs
tensors again, which may cost more than the faster library saves. So `cpu_libraries` chooses the
libraries of all layers together, for the least sum of ops and changes, and all shards of a layer
use its library. In a shard, nets of several libraries run in turn. The later layers of a chain
decide the net of a layer, by `codl.lower.partition.net_level`, which `CpuShards` applies to
all chains at once.

The later layers of a chain also decide the storage of a layer on the GPU: the variant is chosen
that is fastest including the copies to other storages. Element-wise ops are planar where their
neighbours are, so those of transformers need no copies and those between convolutions stay in
blocks. A reshape inside a chain is a view of its input and costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from codl.ir import Network, Op
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.types import PLANAR, STORAGES, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.lower.partition import loading, net_level, packs, storing
from codl.plan.build_plan import planar_of
from codl.plan.cost_model import CostModel, Milliseconds, Move
from codl.plan.parts import NONE, STORAGE_NUMBER, Flags, LayerPass, Numbers, PartTable, is_something

#: Stands for the library that is fastest for a part.
ANY = -1
#: A mix of libraries must be predicted to take less than this part of the best single library's
#: latency: predictions of two libraries differ more in their errors than those of one.
WORTH = 0.95
#: Larger than the level of any net.
NEVER = 1 << 30


class _LibraryChoice(NamedTuple):
    """The libraries of the first layers of a network, and their milliseconds."""

    taken_ms: float
    libraries: tuple[int, ...]


def cpu_libraries(network: Network, cost: CostModel) -> Numbers:
    """By layer, the number of the library that computes it; `ANY` for all on replayed SoCs."""
    layers = network.layers
    if cost.soc.is_replayed:
        return np.full(len(layers), ANY)
    ops_ms = _ops_ms(network, cost)
    able = np.isfinite(ops_ms)
    if not able.any(axis=1).all() or able[:, 1:].sum() == 0:
        return np.full(len(layers), ANY)
    fastest = ops_ms.argmin(axis=1)
    uniforms = [np.where(able[:, library], library, fastest) for library in range(len(LIBRARIES))]
    if cost.library is not None:
        return np.asarray(uniforms[cost.library], np.int64)
    costs = _LibraryCosts(network, cost, ops_ms)
    empty = _LibraryChoice(0.0, ())
    uniform = [reduce(costs.extended, libraries.tolist(), empty) for libraries in uniforms]
    # The best libraries of all layers, by dynamic programming over the last library.
    best = [empty]
    for row in able:
        choices = np.flatnonzero(row).tolist()
        best = [min(costs.extended(before, library) for before in best) for library in choices]
    searched, simplest = min(best), min(uniform)
    is_worth = searched.taken_ms < WORTH * simplest.taken_ms
    return np.array((searched if is_worth else simplest).libraries, np.int64)


def in_each_library(network: Network, cost: CostModel) -> list[CostModel]:
    """The cost model, and one for each library that plans prefer, without duplicates."""
    different: dict[bytes, CostModel] = {}
    for each in (cost, *map(cost.in_library, range(len(LIBRARIES)))):
        different.setdefault(cpu_libraries(network, each).tobytes(), each)
    return list(different.values())


def _ops_ms(network: Network, cost: CostModel) -> Milliseconds:
    """Milliseconds of layers by library, infinite without a variant; (layers, libraries).

    A light op without a prediction in a library counts as in the fastest one.
    """
    ops_ms = np.full((len(network.layers), len(LIBRARIES)), np.inf)
    by_op = cost.prefetch((layer.op for layer in network.layers), "cpu")
    for row, layer, op_costs in zip(ops_ms, network.layers, by_op, strict=True):
        for known in op_costs.values():
            row[known.library] = min(row[known.library], known.latency_ms)
        if layer.op.is_light:
            fastest_ms = row.min()
            for library in np.flatnonzero(np.isinf(row)).tolist():
                if registry.of_library(layer.op, library, cost.soc) is not None:
                    row[library] = fastest_ms
    return ops_ms


class _LibraryCosts:
    """Sums the milliseconds of layers in libraries, and of changes between libraries."""

    def __init__(self, network: Network, cost: CostModel, ops_ms: Milliseconds) -> None:
        self._network, self._ops_ms = network, ops_ms
        self._call_ms = [cost.inside("cpu", library).call_ms for library in LIBRARIES]
        self._makers = {layer.output: at for at, layer in enumerate(network.layers)}
        self._results = {holder for holder, _ in network.outputs.values()}
        read = (name for layer in network.layers for name in layer.inputs)
        names = [name for name in (*read, *self._results) if name not in network.constants]
        shapes = {name: network.shapes[name] for name in names}
        #: By library and tensor, milliseconds of packing and of unpacking.
        self._load_ms, self._store_ms = (
            [dict(zip(shapes, cost.packings_ms(way(x), shapes.values()), strict=True))
             for x in LIBRARIES]
            for way in (loading, storing)
        )  # fmt: skip

    def extended(self, before: _LibraryChoice, library: int) -> _LibraryChoice:
        """The sums with one more layer, in a library."""
        taken_ms, libraries = before
        layer = self._network.layers[len(libraries)]
        reads_packed, load_ms = packs(layer.op, library), self._load_ms[library]
        taken_ms += float(self._ops_ms[len(libraries), library])
        # The prediction of each op includes one call.
        if libraries and libraries[-1] == library:
            taken_ms -= self._call_ms[library]
        for name in layer.inputs:
            if name not in load_ms:
                continue
            maker = self._makers.get(name)
            made_in = None if maker is None else libraries[maker]
            is_packed = maker is not None and packs(self._network.layers[maker].op, made_in or 0)
            if made_in == library:
                taken_ms += (reads_packed and not is_packed) * load_ms[name]
            else:
                taken_ms += reads_packed * load_ms[name]
                taken_ms += is_packed * self._store_ms[made_in or 0][name]
        if layer.output in self._results and reads_packed:
            taken_ms += self._store_ms[library][layer.output]
        return _LibraryChoice(taken_ms, (*libraries, library))


def cpu_variant(op: Op, library: int, cost: CostModel) -> str:
    """The name of a library's fastest variant of an op, or of its first one if unpredicted."""
    (op_costs,) = cost.prefetch([op], "cpu")
    able = [known for known in op_costs.values() if known.library == library]
    if able:
        return min(able, key=lambda known: known.latency_ms).variant
    first = registry.of_library(op, library, cost.soc)
    assert first is not None
    return first.name


class _Readers(NamedTuple):
    """The nets that read a tensor, by walk.

    `least` is the least level that the tensor's maker may have, `lowest` the lowest level of a
    reader, and `packed` (walks, levels) is True where a net reads the tensor packed.
    """

    least: Numbers
    lowest: Numbers
    packed: Flags


class CpuShards:
    """The CPU's costs, as columns over the rows of `ChainEvaluation` (a layer in a walk).

    `libraries` has the library of each layer of the network, `layers` the layer of each row.
    `ms` is the time of a part in its library, and `saved_ms` that of the calls that it shares with
    later layers of its net. `loaded` (rows, libraries) and `stored` (rows) count how often nets
    pack and unpack the layer's output. Layers join nets last to first, by net level.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        table: PartTable,
        libraries: Numbers,
        layers: Numbers,
        parts: Numbers,
        walks: int,
    ) -> None:
        self._network, self._table, self._walks = network, table, walks
        self.parts = parts
        is_light = np.array([layer.op.is_light for layer in network.layers], np.bool_)
        self.libraries, ms = self._chosen(cost, libraries[layers], is_light[layers])
        self.missing = np.isinf(ms)
        self.ms = np.where(self.missing, 0.0, ms)
        self.saved_ms = np.zeros(len(parts))
        self.loaded = np.zeros((len(parts), len(LIBRARIES)), np.int64)
        self.stored = np.zeros(len(parts), np.int64)
        #: By row, True where the layer reads and writes packed tensors.
        in_blocks = np.array([packs(layer.op, -1) for layer in network.layers], np.bool_)
        self.packs = (self.libraries == 0) | in_blocks[layers]
        self._are_all_ncnn = not self.libraries.any()
        self._call_ms = np.array([cost.inside("cpu", library).call_ms for library in LIBRARIES])
        #: By walk and level, the number of layers in the net.
        self._counts = np.zeros((walks, 2 * len(LIBRARIES)), np.int64)
        self._readers: dict[str, _Readers] = {}

    def _chosen(
        self, cost: CostModel, preferred: Numbers, is_light: Flags
    ) -> tuple[Numbers, Milliseconds]:
        """The library of each row, and the milliseconds in it.

        A part goes to its fastest library if the preferred one cannot compute it. A light op
        without a prediction in the preferred library stays there, and counts as in the fastest one.
        """
        fastest_ms = self._table.fastest_ms(self.parts, 0)
        by_library = self._table.library_ms[self.parts]
        libraries, rows = by_library.argmin(axis=1), np.arange(len(self.parts))
        is_able = (preferred != ANY) & np.isfinite(by_library[rows, preferred])
        libraries[is_able] = preferred[is_able]
        ms = np.where(is_able, by_library[rows, preferred], fastest_ms)
        left = (preferred != ANY) & ~is_able & np.isfinite(fastest_ms) & is_light
        pairs = np.column_stack([self.parts, preferred])[left]
        for number, library in np.unique(pairs, axis=0).tolist():
            if registry.of_library(self._table.op(number), library, cost.soc) is not None:
                libraries[left & (self.parts == number) & (preferred == library)] = library
        return libraries, ms

    def _read_by(self, tensor: str) -> _Readers:
        """The readers of a tensor, at first none."""
        if tensor not in self._readers:
            least, packed = np.zeros(self._walks, np.int64), np.zeros(self._counts.shape, bool)
            self._readers[tensor] = _Readers(least, np.full(self._walks, NEVER), packed)
        return self._readers[tensor]

    def step(self, step: LayerPass, rows: slice) -> None:
        """Put the parts of a layer into nets; an ONNX subgraph has a net of its own."""
        items = np.flatnonzero(self.parts[rows])
        walks, stores = step.walks[items], step.is_written[items]
        library = self.libraries[rows][items]
        if self._are_all_ncnn:
            before = self._counts[walks, 0]
            self._counts[walks, 0] += 1
        else:
            layer, is_packed = self._network.layers[step.layer], self.packs[rows][items]
            is_model = layer.op.kind == OnnxModel.kind
            least, lowest, _ = (column[walks] for column in self._read_by(layer.output))
            level = net_level(least, lowest < NEVER, is_model=is_model, library=library)
            while level.max(initial=0) >= self._counts.shape[1]:
                self._widen()
            before = np.zeros_like(level) if is_model else self._counts[walks, level]
            self._counts[walks, level] += not is_model
            packed = self._readers.pop(layer.output).packed
            loads = _by_library(packed[walks])
            loads[np.arange(len(walks)), library] -= is_packed & packed[walks, level]
            self.loaded[rows][items] = loads
            stores = is_packed & (stores | (lowest < level))
            needs = is_something(self._table.needs[self.parts[rows][items]])
            for at, name in step.inputs:
                reads, readers = needs[:, at], self._read_by(name)
                some, levels = walks[reads], level[reads]
                readers.least[some] = np.maximum(readers.least[some], levels + is_model)
                readers.lowest[some] = np.minimum(readers.lowest[some], levels)
                readers.packed[some[is_packed[reads]], levels[is_packed[reads]]] = True
        self.saved_ms[rows][items] = self._call_ms[library] * (before > 0)
        self.stored[rows][items] = stores

    def _widen(self) -> None:
        """Double the number of levels."""
        self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        for tensor, readers in self._readers.items():
            packed = np.concatenate([readers.packed, np.zeros_like(readers.packed)], axis=1)
            self._readers[tensor] = readers._replace(packed=packed)

    def loads(self, tensors: Sequence[str], walks: Numbers) -> Numbers:
        """How many nets pack each chain input, shaped (tensors, walks, libraries)."""
        if self._are_all_ncnn:
            loads = np.zeros((len(tensors), len(walks), len(LIBRARIES)), np.int64)
            loads[:, :, 0] = 1
            return loads
        return np.stack([_by_library(self._readers[tensor].packed[walks]) for tensor in tensors])


def _by_library(levels: Flags) -> Numbers:
    """Counts of nets by library from flags by level, (rows, levels) to (rows, libraries)."""
    rounds = levels.shape[1] // len(LIBRARIES)
    return np.asarray(levels.reshape(len(levels), rounds, len(LIBRARIES)).sum(axis=1))


# Storages and kernels of the GPU.


def planar_layers(network: Network, cost: CostModel) -> Flags:
    """By layer, True where the GPU computes it in a planar fallback of its fastest variant."""
    layers = network.layers
    cost.prefetch([layer.op for layer in layers], "gpu")
    fastest = (cost.fastest_by_storage(layer.op, "gpu").values() for layer in layers)
    return planar_of(layers, [next(iter(costs), None) for costs in fastest])


def gpu_variant(op: Op, storage: int, cost: CostModel) -> str:
    """The name of the fastest variant of an op in a storage, or of its planar fallback."""
    fastest = cost.fastest_by_storage(op, "gpu")
    if STORAGES[storage] in fastest:
        return fastest[STORAGES[storage]].variant
    planar = next(iter(fastest.values())).planar_fallback
    assert planar is not None
    return planar


class StorageOrders:
    """Numbered lists ("orders") of the storages that the readers of a tensor want, first one first.

    The GPU keeps a tensor that it receives in the storage of the first reader, and a tensor that it
    computes in the storage of its kernel; each further storage is a copy. `others` (orders,
    storages) counts the storages of an order besides a given one, and `measured_others` those of
    them to which a copy was measured. Order 0 is empty; `single` has the orders of one storage.
    """

    def __init__(self, measured: Collection[Storage]) -> None:
        self._measured = frozenset(STORAGE_NUMBER[storage] for storage in measured)
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


class GpuShards:
    """The GPU's costs, as columns over the rows of `ChainEvaluation` (a layer in a walk).

    `launches` counts kernels, or small groups of kernels. `alone_ms` and `part_launches` are of the
    parts without copies between storages. `planar` rows run in planar fallbacks.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        table: PartTable,
        orders: StorageOrders,
        planar: Flags,
        parts: Numbers,
        walks: int,
    ) -> None:
        self._layers, self._cost, self._table = network.layers, cost, table
        self._orders, self._walks = orders, walks
        self.parts, self._planar = parts, planar
        element: Any = cost.soc.gpu.element
        self._planar_storage = STORAGE_NUMBER[Storage(PLANAR.layout, element)]
        fastest_ms = table.fastest_ms(parts, 1)
        self.missing = np.isinf(fastest_ms)
        self.ms = np.where(self.missing, 0.0, fastest_ms)
        at_once = parts != NONE
        self.launches = table.images[parts] if cost.soc.gpu.is_cpu else at_once.astype(np.float64)
        self.alone_ms, self.part_launches = self.ms.copy(), self.launches.copy()
        stored_ms = self._stored_ms(slice(None))
        self.storages = stored_ms.argmin(axis=1)
        #: By part, milliseconds of a copy of its output between two storages of the SoC.
        self._copied_ms = np.zeros(len(table.boxes))
        if len(cost.storages) > 1:
            numbers = [number for number in np.unique(parts).tolist() if number != NONE]
            moves: list[Move] = [("relayout", table.op(number).output) for number in numbers]
            cost.prefetch_sharing(moves)
            self._copied_ms[numbers] = [cost.sharing_ms(*move) for move in moves]
        #: By tensor and walk, the order of storages that the readers in the chain want.
        self._wanted: dict[str, Numbers] = {}

    def _stored_ms(self, rows: slice) -> Milliseconds:
        """Milliseconds of the parts of some rows by storage, shaped (rows, storages)."""
        planar, stored_ms = self._planar[rows], self._table.storage_ms[self.parts[rows]]
        if planar.any():
            fallbacks_ms = np.full_like(stored_ms, np.inf)
            fallbacks_ms[:, self._planar_storage] = stored_ms.min(axis=1)
            stored_ms = np.where(planar[:, None], fallbacks_ms, stored_ms)
        return stored_ms

    def step(self, step: LayerPass, rows: slice) -> None:
        """Choose the storages of a layer by its readers, and note what the layer reads."""
        layer, parts = self._layers[step.layer], self.parts[rows]
        wanted = self._wanted.pop(layer.output, None)
        order = np.zeros(len(parts), np.int64) if wanted is None else wanted[step.walks]
        stored_ms, copied_ms = self._stored_ms(rows), self._copied_ms[parts]
        copies = self._orders.measured_others[order]
        storages = (stored_ms + copied_ms[:, None] * copies).argmin(axis=1)
        chosen = np.arange(len(parts)), storages
        self.storages[rows] = storages
        self.alone_ms[rows] = np.where(np.isinf(stored_ms[chosen]), 0.0, stored_ms[chosen])
        self.ms[rows] = self.alone_ms[rows] + copied_ms * copies[chosen]
        self.launches[rows] += (parts != NONE) * self._orders.others[order, storages]
        needs = is_something(self._table.needs[parts])
        for at, name in step.inputs:
            orders = self._wanted.setdefault(name, np.zeros(self._walks, np.int64))
            walks = step.walks[needs[:, at]]
            orders[walks] = self._orders.prepend(orders[walks], storages[needs[:, at]])

    def views(
        self, layers: Numbers, walks: Numbers, is_written: Flags, viewed: Numbers
    ) -> tuple[Numbers, Numbers]:
        """The rows whose output is a view of another row's output, and those other rows.

        A view costs nothing in a chain with both layers; its cost is subtracted from the earlier
        row. `layers` and `walks` are the numbers of each row, `is_written` is True where a later
        chain reads the output, and `viewed` is the layer whose memory the row may share, or -1.
        """
        views = np.flatnonzero((viewed >= 0) & ~is_written & (self.parts != NONE))
        if not len(views):
            return views, views
        keys = layers * self._walks + walks
        order = np.argsort(keys)
        wanted = viewed[views] * self._walks + walks[views]
        places = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
        sources = order[places]
        needs, boxes = self._table.needs, self._table.boxes
        planar = np.array([storage.layout == "planar" for storage in STORAGES])
        is_view = (keys[sources] == wanted) & ~is_written[sources] & planar[self.storages[views]]
        is_view &= self.storages[views] == self.storages[sources]
        is_view &= (needs[self.parts[views], 0] == boxes[self.parts[sources]]).all(axis=1)
        return views[is_view], sources[is_view]

    def wanted(self, tensors: Sequence[str], walks: Numbers) -> Numbers:
        """The storage orders in which chains want their input tensors; (tensors, walks)."""
        return np.stack([self._wanted[tensor][walks] for tensor in tensors])
