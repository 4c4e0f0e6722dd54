"""What chains take: parts, kernel variants, storages and nets of many chains, predicted in batches.

A chain is a run of layers in topological order, cut at a dimension and a ratio. Everything about
one of its layers is decided by that layer and by those behind it in the chain, never by where the
chain begins: so one walk from a chain's end gives all chains that end there, and what a chain takes
is a difference of two running sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Network
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.types import PROCESSORS, Direction
from codl.kernels import registry
from codl.kernels.ort import CpuOrt
from codl.lower.fusion import residual_adds
from codl.plan.cost_model import ADDED_INSIDE, LEAST_SHARE, CostModel, Move, Pair, both_ends
from codl.plan.halo_propagation import HaloPropagation, Step, Walk
from codl.plan.net_levels import NetLevels, onnx_layers
from codl.plan.region_array import NONE, Numbers, RegionTable, is_something
from codl.plan.subop_table import StorageOrders, SubOps

Vector: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
#: What is summed over the layers of a chain.
COLUMNS = (
    "missing",
    "cpu_ms",
    "cpu_saved_ms",
    "cpu_bytes",
    "cpu_flops",
    "cpu_images",
    "cpu_parts",
    "packing_ms",
    "gpu_ms",
    "gpu_bytes",
    "gpu_flops",
    "launches",
    "weights",
)


class Candidate(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each shard takes.

    `reads` and `leaves` are rows of a processor's number, 0 for the CPU and 1 for the GPU, and a
    region's: what the shards read from outside, and leave for others; the regions' notes are
    storage orders. `work_ms` is how long each shard takes while the other one works, `alone_ms` how
    long its ops take alone; `launches` how many kernels, or small groups of them, are launched;
    `weights` the bytes of weights of both. `rows` are the chain's among its table's.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    reads: Numbers
    leaves: Numbers
    work_ms: Pair
    alone_ms: Pair
    launches: int
    weights: float
    rows: tuple[int, int]


@dataclass(frozen=True)
class CandidateTable:
    """Candidates, and what was chosen for each of their layers: rows behind one another."""

    candidates: list[Candidate]
    _sub_ops: SubOps
    _layers: Numbers
    _parts: Numbers
    _in_onnx: Flags
    _storages: Numbers

    def variants(self, candidate: Candidate) -> list[tuple[int, dict[str, str]]]:
        """The layers of a candidate, first to last, with the kernel variant of every part."""
        chosen = []
        for row in reversed(range(*candidate.rows)):
            cpu, gpu = self._parts[row].tolist()
            own: dict[str, str] = {}
            if cpu != NONE:
                is_onnx = bool(self._in_onnx[row])
                own["cpu"] = CpuOrt.name if is_onnx else self._sub_ops.cpu_variant(cpu)
            if gpu != NONE:
                own["gpu"] = self._sub_ops.gpu_variant(gpu, int(self._storages[row]))
            chosen.append((int(self._layers[row]), own))
        return chosen


class ChainCosts:
    """Costs of a network's chains, cut at some ratios, by one cost model."""

    def __init__(self, network: Network, cost: CostModel, ratios: Sequence[float]) -> None:
        self.network, self.cost = network, cost
        self.last_reader = last_readers(network)
        self.sub_ops = SubOps(network.layers, cost, ratios)
        #: The regions that chains read and leave.
        self.regions = RegionTable(network.shapes)
        self.orders = StorageOrders(cost.storages)
        numbers = {layer.name: number for number, layer in enumerate(network.layers)}
        results = [name for name, last in self.last_reader.items() if last == len(network.layers)]
        #: The number of the layer that each convolution's kernels may compute too, by its own.
        self.adds = {
            numbers[name]: numbers[add.name]
            for name, add in residual_adds(network.layers, results).items()
        }

    @cached_property
    def in_onnx(self) -> frozenset[int]:
        """The layers that ONNX Runtime computes on the CPU for the sake of their neighbours."""
        return onnx_layers(self.network, self.cost)

    def evaluate(self, walks: Sequence[Walk], *, limited: bool = False) -> CandidateTable:
        """The chains of some walks that both processors have variants for.

        With `limited`, those are left out that compute much twice.
        """
        halo = self._halo(walks, limited=limited)
        return _Evaluation(self, walks, halo.steps(), halo.begins).table()

    def steps(self, walks: Sequence[Walk]) -> list[Step]:
        """The parts of every layer that walks pass, last layer to first."""
        return self._halo(walks, limited=False).steps()

    def _halo(self, walks: Sequence[Walk], *, limited: bool) -> HaloPropagation:
        layers = self.network.layers
        return HaloPropagation(layers, self.sub_ops, self.last_reader, walks, limited=limited)


class _Evaluation:
    """One pass over the steps of some walks, last layer to first."""

    def __init__(
        self, costs: ChainCosts, walks: Sequence[Walk], steps: list[Step], begins: Flags
    ) -> None:
        self._costs, self._walks, self._steps = costs, walks, steps
        self._cost, self._sub_ops, self._regions = costs.cost, costs.sub_ops, costs.regions
        self._orders, self._begins, self._count = costs.orders, begins, len(walks)
        parts = [step.parts for step in steps] or [np.empty((0, 2), np.int64)]
        self._parts = np.concatenate(parts)
        for side in (0, 1):
            self._sub_ops.fastest_ms(self._parts[:, side], side)
        self._amounts = self._sub_ops.amounts()
        self._copied_ms = self._copies_ms()
        self._in_onnx = self._onnx_rows()
        is_mixed = bool(self._in_onnx.any())
        self._nets = NetLevels(self._count) if is_mixed else None
        self._cpu_counts = np.zeros(self._count, np.int64)
        self._saved_ms = self._cost.saved_ms(len(costs.network.layers) + 1)
        #: By tensor, the order of storages that readers in each walk's chain want on the GPU.
        self._wanted: dict[str, Numbers] = {}
        #: By layer of a residual add, each walk's part of it on the GPU, and its storage.
        self._added: dict[int, Numbers] = {}
        self._sums = np.zeros((len(self._parts), len(COLUMNS)))
        self._columns = dict(zip(COLUMNS, self._sums.T, strict=True))
        self._storages = np.zeros(len(self._parts), np.int64)
        #: Rows of a row, a region, and how often the CPU loads and stores it in its nets.
        self._packed: list[Numbers] = []
        #: Rows of a layer, a walk, a processor, a region, and how many of the CPU's nets load it.
        self._read: list[Numbers] = []
        #: Rows of a layer, a walk, a processor and a region.
        self._left: list[Numbers] = []

    def _copies_ms(self) -> Vector:
        """What a copy of each part between two of the SoC's storages takes on the GPU; (parts)."""
        copies_ms = np.zeros(len(self._sub_ops.boxes))
        if len(self._cost.storages) > 1:
            numbers = np.unique(self._parts[:, 1])
            numbers = numbers[numbers != NONE].tolist()
            moves: list[Move] = [
                ("relayout", self._sub_ops.op(number).output) for number in numbers
            ]
            self._cost.prefetch_sharing(moves)
            copies_ms[numbers] = [self._cost.sharing_ms(*move) for move in moves]
        return copies_ms

    def _onnx_rows(self) -> Flags:
        """Whether ONNX Runtime computes the CPU's part in each row."""
        engines = self._sub_ops.in_onnx(self._parts[:, 0])
        at = 0
        for step in self._steps:
            rows = slice(at, at + len(step.walks))
            at = rows.stop
            if step.layer in self._costs.in_onnx:
                numbers = step.parts[:, 0]
                able = [number for number in set(numbers.tolist()) if self._is_able(number)]
                engines[rows] |= np.isin(numbers, able)
        return engines

    def _is_able(self, number: int) -> bool:
        """Whether ONNX Runtime takes a part."""
        if number == NONE:
            return False
        op = self._sub_ops.op(number)
        return registry.find(op, CpuOrt.name).refusal(op, self._cost.soc) is None

    def table(self) -> CandidateTable:
        """All chains of the walks."""
        at = 0
        for step in self._steps:
            rows = slice(at, at + len(step.walks))
            at = rows.stop
            self._pass_gpu(step, rows)
            self._pass_cpu(step, rows)
            self._note_reads(step)
        self._add_packing()
        by_walk = [step.walks for step in self._steps] or [np.empty(0, np.int64)]
        walk_of = np.concatenate(by_walk)
        order = np.argsort(walk_of, kind="stable")  # of each walk, last layer to first
        first_row = np.searchsorted(walk_of[order], np.arange(self._count))
        layers = np.repeat([s.layer for s in self._steps], [len(s.walks) for s in self._steps])
        return CandidateTable(
            list(self._candidates(self._sums[order], first_row)),
            self._sub_ops,
            layers.astype(np.int64)[order],
            self._parts[order],
            self._in_onnx[order],
            self._storages[order],
        )

    # One layer.

    def _pass_gpu(self, step: Step, rows: slice) -> None:
        """The GPU's parts of a layer: storages, latencies, copies for readers, what is fused."""
        layer, parts = self._costs.network.layers[step.layer], step.parts[:, 1]
        there = parts != NONE
        if not there.any():
            return
        wanted = self._wanted.pop(layer.output, None)
        order = np.zeros(len(parts), np.int64) if wanted is None else wanted[step.walks]
        stored_ms = self._sub_ops.stored_ms(parts)
        copied_ms = self._copied_ms[parts]
        with_copies = stored_ms + copied_ms[:, None] * self._orders.measured_others[order]
        storage = with_copies.argmin(axis=1)
        self._storages[rows] = storage
        latencies = stored_ms[np.arange(len(parts)), storage]
        able = np.isfinite(latencies)
        columns = {name: column[rows] for name, column in self._columns.items()}
        columns["missing"] += ~able
        columns["gpu_ms"] += np.where(able, latencies, 0.0)
        columns["gpu_ms"] += copied_ms * self._orders.measured_others[order, storage]
        columns["launches"] += there * self._orders.others[order, storage]
        columns["launches"] += self._amounts["launches"][parts]
        for name in ("bytes", "flops"):
            columns[f"gpu_{name}"] += self._amounts[name][parts]
        columns["weights"] += self._amounts["weights"][parts]
        self._fuse(step, storage, columns)
        self._note_wanted(step, storage)
        left = step.leaves & there
        if left.any():
            notes = self._orders.single[storage[left]]
            self._note_left(step, 1, left, notes)

    def _fuse(self, step: Step, storage: Numbers, columns: Mapping[str, Vector]) -> None:
        """Residual adds that a convolution's kernels compute too."""
        k, parts = step.layer, step.parts[:, 1]
        if k in self._costs.adds.values():
            own = self._added[k] = np.zeros((self._count, 2), np.int64)
            own[step.walks, 0], own[step.walks, 1] = parts, storage
        add = self._added.get(self._costs.adds.get(k, -1))
        if add is None:
            return
        pairs = np.column_stack([parts, storage, add[step.walks]])
        fused = {
            pair: self._sub_ops.are_fused(pair[0], pair[2], (pair[1], pair[3]))
            for pair in set(map(tuple, pairs.tolist()))
        }
        at = np.flatnonzero([fused[pair] for pair in map(tuple, pairs.tolist())])
        adds = pairs[at, 2]
        added_ms = self._sub_ops.stored_ms(adds)[np.arange(len(at)), pairs[at, 3]]
        columns["gpu_ms"][at] -= (1 - ADDED_INSIDE) * added_ms
        columns["launches"][at] -= self._amounts["launches"][adds]

    def _note_wanted(self, step: Step, storage: Numbers) -> None:
        """That readers before these in the chain's order are the first to want a storage."""
        needs = is_something(self._sub_ops.needs[step.parts[:, 1]])
        for at, name in enumerate(self._costs.network.layers[step.layer].inputs):
            if name not in self._wanted:
                self._wanted[name] = np.zeros(self._count, np.int64)
            wanted, reads = self._wanted[name], needs[:, at]
            walks = step.walks[reads]
            wanted[walks] = self._orders.prepend(wanted[walks], storage[reads])

    def _pass_cpu(self, step: Step, rows: slice) -> None:
        """The CPU's parts of a layer: latencies, nets, and what enters and leaves those."""
        layer, parts = self._costs.network.layers[step.layer], step.parts[:, 0]
        there = parts != NONE
        if not there.any():
            return
        latencies = self._sub_ops.fastest_ms(parts, 0)
        able = np.isfinite(latencies)
        columns = {name: column[rows] for name, column in self._columns.items()}
        columns["missing"] += ~able
        columns["cpu_ms"] += np.where(able, latencies, 0.0)
        columns["cpu_images"] += self._amounts["images"][parts]
        columns["cpu_parts"] += there
        for name in ("bytes", "flops"):
            columns[f"cpu_{name}"] += self._amounts[name][parts]
        columns["weights"] += self._amounts["weights"][parts]
        walks = step.walks[there]
        stores, loads = step.leaves[there], np.zeros(len(walks), np.int64)
        if self._nets is None:
            before = self._cpu_counts[walks]
            self._cpu_counts[walks] += 1
        else:
            in_onnx = self._in_onnx[rows][there]
            is_model = layer.op.kind == OnnxModel.kind
            net = self._nets.join(layer.output, walks, in_onnx, is_model=is_model)
            before, loads = net.layers_before, net.loads
            stores = ~in_onnx & (stores | net.is_read_elsewhere)
            needs = is_something(self._sub_ops.needs[parts[there]])
            for at, name in enumerate(layer.inputs):
                self._nets.read(name, needs[:, at])
        columns["cpu_saved_ms"][there] += self._saved_ms[before + 1] - self._saved_ms[before]
        if step.leaves[there].any():
            left = step.leaves & there
            self._note_left(step, 0, left, np.zeros(int(left.sum()), np.int64))
        packs = stores | (loads > 0)
        if packs.any():
            made = parts[there][packs]
            numbers = self._numbers(layer.output, made)
            places = np.arange(rows.start, rows.stop)[there][packs]
            self._packed.append(np.column_stack([places, numbers, loads[packs], stores[packs]]))

    def _numbers(self, tensor: str, parts: Numbers, notes: Numbers | None = None) -> list[int]:
        """The regions of a tensor that are parts of its layer."""
        notes = np.zeros(len(parts), np.int64) if notes is None else notes
        return self._regions.of(tensor, self._sub_ops.boxes[parts], notes)

    def _note_left(self, step: Step, side: int, left: Flags, notes: Numbers) -> None:
        tensor = self._costs.network.layers[step.layer].output
        numbers = self._numbers(tensor, step.parts[left, side], notes)
        rows = np.empty((len(numbers), 4), np.int64)
        rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = step.layer, step.walks[left], side, numbers
        self._left.append(rows)

    def _note_reads(self, step: Step) -> None:
        """What the chains read that begin here."""
        for tensor, walks, needed in step.reads:
            for side in (0, 1):
                there = is_something(needed[:, side])
                if not there.any():
                    continue
                own, loads = walks[there], np.ones(int(there.sum()), np.int64)
                notes = self._wanted[tensor][own] if side else np.zeros(len(own), np.int64)
                if self._nets is not None and side == 0:
                    loads = self._nets.loads(tensor, own)
                rows = np.empty((len(own), 5), np.int64)
                rows[:, 0], rows[:, 1], rows[:, 2] = step.layer, own, side
                rows[:, 3] = self._regions.of(tensor, needed[there, side], notes)
                rows[:, 4] = loads
                self._read.append(rows)

    # All chains.

    def _add_packing(self) -> None:
        """What the CPU's nets pack and unpack of what they make themselves."""
        packed = np.concatenate([np.empty((0, 4), np.int64), *self._packed])
        rows, numbers, loads, stores = packed.T
        load_ms, store_ms, size = self._packing_of(numbers[loads > 0], numbers[stores > 0])
        columns = self._columns
        columns["packing_ms"][rows] += loads * load_ms[numbers] + stores * store_ms[numbers]
        columns["cpu_bytes"][rows] += 2 * (loads + stores) * size[numbers]

    def _packing_of(self, loads: Numbers, stores: Numbers) -> tuple[Vector, Vector, Vector]:
        """Milliseconds of loading and storing regions, and their bytes; each shaped (regions)."""
        count = len(self._regions.boxes)
        size = np.zeros(count)
        ways: dict[Direction, Numbers] = {"load": loads, "store": stores}
        latencies = []
        for way, asked in ways.items():
            numbers = np.unique(asked)
            moves: list[Move] = [(way, self._regions.shape(n)) for n in numbers.tolist()]
            self._cost.prefetch_sharing(moves)
            own_ms = np.zeros(count)
            own_ms[numbers] = [self._cost.sharing_ms(*move) for move in moves]
            size[numbers] = [shape.bytes for _, shape in moves]
            latencies.append(own_ms)
        return latencies[0], latencies[1], size

    def _candidates(self, sums: Vector, first_row: Numbers) -> list[Candidate]:
        """Every chain that both processors have variants for; chains of a walk, shortest first."""
        begins = self._begins.T
        walk, start = np.nonzero(begins[:, ::-1])
        start = len(self._costs.network.layers) - 1 - start
        stop = np.array([walk.stop for walk in self._walks], np.int64)[walk]
        first, last = first_row[walk], first_row[walk] + stop - start
        running = np.concatenate([np.zeros((1, len(COLUMNS))), np.cumsum(sums, axis=0)])
        totals = dict(zip(COLUMNS, (running[last] - running[first]).T, strict=True))
        reads, leaves = self._read_rows(), self._left_rows()
        self._add_loads(totals, reads)
        images = totals["cpu_images"] / np.maximum(totals["cpu_parts"], 1)
        saved_ms = self._cost.turns(images) * totals["cpu_saved_ms"]
        cpu_ms = np.maximum(totals["cpu_ms"] - saved_ms, LEAST_SHARE * totals["cpu_ms"])
        alone = np.column_stack([cpu_ms, totals["gpu_ms"]])
        loads = np.empty((len(walk), 2, 3))
        for side, name in enumerate(PROCESSORS):
            loads[:, side, 0] = totals[f"{name}_bytes"]
            loads[:, side, 1] = totals[f"{name}_flops"]
        loads[:, :, 2] = alone
        loads[:, 0, 2] += totals["packing_ms"]
        works = both_ends(loads[:, :, 2], self._cost.slowdowns(loads))
        able = np.flatnonzero(np.rint(totals["missing"]) == 0)
        held = (_by_chain(reads[:, :3], len(walk)), _by_chain(leaves, len(walk)))
        ratios = self._sub_ops.ratios
        return [
            Candidate(
                start=int(start[at]),
                stop=int(stop[at]),
                dim=self._walks[walk[at]].dim,
                gpu_ratio=ratios[self._walks[walk[at]].step],
                reads=held[0][at],
                leaves=held[1][at],
                work_ms=(float(works[at, 0]), float(works[at, 1])),
                alone_ms=(float(alone[at, 0]), float(alone[at, 1])),
                launches=round(float(totals["launches"][at])),
                weights=float(totals["weights"][at]),
                rows=(int(first[at]), int(last[at])),
            )
            for at in able.tolist()
        ]

    def _read_rows(self) -> Numbers:
        """Rows of a chain, a processor, a region and its loads: what is read from outside."""
        read = np.concatenate([np.empty((0, 5), np.int64), *self._read])
        rows = np.column_stack([self._chain_numbers()[read[:, 1], read[:, 0]], read[:, 2:]])
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def _left_rows(self) -> Numbers:
        """Rows of a chain, a processor and a region: what is left for others."""
        left = np.concatenate([np.empty((0, 4), np.int64), *self._left])
        begins = self._begins.T
        behind = np.cumsum(begins.sum(axis=1))
        # A layer's output is left by all chains of the walk that begin at the layer or before it.
        numbers = self._chain_numbers()
        first = numbers[left[:, 1], left[:, 0]] + ~begins[left[:, 1], left[:, 0]]
        counts = behind[left[:, 1]] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        held = np.repeat(left[:, 2:], counts, axis=0)
        rows = np.column_stack([np.repeat(first, counts) + within, held])
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def _chain_numbers(self) -> Numbers:
        """The number of the last chain of a walk that begins at a layer or behind it.

        Shaped (walks, layers). Chains of one walk stand together, the shortest first.
        """
        backwards = self._begins.T[:, ::-1]
        return np.asarray(np.cumsum(backwards).reshape(backwards.shape)[:, ::-1] - 1)

    def _add_loads(self, totals: dict[str, Vector], reads: Numbers) -> None:
        """What the CPU's nets pack of what chains read from outside."""
        chain, _, numbers, loads = reads[reads[:, 1] == 0].T
        load_ms, _, size = self._packing_of(numbers[loads > 0], numbers[:0])
        count = len(totals["packing_ms"])
        totals["packing_ms"] += np.bincount(chain, loads * load_ms[numbers], count)
        totals["cpu_bytes"] += np.bincount(chain, 2 * loads * size[numbers], count)


def _by_chain(held: Numbers, count: int) -> list[Numbers]:
    """The processor and the region of rows that are ordered by chain, for each chain."""
    bounds = np.searchsorted(held[:, 0], np.arange(count + 1)).tolist()
    rows = held[:, 1:]
    return [rows[first:last] for first, last in pairwise(bounds)]


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    readers = dict.fromkeys((*network.inputs, *network.constants), -1)
    for index, layer in enumerate(network.layers):
        readers[layer.output] = -1
        readers |= dict.fromkeys(layer.inputs, index)
    return readers | {name: len(network.layers) for name, _ in network.outputs.values()}
