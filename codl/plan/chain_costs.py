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

from codl.ir import Dim, Network, Shape
from codl.ir.types import PROCESSORS, Direction
from codl.kernels.ort import CpuOrt
from codl.lower.selection import residual_adds
from codl.plan.cost_model import CostModel, Milliseconds, Move, Pair
from codl.plan.cpu_shards import CpuShards, onnx_layers
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
    "cpu_images",
    "cpu_parts",
    "packing_ms",
    "gpu_ms",
    "gpu_bytes",
    "launches",
    "weights",
)


class CandidateChain(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each shard takes.

    `reads` and `leaves` are pairs of a processor's number, 0 for the CPU and 1 for the GPU, and a
    region's: what the shards read from outside, in the order in which lowering asks for it, and
    leave for others; the regions' notes are storage orders. `work_ms` is how long each shard takes
    while the other one works, `alone_ms` how long its ops take alone; `launches` how many kernels,
    or small groups of them, are launched; `weights` the bytes of weights of both. `rows` are the
    chain's among its table's.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    reads: Sequence[Sequence[int]]
    leaves: Sequence[Sequence[int]]
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
        #: Constants that one layer alone reads. Both processors have them from the start, and they
        #: lie as that layer wants them: they cost it something, and are no concern of chains.
        self.lone = frozenset(
            name
            for name in network.constants
            if len(network.readers(name)) == 1 and self.last_reader[name] < len(network.layers)
        )
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
        joins = self.cost.rules.joins_onnx
        return onnx_layers(self.network, self.cost) if joins else frozenset()

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
        known = self.network.layers, self.sub_ops, self.last_reader, self.lone
        return HaloPropagation(*known, walks, limited=limited)


class _Evaluation:
    """One pass over the steps of some walks, last layer to first.

    A row is a layer in a walk, and the part of it that either processor computes.
    """

    def __init__(
        self, costs: ChainCosts, walks: Sequence[Walk], steps: list[LayerPass], begins: Flags
    ) -> None:
        self._walks, self._steps, self._begins = walks, steps, begins
        self._cost, self._sub_ops, self._regions = costs.cost, costs.sub_ops, costs.regions
        self._network = costs.network
        counts = [len(step.walks) for step in steps]
        self._layer = np.repeat([step.layer for step in steps], counts).astype(np.int64)
        self._walk, self._leaves, self._parts = (
            np.concatenate([none, *columns])
            for none, columns in (
                (np.empty(0, np.int64), [step.walks for step in steps]),
                (np.empty(0, np.bool_), [step.leaves for step in steps]),
                (np.empty((0, 2), np.int64), [step.parts for step in steps]),
            )
        )
        # All at once, before any part is asked for by itself.
        cpu, gpu = self._parts.T
        for side, parts in enumerate((cpu, gpu)):
            costs.sub_ops.fastest_ms(parts, side)
        #: By layer and input, whether that is a constant of the layer alone.
        self._is_lone = np.array(
            [[at < len(layer.inputs) and layer.inputs[at] in costs.lone
              for at in range(costs.sub_ops.needs.shape[1])] for layer in costs.network.layers]
        )  # fmt: skip
        light = np.isin(self._layer, list(costs.in_onnx))
        common = costs.network, costs.cost, costs.sub_ops
        self._cpu = CpuShards(*common, cpu, light, len(walks))
        self._gpu = GpuShards(*common, gpu, costs.orders, len(walks), costs.adds)
        #: By layer and walk, the number of the walk's last chain that begins there or behind it.
        #: Chains of one walk stand together, the shortest first.
        backwards = begins[::-1].T
        self._chain = (np.cumsum(backwards).reshape(backwards.shape)[:, ::-1] - 1).T

    def table(self) -> CandidateTable:
        """All chains of the walks."""
        reads, leaves = self._read_rows(), self._left_rows()
        order = np.argsort(self._walk, kind="stable")  # of each walk, last layer to first
        first_row = np.searchsorted(self._walk[order], np.arange(len(self._walks)))
        return CandidateTable(
            self._candidates(self._sums()[order], first_row, reads, leaves),
            (_numbers_of(reads, 0), _numbers_of(reads, 1)),
            (_numbers_of(leaves, 0), _numbers_of(leaves, 1)),
            self._sub_ops,
            self._layer[order],
            self._parts[order],
            self._cpu.in_onnx[order],
            self._gpu.storages[order],
        )

    def _read_rows(self) -> Numbers:
        """Rows of a chain, a processor, a region and its loads: what is read from outside."""
        first = 0
        columns, read = [np.empty((5, 0), np.int64)], [np.empty((0, 6), np.int64)]
        for step in self._steps:
            rows = slice(first, first + len(step.walks))
            first = rows.stop
            self._gpu.step(step, rows)
            self._cpu.step(step, rows)
            if step.reads is None:
                continue
            tensors, walks, needed = step.reads
            tensor, walk, side = at = np.nonzero(is_something(needed))
            notes = np.where(side == 1, self._gpu.wanted(tensors, walks)[tensor, walk], 0)
            loads = np.where(side == 0, self._cpu.loads(tensors, walks)[tensor, walk], 0)
            numbers = np.array([self._regions.numbers[name] for name in tensors])[tensor]
            chain = self._chain[step.layer, walks[walk]]
            columns.append(np.stack([chain, side, numbers, notes, loads]))
            read.append(needed[at])
        chain, side, tensor, notes, loads = np.concatenate(columns, axis=1)
        regions = self._regions.of(tensor, np.concatenate(read), notes)
        order = np.lexsort([side, chain])
        return np.column_stack([chain, side, regions, loads])[order]

    def _left_rows(self) -> Numbers:
        """Rows of a chain, a processor and a region: what is left for others."""
        row, side = at = np.nonzero(self._leaves[:, None] & (self._parts != NONE))
        layer, walk = self._layer[row], self._walk[row]
        outputs = np.array([self._regions.numbers[one.output] for one in self._network.layers])
        notes = np.where(side == 1, self._gpu.orders(row), 0)
        regions = self._regions.of(outputs[layer], self._sub_ops.boxes[self._parts[at]], notes)
        # A layer's output is left by all chains of the walk that begin at the layer or before it.
        first = self._chain[layer, walk] + ~self._begins[layer, walk]
        counts = np.cumsum(self._begins.sum(axis=0))[walk] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        chain = np.repeat(first, counts) + within
        order = np.argsort(chain, kind="stable")
        return np.column_stack([chain, np.repeat(side, counts), np.repeat(regions, counts)])[order]

    def _sums(self) -> Milliseconds:
        """What is summed over the layers of a chain, by row: (rows, columns)."""
        cpu, gpu, amounts = self._cpu, self._gpu, self._sub_ops.amounts()
        packing_ms, packed_bytes = self._packing()
        columns = {
            "missing": cpu.missing + gpu.missing,
            "cpu_ms": cpu.ms,
            "cpu_saved_ms": cpu.saved_ms,
            "cpu_bytes": amounts["bytes"][cpu.parts] + packed_bytes,
            "cpu_images": amounts["images"][cpu.parts],
            "cpu_parts": cpu.parts != NONE,
            "packing_ms": packing_ms,
            "gpu_ms": gpu.ms,
            "gpu_bytes": amounts["bytes"][gpu.parts],
            "launches": gpu.launches,
            "weights": amounts["weights"][cpu.parts] + amounts["weights"][gpu.parts],
        }
        return np.column_stack([columns[name] for name in COLUMNS]).astype(np.float64)

    def _packing(self) -> tuple[Milliseconds, Milliseconds]:
        """Milliseconds and bytes that the CPU's nets pack and unpack of what they make; (rows)."""
        parts, loads, stores = self._cpu.parts, self._cpu.loaded, self._cpu.stored
        packing_ms = np.zeros(len(parts))
        ways: dict[Direction, Numbers] = {"load": loads, "store": stores}
        for way, times in ways.items():
            rows = np.flatnonzero(times)
            numbers, which = np.unique(parts[rows], return_inverse=True)
            shapes = [self._sub_ops.op(number).output for number in numbers.tolist()]
            packing_ms[rows] += times[rows] * self._moves_ms(way, shapes)[which]
        packed_bytes = np.asarray(8 * (loads + stores) * self._sub_ops.elements[parts], float)
        for at, is_lone in enumerate(self._is_lone.T):
            needs = is_something(self._sub_ops.needs[parts, at])
            rows = np.flatnonzero(is_lone[self._layer] & needs & ~self._cpu.in_onnx)
            numbers, which = np.unique(parts[rows], return_inverse=True)
            shapes = [self._sub_ops.op(number).inputs[at] for number in numbers.tolist()]
            packing_ms[rows] += self._moves_ms("load", shapes)[which]
            packed_bytes[rows] += np.array([2.0 * shape.bytes for shape in shapes])[which]
        return packing_ms, packed_bytes

    def _moves_ms(self, way: Direction, shapes: Sequence[Shape]) -> Milliseconds:
        moves: list[Move] = [(way, shape) for shape in shapes]
        self._cost.prefetch_sharing(moves)
        return np.array([self._cost.packing_ms(move) for move in moves], np.float64)

    def _candidates(
        self, sums: Milliseconds, first_row: Numbers, reads: Numbers, leaves: Numbers
    ) -> list[CandidateChain]:
        """Every chain that both processors have variants for; chains of a walk, shortest first."""
        walk, start = np.nonzero(self._begins.T[:, ::-1])
        start = len(self._begins) - 1 - start
        stop = np.array([walk.stop for walk in self._walks], np.int64)[walk]
        first = first_row[walk]
        last = first + stop - start
        running = np.concatenate([np.zeros((1, len(COLUMNS))), np.cumsum(sums, axis=0)])
        totals = dict(zip(COLUMNS, (running[last] - running[first]).T, strict=True))
        self._add_loads(totals, reads)
        alone, works = self._works(totals)
        able = np.flatnonzero(np.rint(totals["missing"]) == 0)
        reads_of, leaves_of = _by_chain(reads, len(walk)), _by_chain(leaves, len(walk))
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
        alone = np.column_stack([totals["cpu_ms"] - saved_ms, totals["gpu_ms"]])
        moved = np.column_stack([totals[f"{name}_bytes"] for name in PROCESSORS])
        packing_ms = totals["packing_ms"][:, None] * [1.0, 0.0]
        return alone, self._cost.together_ms(moved, alone + packing_ms)

    def _add_loads(self, totals: dict[str, Milliseconds], reads: Numbers) -> None:
        """What the CPU's nets pack of what chains read from outside."""
        chain, _, numbers, loads = reads[reads[:, 3] > 0].T
        own, which = np.unique(numbers, return_inverse=True)
        shapes = [self._regions.shape(number) for number in own.tolist()]
        load_ms = self._moves_ms("load", shapes)[which]
        size = np.array([shape.bytes for shape in shapes], np.float64)[which]
        count = len(totals["packing_ms"])
        totals["packing_ms"] += np.bincount(chain, loads * load_ms, count)
        totals["cpu_bytes"] += np.bincount(chain, 2 * loads * size, count)


def _numbers_of(held: Numbers, side: int) -> list[int]:
    """The numbers of regions in rows of a chain, a processor and a region, each once."""
    numbers: list[int] = np.unique(held[held[:, 1] == side, 2]).tolist()
    return numbers


def _by_chain(held: Numbers, count: int) -> list[list[list[int]]]:
    """The processor and the region of rows that are ordered by chain, for each chain."""
    bounds = np.searchsorted(held[:, 0], np.arange(count + 1)).tolist()
    rows = held[:, 1:3].tolist()
    return [rows[first:last] for first, last in pairwise(bounds)]


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    readers = dict.fromkeys((*network.inputs, *network.constants, *network.states), -1)
    for index, layer in enumerate(network.layers):
        readers[layer.output] = -1
        readers |= dict.fromkeys(layer.inputs, index)
    return readers | {name: len(network.layers) for name, _ in network.outputs.values()}
