"""Predicted costs of candidate chains: parts, variants, storages and nets, in batches.

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

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from codl.ir import Dim, Network
from codl.ir.types import PROCESSORS, Direction
from codl.kernels.base import LIBRARIES
from codl.lower.rules import loading, residual_adds, storing
from codl.plan.cost_model import CostModel, Milliseconds, Pair
from codl.plan.cpu_libraries import cpu_libraries
from codl.plan.region_array import NONE, Flags, Numbers, RegionTable, is_something
from codl.plan.shards import CpuShards, GpuShards, LayerWeights, planar_layers
from codl.plan.sub_ops import HaloPropagation, LayerPass, StorageOrders, SubOps, Walk

#: Where a chain begins and ends, its dimension and its ratio.
ChainKey: TypeAlias = tuple[int, int, Dim, float]
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


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was chosen for layers in walks: the parts of both processors, and how they are made."""

    layers: Numbers
    parts: Numbers
    libraries: Numbers
    storages: Numbers


class CandidateChain(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each shard takes.

    `reads` and `leaves` are rows of a tensor, a processor's number, 0 for the CPU and 1 for the
    GPU, and a region's: what the shards read from outside, in the order in which lowering asks for
    it, and leave for others; the regions' notes are storage orders. Tensors are numbered as seen
    from the chain's start: what a layer makes has the layer's distance from there as its number,
    and the others stand behind all layers. `work_ms` is how long each shard takes while the other
    one works, `alone_ms` how long its ops take alone; `launches` how many kernels, or small groups
    of them, are launched; `weights` the bytes of weights of both. `rows` are those of its layers,
    last to first; chains with the same rows are alike in all but where they begin.
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
    rows: tuple[Chosen, int, int]

    def moved(self, layers: int) -> CandidateChain:
        """The same chain, `layers` layers behind this one."""
        return (
            CandidateChain(self.start + layers, self.stop + layers, *self[2:]) if layers else self
        )


class ChainCosts:
    """Costs of a network's chains, cut at some ratios, by one cost model."""

    def __init__(self, network: Network, cost: CostModel, ratios: Sequence[float]) -> None:
        layers = network.layers
        self.network, self.cost = network, cost
        #: The index of the last layer that reads each tensor; of results, the number of layers.
        self.last_reader = dict.fromkeys((*network.inputs, *network.constants), -1)
        for at, layer in enumerate(layers):
            self.last_reader |= {layer.output: -1, **dict.fromkeys(layer.inputs, at)}
        results = [name for name, _ in network.outputs.values()]
        self.last_reader |= dict.fromkeys(results, len(layers))
        #: Constants that one layer alone reads. Both processors have them from the start, and they
        #: lie as that layer wants them: they cost it something, and are no concern of chains.
        self.lone = network.lone
        self.weights = LayerWeights(network, cost.places, frozenset(self.lone))
        self.sub_ops = SubOps([layer.op for layer in layers], cost, ratios)
        self.known: dict[ChainKey, CandidateChain] = {}
        #: All tensors, results of layers first; and the regions that chains read or leave.
        self.makers = {layer.output: at for at, layer in enumerate(layers)}
        self.tensors = list({**self.makers, **network.shapes})
        self.regions = RegionTable(network.shapes.values())
        self.orders = StorageOrders(cost.storages)
        numbers = {layer.name: number for number, layer in enumerate(layers)}
        #: The number of the layer that each convolution's kernels may compute too, by its own.
        self.adds = {
            numbers[name]: numbers[add.name] for name, add in residual_adds(layers, results).items()
        }
        #: The library that is to compute each layer on the CPU.
        self.libraries = cpu_libraries(network, cost)
        #: The layers that the GPU computes on planar tensors, in variants for such.
        self.planar = planar_layers(network, cost)
        #: By layer whose output has its input's elements in their order, the layer that makes that,
        #: in whose memory it may be; -1 of all others.
        viewed = (self.makers.get(x.inputs[0], -1) if x.op.keeps_order else -1 for x in layers)
        self.viewed = np.fromiter(viewed, np.int64, len(layers))

    @cached_property
    def live(self) -> list[tuple[str, ...]]:
        """At every point between layers, the tensors that are there and still read, oldest first.

        But for constants that are `lone`.
        """
        live: list[list[str]] = [[] for _ in range(len(self.network.layers) + 1)]
        made = {name: at + 1 for name, at in self.makers.items()}
        names = self.last_reader.keys() - self.lone
        for name in sorted(names, key=lambda name: (made.get(name, 0), name)):
            for at in range(made.get(name, 0), self.last_reader[name] + 1):
                live[at].append(name)
        return [tuple(names) for names in live]

    def tensor(self, start: int, seen: int) -> str:
        """The name of a tensor by its number as it is seen from a layer."""
        made = len(self.makers)
        return self.tensors[start + seen if seen < made else seen - made]

    def variants(self, candidate: CandidateChain) -> dict[str, dict[str, str]]:
        """The kernel variants of every part of a candidate, by layer, first to last."""
        chosen, first, last = candidate.rows
        variants: dict[str, dict[str, str]] = {}
        for layer, row in enumerate(reversed(range(first, last)), candidate.start):
            by_side = variants[self.network.layers[layer].name] = {}
            cpu, gpu = chosen.parts[row].tolist()
            if cpu != NONE:
                by_side["cpu"] = self.sub_ops.cpu_variant(cpu, int(chosen.libraries[row]))
            if gpu != NONE:
                by_side["gpu"] = self.sub_ops.gpu_variant(gpu, int(chosen.storages[row]))
        return variants

    def evaluate(self, walks: Sequence[Walk], *, limited: bool = False) -> list[CandidateChain]:
        """The chains of some walks that both processors have variants for.

        With `limited`, those are left out that compute much twice. Walks that are alike are looked
        at once.
        """
        numbers: dict[Hashable, int] = {}
        which = [numbers.setdefault(self._content(walk), len(numbers)) for walk in walks]
        places = dict(zip(reversed(which), reversed(range(len(walks))), strict=True))
        distinct = [walks[places[number]] for number in range(len(numbers))]
        halo = self._halo(distinct, limited=limited)
        by_walk = _Evaluation(self, distinct, halo.steps(), halo.begins).candidates()
        candidates = [
            candidate.moved(walk.stop - distinct[number].stop)
            for walk, number in zip(walks, which, strict=True)
            for candidate in by_walk[number]
        ]
        self.known.update((candidate[:4], candidate) for candidate in candidates)
        return candidates

    def steps(self, walks: Sequence[Walk]) -> list[LayerPass]:
        """The parts of every layer that walks pass, last layer to first."""
        return self._halo(walks, limited=False).steps()

    def _halo(self, walks: Sequence[Walk], *, limited: bool) -> HaloPropagation:
        network_facts = self.network.layers, self.sub_ops, self.last_reader, self.lone
        return HaloPropagation(*network_facts, walks, limited=limited)

    # Stretches that are alike.

    def _content(self, walk: Walk) -> Hashable:
        """What walks have in common that are alike; of a long one itself.

        Their first points have the same number, and so have all of their layers.
        """
        first, (layers, points) = min(walk.starts), self._alike
        if walk.stop - first > LONGEST_ALIKE:
            return walk
        starts = tuple(sorted(walk.stop - start for start in walk.starts))
        return walk.dim, walk.step, starts, points[first], tuple(layers[first : walk.stop])

    @cached_property
    def _alike(self) -> tuple[list[int], list[int]]:
        """Numbers of the layers, and of the points before each and behind the last.

        They are the same for the same content: ops, what else makes layers differ, and tensors.
        """

        def seen_from(at: int, name: str) -> tuple[Hashable, int]:
            """A tensor by where it is from, and for how long it is still read."""
            if name in self.lone:
                return "", 0
            source = at - self.makers[name] if name in self.makers else name
            return source, min(self.last_reader[name] - at, LONGEST_ALIKE + 1)

        def numbers(contents: Sequence[Hashable]) -> list[int]:
            number_of: dict[Hashable, int] = {}
            return [number_of.setdefault(content, len(number_of)) for content in contents]

        added = set(self.adds.values())
        layers = [
            (
                self.sub_ops.op_of[at],
                int(self.libraries[at]),
                at in added,
                self.adds[at] - at if at in self.adds else 0,
                self.planar[at],
                self.weights.note(at),
                *(seen_from(at, name) for name in (*layer.inputs, layer.output)),
            )
            for at, layer in enumerate(self.network.layers)
        ]
        points = [tuple(seen_from(at, name) for name in live) for at, live in enumerate(self.live)]
        return numbers(layers), numbers(points)


class _Evaluation:
    """One pass over the steps of some walks, last layer to first.

    A row is a layer in a walk, and the part of it that either processor computes.
    """

    def __init__(
        self, costs: ChainCosts, walks: Sequence[Walk], steps: list[LayerPass], begins: Flags
    ) -> None:
        self._walks, self._steps, self._begins = walks, steps, begins
        self._cost, self._sub_ops, self._regions = costs.cost, costs.sub_ops, costs.regions
        self._network, self._tensors = costs.network, costs.tensors
        shapes, numbers = costs.network.shapes, costs.regions.shapes
        #: The number of the shape of every tensor.
        self._shapes = np.array([numbers[shapes[name]] for name in costs.tensors])
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
        common = costs.network, costs.cost, costs.sub_ops
        preferred = costs.libraries[self._layer]
        self._cpu = CpuShards(*common, cpu, self._layer, preferred, len(walks))
        self._gpu = GpuShards(
            *common, gpu, costs.orders, len(walks), costs.adds, costs.planar[self._layer]
        )
        self._viewed = costs.viewed[self._layer]
        #: By layer and walk, the number of the walk's last chain that begins there or behind it.
        #: Chains of one walk stand together, the shortest first.
        backwards = begins[::-1].T
        self._chain = (np.cumsum(backwards).reshape(backwards.shape)[:, ::-1] - 1).T

    def candidates(self) -> list[list[CandidateChain]]:
        """By walk, every chain that both processors have variants for, the shortest first."""
        reads, leaves = self._read_rows(), self._left_rows()
        order = np.argsort(self._walk, kind="stable")  # of each walk, last layer to first
        libraries, storages = self._cpu.libraries[order], self._gpu.storages[order]
        chosen = Chosen(self._layer[order], self._parts[order], libraries, storages)
        walk, start = self._ends
        stop = np.array([walk.stop for walk in self._walks], np.int64)[walk]
        first = np.searchsorted(self._walk[order], np.arange(len(self._walks)))[walk]
        last = first + stop - start
        running = np.concatenate(
            [np.zeros((1, len(COLUMNS))), np.cumsum(self._sums()[order], axis=0)]
        )
        totals = dict(zip(COLUMNS, (running[last] - running[first]).T, strict=True))
        self._add_loads(totals, reads)
        alone, works = self._works(totals)
        able = np.flatnonzero(np.rint(totals["missing"]) == 0)
        reads_of, leaves_of = _by_chain(reads, len(walk)), _by_chain(leaves, len(walk))
        launches = np.rint(totals["launches"]).astype(np.int64)
        columns = (walk, start, launches, totals["weights"], first, last)
        rows = zip(*(column[able].tolist() for column in columns), strict=True)
        pairs = zip(map(tuple, works[able].tolist()), map(tuple, alone[able].tolist()), strict=True)
        by_walk: list[list[CandidateChain]] = [[] for _ in self._walks]
        for at, (w, begin, count, weights, first_, last_), (work_ms, alone_ms) in zip(
            able.tolist(), rows, pairs, strict=True
        ):
            end, dim, step, _ = self._walks[w]
            by_walk[w].append(
                CandidateChain(
                    begin, end, dim, self._sub_ops.ratios[step], reads_of[at], leaves_of[at],
                    work_ms, alone_ms, count, weights, (chosen, first_, last_)
                )
            )  # fmt: skip
        return by_walk

    @cached_property
    def _ends(self) -> tuple[Numbers, Numbers]:
        """The walk, and the first layer, of every chain."""
        walk, start = np.nonzero(self._begins.T[:, ::-1])
        return walk, len(self._begins) - 1 - start

    def _seen(self, chain: Numbers, tensor: Numbers) -> Numbers:
        """Tensors as seen from the first layers of chains."""
        made = len(self._network.layers)
        return np.where(tensor < made, tensor - self._ends[1][chain], tensor + made)

    def _read_rows(self) -> Numbers:
        """What is read from outside: rows of chain, processor, tensor, region, loads by library.

        Tensors are as seen from the chain's first layer.
        """
        tensor_numbers = {name: number for number, name in enumerate(self._tensors)}
        first = 0
        columns = [np.empty((4 + len(LIBRARIES), 0), np.int64)]
        read = [np.empty((0, 6), np.int64)]
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
            loads = self._cpu.loads(tensors, walks)[tensor, walk].T * (side == 0)
            numbers = np.array([tensor_numbers[name] for name in tensors])[tensor]
            chain = self._chain[step.layer, walks[walk]]
            columns.append(np.stack([chain, side, numbers, notes, *loads]))
            read.append(needed[at])
        chain, side, tensor, notes, *loads = np.concatenate(columns, axis=1)
        regions = self._regions.of(self._shapes[tensor], np.concatenate(read), notes)
        order = np.lexsort([side, chain])
        seen = self._seen(chain, tensor)
        return np.column_stack([chain, side, seen, regions, *loads])[order]

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
        seen = self._seen(chain, layer)
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
        viewed_amounts = [gpu.alone_ms, columns["gpu_bytes"], gpu.part_launches]
        places = [COLUMNS.index(name) for name in ("gpu_ms", "gpu_bytes", "launches")]
        for place, amounts_ in zip(places, viewed_amounts, strict=True):
            np.subtract.at(sums[:, place], sources, amounts_[views])
        return sums

    def _packing(self) -> tuple[Milliseconds, Milliseconds]:
        """Milliseconds and bytes that the CPU's nets pack and unpack of what they make; (rows)."""
        cpu, parts = self._cpu, self._cpu.parts
        packing_ms, packed_bytes = np.zeros((2, len(parts)))
        for number, library in enumerate(LIBRARIES):
            mine = cpu.libraries == number
            ways = {loading(library): cpu.loaded[:, number], storing(library): cpu.stored * mine}
            for way, times in ways.items():
                self._add_moves(way, times, None, packing_ms, packed_bytes)
            for at, is_lone in enumerate(self._is_lone.T):
                needs = is_something(self._sub_ops.needs[parts, at])
                times = is_lone[self._layer] & needs & cpu.packs & mine
                self._add_moves(loading(library), times, at, packing_ms, packed_bytes)
        return packing_ms, packed_bytes

    def _add_moves(
        self,
        way: Direction,
        times: Numbers | Flags,
        at: int | None,
        packing_ms: Milliseconds,
        packed_bytes: Milliseconds,
    ) -> None:
        """Add what packing parts' inputs `at`, or their outputs, takes so many times; (rows)."""
        rows = np.flatnonzero(times)
        if not rows.size:
            return
        numbers, which = np.unique(self._cpu.parts[rows], return_inverse=True)
        ops = [self._sub_ops.op(number) for number in numbers.tolist()]
        shapes = [op.output if at is None else op.inputs[at] for op in ops]
        packing_ms[rows] += times[rows] * self._cost.packings_ms(way, shapes)[which]
        packed_bytes[rows] += times[rows] * np.array([2.0 * x.bytes for x in shapes])[which]

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
        count = len(totals["packing_ms"])
        for column, library in enumerate(LIBRARIES, 4):
            chain, _, _, numbers, *_ = some = reads[reads[:, column] > 0].T
            if not chain.size:
                continue
            distinct, which = np.unique(numbers, return_inverse=True)
            shapes = [self._regions.shape(number) for number in distinct.tolist()]
            load_ms = self._cost.packings_ms(loading(library), shapes)[which]
            size = np.array([shape.bytes for shape in shapes], np.float64)[which]
            totals["packing_ms"] += np.bincount(chain, some[column] * load_ms, count)
            totals["cpu_bytes"] += np.bincount(chain, 2 * some[column] * size, count)


def _by_chain(held: Numbers, count: int) -> list[list[list[int]]]:
    """Tensor, processor and region of rows that are ordered by chain, for each chain."""
    bounds = np.searchsorted(held[:, 0], np.arange(count + 1)).tolist()
    rows = held[:, [2, 1, 3]].tolist()
    return [rows[first:last] for first, last in pairwise(bounds)]
