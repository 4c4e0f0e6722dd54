"""What chains take: parts, kernel variants, storages and nets of many chains, predicted in batches.

A chain is a run of layers in topological order, cut at a dimension and a ratio. Everything about
one of its layers is decided by that layer and by those behind it in the chain, never by where the
chain begins: so one walk from a chain's end gives all chains that end there, and what a chain
takes is a difference of two running sums.

Stretches of a network that are alike are computed once: a transformer has one block many times.
What chains take, and what moves between them, follows from the ops of their layers, from how these
read each other's outputs, and from how long those are read. Layers and points have numbers for all
that, the same wherever it is the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from codl.ir import Dim, Network, Shape
from codl.ir.types import PROCESSORS, Direction
from codl.kernels.ort import CpuOrt
from codl.lower.rules import residual_adds
from codl.plan.cost_model import CostModel, Milliseconds, Move, Pair
from codl.plan.region_array import NONE, Flags, Numbers, RegionTable, is_something
from codl.plan.shards import (
    CpuShards,
    GpuShards,
    LayerWeights,
    onnx_layers,
    planar_layers,
    viewed_layers,
)
from codl.plan.sub_ops import HaloPropagation, LayerPass, StorageOrders, SubOps, Walk

#: Where a chain begins and ends, its dimension and its ratio.
ChainKey: TypeAlias = tuple[int, int, Dim, float]


class CandidateChain(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each shard takes.

    `reads` and `leaves` are rows of a tensor, a processor's number, 0 for the CPU and 1 for the
    GPU, and a region's: what the shards read from outside, in the order in which lowering asks for
    it, and leave for others; the regions' notes are storage orders, and tensors are those of
    `TensorNumbers.seen_from` the chain's start. `work_ms` is how long each shard takes while the
    other one works, `alone_ms` how long its ops take alone; `launches` how many kernels, or small
    groups of them, are launched; `weights` the bytes of weights of both. `rows` are the chain's
    among `ChosenRows`; chains with the same rows are alike in all but where they begin.
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

    @property
    def key(self) -> ChainKey:
        return self.start, self.stop, self.dim, self.gpu_ratio

    def moved(self, layers: int) -> CandidateChain:
        """A chain that is alike, so many layers behind this one."""
        return (
            CandidateChain(self.start + layers, self.stop + layers, *self[2:]) if layers else self
        )


@dataclass(frozen=True)
class TensorNumbers:
    """Tensors by number: what layers make by the layer's, then the others.

    Seen from a layer, what another makes has the number of that which lies so many behind it:
    stretches of layers that are alike then read the same numbers.
    """

    names: Sequence[str]
    layers: int

    def seen_from(self, start: Numbers, tensors: Numbers) -> Numbers:
        return np.where(tensors < self.layers, tensors - start, tensors + self.layers)

    def name(self, start: int, seen: int) -> str:
        """The name of a tensor by its number as it is seen from a layer."""
        return self.names[start + seen if seen < self.layers else seen - self.layers]


@dataclass(frozen=True)
class CandidateTable:
    """Candidates; and of all of them the tensor and the region of what is read and left, each
    once, on the CPU and on the GPU: (items, 2).
    """

    candidates: list[CandidateChain]
    reads: tuple[Numbers, Numbers]
    leaves: tuple[Numbers, Numbers]


@dataclass(frozen=True)
class Chosen:
    """What was chosen for layers in walks: the parts of both processors, and how they are made."""

    layers: Numbers
    parts: Numbers
    in_onnx: Flags
    storages: Numbers


class ChosenRows:
    """What was chosen for the layers of chains, of many evaluations behind one another."""

    def __init__(self, sub_ops: SubOps) -> None:
        self._sub_ops = sub_ops
        self._chosen: list[Chosen] = []
        self._first: list[int] = []
        self.count = 0

    def add(self, chosen: Chosen) -> None:
        self._chosen.append(chosen)
        self._first.append(self.count)
        self.count += len(chosen.layers)

    def variants(self, candidate: CandidateChain) -> list[tuple[int, dict[str, str]]]:
        """The layers of a candidate, first to last, with the kernel variant of every part."""
        at = bisect_right(self._first, candidate.rows[0]) - 1
        own, first = self._chosen[at], self._first[at]
        rows = range(candidate.rows[0] - first, candidate.rows[1] - first)  # last layer to first
        moved = candidate.start - int(own.layers[rows[-1]])
        return [(int(own.layers[row]) + moved, self._variants(own, row)) for row in reversed(rows)]

    def _variants(self, own: Chosen, row: int) -> dict[str, str]:
        cpu, gpu = own.parts[row].tolist()
        variants: dict[str, str] = {}
        if cpu != NONE:
            variants["cpu"] = CpuOrt.name if own.in_onnx[row] else self._sub_ops.cpu_variant(cpu)
        if gpu != NONE:
            variants["gpu"] = self._sub_ops.gpu_variant(gpu, int(own.storages[row]))
        return variants


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    readers = dict.fromkeys((*network.inputs, *network.constants, *network.states), -1)
    for index, layer in enumerate(network.layers):
        readers[layer.output] = -1
        readers |= dict.fromkeys(layer.inputs, index)
    return readers | {name: len(network.layers) for name, _ in network.outputs.values()}


def live_tensors(
    network: Network, last_reader: Mapping[str, int], lone: Collection[str]
) -> list[tuple[str, ...]]:
    """At every point between layers, the tensors that are there and still read, the oldest first.

    But for constants that are `lone`.
    """
    live: list[list[str]] = [[] for _ in range(len(network.layers) + 1)]
    made = {layer.output: at + 1 for at, layer in enumerate(network.layers)}
    for name in sorted(last_reader.keys() - lone, key=lambda name: (made.get(name, 0), name)):
        for at in range(made.get(name, 0), last_reader[name] + 1):
            live[at].append(name)
    return [tuple(names) for names in live]


@dataclass(frozen=True)
class Alike:
    """Numbers of the layers, and of the points before each and behind the last.

    Two stretches of at most `longest` layers are alike if their first points and all of their
    layers have the same numbers.
    """

    layers: Sequence[int]
    points: Sequence[int]
    longest: int

    @classmethod
    def of(
        cls,
        network: Network,
        notes: Sequence[Hashable],
        live: Sequence[Sequence[str]],
        last_reader: Mapping[str, int],
        lone: Collection[str],
        longest: int,
    ) -> Alike:
        """`notes` are whatever else makes layers differ, their ops foremost.

        `live` are the tensors at every point; constants that are `lone` are of their layer alone.
        """
        maker = {layer.output: at for at, layer in enumerate(network.layers)}

        def seen_from(at: int, name: str) -> tuple[Hashable, int]:
            """A tensor by where it is from, and for how long it is still read."""
            if name in lone:
                return "", 0
            source = at - maker[name] if name in maker else name
            return source, min(last_reader[name] - at, longest + 1)

        layers = [
            (notes[at], *(seen_from(at, name) for name in (*layer.inputs, layer.output)))
            for at, layer in enumerate(network.layers)
        ]
        points = [tuple(seen_from(at, name) for name in own) for at, own in enumerate(live)]
        return cls(_numbers(layers), _numbers(points), longest)

    def content(self, walk: Walk) -> Hashable:
        """What walks have in common that are alike; of a longer one itself."""
        first = min(walk.starts)
        if walk.stop - first > self.longest:
            return walk
        starts = tuple(sorted(walk.stop - start for start in walk.starts))
        own = tuple(self.layers[first : walk.stop])
        return walk.dim, walk.step, starts, self.points[first], own


def _numbers(contents: Sequence[Hashable]) -> list[int]:
    """The same number for the same content."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(content, len(known)) for content in contents]


#: Stretches of more layers than this are not compared.
LONGEST_ALIKE = 32
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


class ChainCosts:
    """Costs of a network's chains, cut at some ratios, by one cost model."""

    def __init__(self, network: Network, cost: CostModel, ratios: Sequence[float]) -> None:
        self.network, self.cost = network, cost
        self.last_reader = last_readers(network)
        #: Constants that one layer alone reads, and states. Both processors have them from the
        #: start, and they lie as that layer wants them: they cost it something, and are no concern
        #: of chains.
        self.lone = network.lone | {
            name for name in network.states if len(network.readers(name)) == 1
        }
        self.weights = LayerWeights(network, cost.places, frozenset(self.lone))
        self.sub_ops = SubOps([layer.op for layer in network.layers], cost, ratios)
        #: What was chosen for the layers of chains, and those that are known.
        self.chosen = ChosenRows(self.sub_ops)
        self.known: dict[ChainKey, CandidateChain] = {}
        #: The regions that chains read and leave, of all tensors: results of layers first.
        self.regions = RegionTable(network.shapes.values())
        made = [layer.output for layer in network.layers]
        others = list(network.shapes.keys() - set(made))
        self.tensors = TensorNumbers([*made, *others], len(made))
        self.live = live_tensors(network, self.last_reader, self.lone)
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
        joins = "joins-onnx" not in self.cost.off
        return onnx_layers(self.network, self.cost) if joins else frozenset()

    @cached_property
    def planar(self) -> Flags:
        """The layers that the GPU computes on planar tensors, in variants for such."""
        return planar_layers(self.network, self.cost)

    @cached_property
    def viewed(self) -> Numbers:
        """By layer the one whose output it may be the memory of; -1 of most."""
        return viewed_layers(self.network)

    @cached_property
    def alike(self) -> Alike:
        """Which stretches of the network are alike."""
        added = set(self.adds.values())
        notes = [
            (
                op,
                at in self.in_onnx,
                at in added,
                self.adds[at] - at if at in self.adds else 0,
                self.planar[at],
                self.weights.note(at),
            )
            for at, op in enumerate(self.sub_ops.op_of)
        ]
        known = self.live, self.last_reader, self.lone
        return Alike.of(self.network, notes, *known, longest=LONGEST_ALIKE)

    def evaluate(self, walks: Sequence[Walk], *, limited: bool = False) -> CandidateTable:
        """The chains of some walks that both processors have variants for.

        With `limited`, those are left out that compute much twice. Walks that are alike are looked
        at once.
        """
        numbers: dict[Hashable, int] = {}
        which = [numbers.setdefault(self.alike.content(walk), len(numbers)) for walk in walks]
        places = dict(zip(reversed(which), reversed(range(len(walks))), strict=True))
        own = [walks[places[number]] for number in range(len(numbers))]
        halo = self._halo(own, limited=limited)
        table = _Evaluation(self, own, halo.steps(), halo.begins).table(walks, which)
        self.known.update((candidate.key, candidate) for candidate in table.candidates)
        return table

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
        self._network, self._chosen, self._tensors = costs.network, costs.chosen, costs.tensors
        shapes, numbers = costs.network.shapes, costs.regions.shapes
        #: The number of the shape of every tensor.
        self._shapes = np.array([numbers[shapes[name]] for name in costs.tensors.names])
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
        self._misplaced = costs.weights.misplaced(self._layer, self._parts, costs.sub_ops)
        light = np.isin(self._layer, list(costs.in_onnx))
        common = costs.network, costs.cost, costs.sub_ops
        self._cpu = CpuShards(*common, cpu, light, len(walks))
        self._gpu = GpuShards(
            *common, gpu, costs.orders, len(walks), costs.adds, costs.planar[self._layer]
        )
        self._viewed = costs.viewed[self._layer]
        #: By layer and walk, the number of the walk's last chain that begins there or behind it.
        #: Chains of one walk stand together, the shortest first.
        backwards = begins[::-1].T
        self._chain = (np.cumsum(backwards).reshape(backwards.shape)[:, ::-1] - 1).T

    def table(self, walks: Sequence[Walk], which: Sequence[int]) -> CandidateTable:
        """All chains of `walks`, of which each is alike the one here of the number in `which`."""
        reads, leaves = self._read_rows(), self._left_rows()
        order = np.argsort(self._walk, kind="stable")  # of each walk, last layer to first
        first_row = np.searchsorted(self._walk[order], np.arange(len(self._walks)))
        candidates = self._candidates(self._sums()[order], first_row, reads, leaves)
        engines, storages = self._cpu.in_onnx[order], self._gpu.storages[order]
        self._chosen.add(Chosen(self._layer[order], self._parts[order], engines, storages))
        moved = np.array([walk.stop - self._walks[own].stop
                          for walk, own in zip(walks, which, strict=True)], np.int64)  # fmt: skip
        copies = np.array(which, np.int64), moved
        return CandidateTable(
            [
                candidate.moved(layers)
                for own, layers in zip(which, moved.tolist(), strict=True)
                for candidate in candidates[own]
            ],
            (self._held(reads, 0, *copies), self._held(reads, 1, *copies)),
            (self._held(leaves, 0, *copies), self._held(leaves, 1, *copies)),
        )

    def _held(self, rows: Numbers, side: int, which: Numbers, moved: Numbers) -> Numbers:
        """The tensors and regions that a processor reads or leaves, each once: (items, 2).

        In walks that are alike those in `which`, and stand `moved` layers behind them.
        """
        walk, start = self._ends
        chain, _, seen, region = rows[rows[:, 1] == side, :4].T
        order = np.argsort(which, kind="stable")
        first = np.searchsorted(which[order], np.arange(len(self._walks) + 1))
        counts = np.diff(first)[walk[chain]]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        layers = moved[order][np.repeat(first[walk[chain]], counts) + within]
        seen, region, start = (np.repeat(x, counts) for x in (seen, region, start[chain]))
        is_made = seen < self._tensors.layers
        tensor = np.where(is_made, start + layers + seen, seen - self._tensors.layers)
        keys = np.unique(tensor * len(self._regions.boxes) + region)
        return np.column_stack(np.divmod(keys, len(self._regions.boxes)))

    @cached_property
    def _ends(self) -> tuple[Numbers, Numbers]:
        """The walk, and the first layer, of every chain."""
        walk, start = np.nonzero(self._begins.T[:, ::-1])
        return walk, len(self._begins) - 1 - start

    def _read_rows(self) -> Numbers:
        """What is read from outside: rows of chain, processor, tensor, region and its loads.

        Tensors are as seen from the chain's first layer.
        """
        tensor_numbers = {name: number for number, name in enumerate(self._tensors.names)}
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
            numbers = np.array([tensor_numbers[name] for name in tensors])[tensor]
            chain = self._chain[step.layer, walks[walk]]
            columns.append(np.stack([chain, side, numbers, notes, loads]))
            read.append(needed[at])
        chain, side, tensor, notes, loads = np.concatenate(columns, axis=1)
        regions = self._regions.of(self._shapes[tensor], np.concatenate(read), notes)
        order = np.lexsort([side, chain])
        seen = self._tensors.seen_from(self._ends[1][chain], tensor)
        return np.column_stack([chain, side, seen, regions, loads])[order]

    def _left_rows(self) -> Numbers:
        """Rows of a chain, a processor, a tensor and a region: what is left for others."""
        row, side = at = np.nonzero(self._leaves[:, None] & (self._parts != NONE))
        layer, walk = self._layer[row], self._walk[row]
        notes = np.where(side == 1, self._gpu.orders(row), 0)
        boxes = self._sub_ops.boxes[self._parts[at]]
        regions = self._regions.of(self._shapes[layer], boxes, notes)
        # A layer's output is left by all chains of the walk that begin at the layer or before it.
        first = self._chain[layer, walk] + ~self._begins[layer, walk]
        counts = np.cumsum(self._begins.sum(axis=0))[walk] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        chain = np.repeat(first, counts) + within
        order = np.argsort(chain, kind="stable")
        side, layer, regions = (np.repeat(column, counts) for column in (side, layer, regions))
        seen = self._tensors.seen_from(self._ends[1][chain], layer)
        return np.column_stack([chain, side, seen, regions])[order]

    def _sums(self) -> Milliseconds:
        """What is summed over the layers of a chain, by row: (rows, columns)."""
        cpu, gpu, amounts = self._cpu, self._gpu, self._sub_ops.amounts()
        packing_ms, packed_bytes = self._packing()
        columns = {
            "missing": cpu.missing + gpu.missing + self._misplaced,
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
        sums = np.column_stack([columns[name] for name in COLUMNS]).astype(np.float64)
        views, sources = gpu.views(self._layer, self._walk, self._leaves, self._viewed)
        own = [gpu.alone_ms, columns["gpu_bytes"], gpu.part_launches]
        places = [COLUMNS.index(name) for name in ("gpu_ms", "gpu_bytes", "launches")]
        for place, amounts_ in zip(places, own, strict=True):
            np.subtract.at(sums[:, place], sources, amounts_[views])
        return sums

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
    ) -> list[list[CandidateChain]]:
        """By walk, every chain that both processors have variants for, the shortest first."""
        walk, start = self._ends
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
        first, last = first + self._chosen.count, last + self._chosen.count
        columns = (walk, start, launches, totals["weights"], first, last)
        rows = zip(*(column[able].tolist() for column in columns), strict=True)
        pairs = zip(map(tuple, works[able].tolist()), map(tuple, alone[able].tolist()), strict=True)
        ratios, walks = self._sub_ops.ratios, self._walks
        found: list[list[CandidateChain]] = [[] for _ in walks]
        for at, (w, begin, count, weights, first_, last_), (work_ms, alone_ms) in zip(
            able.tolist(), rows, pairs, strict=True
        ):
            end, dim, step, _ = walks[w]
            found[w].append(
                CandidateChain(
                    begin, end, dim, ratios[step], reads_of[at], leaves_of[at],
                    work_ms, alone_ms, count, weights, (first_, last_)
                )
            )  # fmt: skip
        return found

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
        chain, _, _, numbers, loads = reads[reads[:, 4] > 0].T
        own, which = np.unique(numbers, return_inverse=True)
        shapes = [self._regions.shape(number) for number in own.tolist()]
        load_ms = self._moves_ms("load", shapes)[which]
        size = np.array([shape.bytes for shape in shapes], np.float64)[which]
        count = len(totals["packing_ms"])
        totals["packing_ms"] += np.bincount(chain, loads * load_ms, count)
        totals["cpu_bytes"] += np.bincount(chain, 2 * loads * size, count)


def _by_chain(held: Numbers, count: int) -> list[list[list[int]]]:
    """Tensor, processor and region of rows that are ordered by chain, for each chain."""
    bounds = np.searchsorted(held[:, 0], np.arange(count + 1)).tolist()
    rows = held[:, [2, 1, 3]].tolist()
    return [rows[first:last] for first, last in pairwise(bounds)]
