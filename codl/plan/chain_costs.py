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
from codl.ir.types import PROCESSORS, Direction
from codl.kernels.ort import CpuOrt
from codl.lower.selection import residual_adds
from codl.plan.cost_model import LEAST_SHARE, CostModel, Milliseconds, Move, Pair, both_ends
from codl.plan.cpu_shards import CpuShards, NetTraffic, onnx_layers
from codl.plan.gpu_shards import GpuShards
from codl.plan.halo_propagation import HaloPropagation, LayerPass, Walk
from codl.plan.region_array import NONE, Numbers, RegionTable, is_something
from codl.plan.subop_table import StorageOrders, SubOps

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


_NO_PARTS = np.empty((0, 2), np.int64)


class CandidateChain(NamedTuple):
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

    candidates: list[CandidateChain]
    #: The numbers of what chains read, and leave, on either processor.
    reads: tuple[list[int], list[int]]
    leaves: tuple[list[int], list[int]]
    _sub_ops: SubOps
    _layers: Numbers
    _parts: Numbers
    _in_onnx: Flags
    _storages: Numbers

    def variants(self, candidate: CandidateChain) -> list[tuple[int, dict[str, str]]]:
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

    def steps(self, walks: Sequence[Walk]) -> list[LayerPass]:
        """The parts of every layer that walks pass, last layer to first."""
        return self._halo(walks, limited=False).steps()

    def _halo(self, walks: Sequence[Walk], *, limited: bool) -> HaloPropagation:
        layers = self.network.layers
        return HaloPropagation(layers, self.sub_ops, self.last_reader, walks, limited=limited)


class _Evaluation:
    """One pass over the steps of some walks, last layer to first."""

    def __init__(
        self, costs: ChainCosts, walks: Sequence[Walk], steps: list[LayerPass], begins: Flags
    ) -> None:
        self._costs, self._walks, self._steps = costs, walks, steps
        self._cost, self._sub_ops, self._regions = costs.cost, costs.sub_ops, costs.regions
        self._begins, self._layers = begins, costs.network.layers
        common = costs.network, costs.cost, costs.sub_ops
        # All at once, before any part is asked for by itself.
        costs.sub_ops.predict(np.concatenate([_NO_PARTS, *(step.parts for step in steps)]))
        self._cpu = CpuShards(*common, steps, len(walks), costs.in_onnx)
        self._gpu = GpuShards(*common, costs.orders, steps, len(walks), costs.adds)
        #: Rows of a row, a region, and how often the CPU loads and stores it in its nets.
        self._packed = [np.empty((0, 4), np.int64)]
        #: Rows of a layer, a walk, a processor, a region, and how many of the CPU's nets load it.
        self._read = [np.empty((0, 5), np.int64)]
        #: Rows of a layer, a walk, a processor and a region.
        self._left = [np.empty((0, 4), np.int64)]

    def table(self) -> CandidateTable:
        """All chains of the walks."""
        first = 0
        for step in self._steps:
            rows = slice(first, first + len(step.walks))
            first = rows.stop
            self._gpu.step(step, rows)
            packed = self._cpu.step(step, rows)
            self._note_left(step, 1, self._gpu.left(rows))
            left = self._note_left(step, 0, np.zeros(len(step.walks), np.int64))
            self._note_packed(step, rows, packed, left)
            self._note_reads(step)
        by_walk = [np.empty(0, np.int64), *(step.walks for step in self._steps)]
        walk_of = np.concatenate(by_walk)
        order = np.argsort(walk_of, kind="stable")  # of each walk, last layer to first
        first_row = np.searchsorted(walk_of[order], np.arange(len(self._walks)))
        layers = [np.full(len(step.walks), step.layer) for step in self._steps]
        reads, leaves = self._read_rows(), self._left_rows()
        return CandidateTable(
            self._candidates(self._sums()[order], first_row, reads, leaves),
            (_numbers_of(reads, 0), _numbers_of(reads, 1)),
            (_numbers_of(leaves, 0), _numbers_of(leaves, 1)),
            self._sub_ops,
            np.concatenate([by_walk[0], *layers])[order],
            np.column_stack([self._cpu.parts, self._gpu.parts])[order],
            self._cpu.in_onnx[order],
            self._gpu.storages[order],
        )

    # One layer.

    def _note_left(self, step: LayerPass, side: int, notes: Numbers) -> Numbers:
        """What chains leave of a layer on a processor: the regions' numbers by walk that passes."""
        items = np.flatnonzero(step.leaves & (step.parts[:, side] != NONE))
        numbers = np.zeros(len(step.walks), np.int64)
        if len(items):
            numbers[items] = self._numbers(step, side, items, notes[items])
            rows = np.empty((len(items), 4), np.int64)
            rows[:, 0], rows[:, 1], rows[:, 2] = step.layer, step.walks[items], side
            rows[:, 3] = numbers[items]
            self._left.append(rows)
        return numbers

    def _numbers(self, step: LayerPass, side: int, items: Numbers, notes: Numbers) -> list[int]:
        """The regions that some walks' parts of a layer are, by number."""
        made = self._sub_ops.boxes[step.parts[items, side]]
        return self._regions.of(self._layers[step.layer].output, made, notes)

    def _note_packed(self, step: LayerPass, rows: slice, packed: NetTraffic, left: Numbers) -> None:
        """What the CPU's nets load and store of a layer; `left` are numbers that are known."""
        items, loads, stores = packed
        if not len(items):
            return
        numbers = left[items]
        unknown = numbers == NONE
        if unknown.any():
            notes = np.zeros(int(unknown.sum()), np.int64)
            numbers[unknown] = self._numbers(step, 0, items[unknown], notes)
        self._packed.append(np.column_stack([rows.start + items, numbers, loads, stores]))

    def _note_reads(self, step: LayerPass) -> None:
        """What the chains read that begin here."""
        for tensor, walks, needed in step.reads:
            for side in (0, 1):
                there = is_something(needed[:, side])
                if not there.any():
                    continue
                own = walks[there]
                rows = np.empty((len(own), 5), np.int64)
                rows[:, 0], rows[:, 1], rows[:, 2] = step.layer, own, side
                notes = self._gpu.wanted(tensor, own) if side else np.zeros(len(own), np.int64)
                rows[:, 3] = self._regions.of(tensor, needed[there, side], notes)
                rows[:, 4] = 0 if side else self._cpu.loads(tensor, own)
                self._read.append(rows)

    # All chains.

    def _sums(self) -> Milliseconds:
        """What is summed over the layers of a chain, by row: (rows, columns)."""
        cpu, gpu, amounts = self._cpu, self._gpu, self._sub_ops.amounts()
        packing_ms, packed_bytes = self._packing()
        columns = {
            "missing": cpu.missing + gpu.missing,
            "cpu_ms": cpu.ms,
            "cpu_saved_ms": cpu.saved_ms,
            "cpu_bytes": amounts["bytes"][cpu.parts] + packed_bytes,
            "cpu_flops": amounts["flops"][cpu.parts],
            "cpu_images": amounts["images"][cpu.parts],
            "cpu_parts": cpu.parts != NONE,
            "packing_ms": packing_ms,
            "gpu_ms": gpu.ms,
            "gpu_bytes": amounts["bytes"][gpu.parts],
            "gpu_flops": amounts["flops"][gpu.parts],
            "launches": gpu.launches,
            "weights": amounts["weights"][cpu.parts] + amounts["weights"][gpu.parts],
        }
        return np.column_stack([columns[name] for name in COLUMNS]).astype(np.float64)

    def _packing(self) -> tuple[Milliseconds, Milliseconds]:
        """Milliseconds and bytes that the CPU's nets pack and unpack of what they make; (rows)."""
        rows, numbers, loads, stores = np.concatenate(self._packed).T
        load_ms, store_ms, size = self._packing_of(numbers[loads > 0], numbers[stores > 0])
        packing_ms, packed_bytes = np.zeros(len(self._cpu.parts)), np.zeros(len(self._cpu.parts))
        packing_ms[rows] = loads * load_ms[numbers] + stores * store_ms[numbers]
        packed_bytes[rows] = 2 * (loads + stores) * size[numbers]
        return packing_ms, packed_bytes

    def _packing_of(
        self, loads: Numbers, stores: Numbers
    ) -> tuple[Milliseconds, Milliseconds, Milliseconds]:
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

    def _candidates(
        self, sums: Milliseconds, first_row: Numbers, reads: Numbers, leaves: Numbers
    ) -> list[CandidateChain]:
        """Every chain that both processors have variants for; chains of a walk, shortest first."""
        walk, start = np.nonzero(self._begins.T[:, ::-1])
        start = len(self._layers) - 1 - start
        stop = np.array([walk.stop for walk in self._walks], np.int64)[walk]
        first = first_row[walk]
        last = first + stop - start
        running = np.concatenate([np.zeros((1, len(COLUMNS))), np.cumsum(sums, axis=0)])
        totals = dict(zip(COLUMNS, (running[last] - running[first]).T, strict=True))
        self._add_loads(totals, reads)
        alone, works = self._works(totals)
        able = np.flatnonzero(np.rint(totals["missing"]) == 0)
        reads_of, leaves_of = _by_chain(reads[:, :3], len(walk)), _by_chain(leaves, len(walk))
        launches = np.rint(totals["launches"]).astype(np.int64)
        columns = (able, walk, start, launches, totals["weights"], first, last)
        rows = zip(*(column[able].tolist() for column in columns[1:]), strict=True)
        pairs = zip(map(tuple, works[able].tolist()), map(tuple, alone[able].tolist()), strict=True)
        ratios, walks = self._sub_ops.ratios, self._walks
        return [
            CandidateChain(
                begin, walks[w].stop, walks[w].dim, ratios[walks[w].step], reads_of[at],
                leaves_of[at], work_ms, alone_ms, count, weights, (first_, last_)
            )
            for at, (w, begin, count, weights, first_, last_), (work_ms, alone_ms) in zip(
                able.tolist(), rows, pairs, strict=True
            )
        ]  # fmt: skip

    def _works(self, totals: Mapping[str, Milliseconds]) -> tuple[Milliseconds, Milliseconds]:
        """Milliseconds of both shards of chains, each alone, and both at once; (chains, 2)."""
        images = totals["cpu_images"] / np.maximum(totals["cpu_parts"], 1)
        saved_ms = self._cost.turns(images) * totals["cpu_saved_ms"]
        cpu_ms = np.maximum(totals["cpu_ms"] - saved_ms, LEAST_SHARE * totals["cpu_ms"])
        alone = np.column_stack([cpu_ms, totals["gpu_ms"]])
        loads = np.empty((len(alone), 2, 3))
        for side, name in enumerate(PROCESSORS):
            loads[:, side, 0] = totals[f"{name}_bytes"]
            loads[:, side, 1] = totals[f"{name}_flops"]
        loads[:, :, 2] = alone
        loads[:, 0, 2] += totals["packing_ms"]
        return alone, both_ends(loads[:, :, 2], self._cost.slowdowns(loads))

    def _read_rows(self) -> Numbers:
        """Rows of a chain, a processor, a region and its loads: what is read from outside."""
        read = np.concatenate(self._read)
        rows = np.column_stack([self._chain_numbers()[read[:, 1], read[:, 0]], read[:, 2:]])
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def _left_rows(self) -> Numbers:
        """Rows of a chain, a processor and a region: what is left for others."""
        left = np.concatenate(self._left)
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

    def _add_loads(self, totals: dict[str, Milliseconds], reads: Numbers) -> None:
        """What the CPU's nets pack of what chains read from outside."""
        chain, _, numbers, loads = reads[reads[:, 1] == 0].T
        load_ms, _, size = self._packing_of(numbers[loads > 0], numbers[:0])
        count = len(totals["packing_ms"])
        totals["packing_ms"] += np.bincount(chain, loads * load_ms[numbers], count)
        totals["cpu_bytes"] += np.bincount(chain, 2 * loads * size[numbers], count)


def _numbers_of(held: Numbers, side: int) -> list[int]:
    """The numbers of regions in rows of a chain, a processor and a region, each once."""
    numbers: list[int] = np.unique(held[held[:, 1] == side, 2]).tolist()
    return numbers


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
