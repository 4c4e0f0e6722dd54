"""Predicted costs of candidate chains: parts, variants, storages and nets, in batches.

A chain is a run of layers in topological order, cut at a dimension and a ratio. The cost of a layer
in a chain depends on that layer and on later layers of the chain, and not on where the chain
begins. So one walk from a chain's end gives the costs of all chains that end there, and the cost of
a chain is a difference of two running sums.

Equal stretches of layers are evaluated once: a transformer repeats one block many times. Stretches
are equal if their ops are, if they read each other's outputs alike, and if later layers read their
outputs at the same distances. docs/concepts/planner.md has the tables of a chain of three layers.
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
from codl.plan.shards import CpuShards, GpuShards, LayerTraits, LayerWeights, planar_layers
from codl.plan.sub_ops import HaloPropagation, LayerPass, StorageOrders, SubOps, Walk

#: A chain's first layer, the layer after its last one, its dimension and its ratio.
ChainKey: TypeAlias = tuple[int, int, Dim, float]
#: Stretches of more layers than this are not compared with others.
LONGEST_ALIKE = 32
#: Walks are evaluated in batches of at most this many. Arrays have an entry for each layer and walk
#: of a batch, so one batch for a network of thousands of layers would need quadratic time.
MOST_WALKS = 1 << 14
#: The columns that are summed over the layers of a chain.
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
    """Columns over the layers of some walks: parts, CPU libraries and GPU storages.

    `parts` is shaped (rows, 2), the others (rows).
    """

    layers: Numbers
    parts: Numbers
    libraries: Numbers
    storages: Numbers


class CandidateChain(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain at a cut, with the costs of both shards.

    `reads` and `leaves` are rows of (tensor, processor, region): the inputs of the shards in the
    order of lowering, and the outputs that later chains read. Processor 0 is the CPU and 1 the GPU;
    regions are numbers of `RegionTable`, whose notes are storage orders. A tensor of a layer is
    numbered by the layer's distance from `start`, and other tensors by numbers beyond all layers.

    `work_ms` is the time of each shard while the other one works, and `alone_ms` that of its ops
    without the other. `launches` counts kernels, or small groups of kernels, and `weights` is the
    bytes of weights on both processors. `rows` are the chain's rows of `Chosen`, last layer first;
    chains with the same rows differ only in where they begin.
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
        """The equal chain that begins `layers` layers later."""
        return (
            CandidateChain(self.start + layers, self.stop + layers, *self[2:]) if layers else self
        )


class ChainCosts:
    """The costs of a network's chains at some ratios, by one cost model."""

    def __init__(self, network: Network, cost: CostModel, ratios: Sequence[float]) -> None:
        layers = network.layers
        self.network, self.cost = network, cost
        #: The index of the last layer that reads each tensor; of results, the number of layers.
        self.last_reader = dict.fromkeys((*network.inputs, *network.constants), -1)
        for at, layer in enumerate(layers):
            self.last_reader |= {layer.output: -1, **dict.fromkeys(layer.inputs, at)}
        results = [name for name, _ in network.outputs.values()]
        self.last_reader |= dict.fromkeys(results, len(layers))
        #: Constants with a single reader. Each processor has them from the start, in the storage of
        #: that layer, so chains neither read nor transfer them.
        self.private_tensors = network.private_constants
        self.weights = LayerWeights(network, cost.places, self.private_tensors)
        self.sub_ops = SubOps([layer.op for layer in layers], cost, ratios)
        self.known: dict[ChainKey, CandidateChain] = {}
        #: All tensors, outputs of layers first.
        self.makers = {layer.output: at for at, layer in enumerate(layers)}
        self.tensors = list({**self.makers, **network.shapes})
        self.regions = RegionTable(network.shapes.values())
        self.orders = StorageOrders(cost.storages)
        numbers = {layer.name: number for number, layer in enumerate(layers)}
        #: By layer number, the number of the residual add that its kernels may compute as well.
        self.adds = {
            numbers[name]: numbers[add.name] for name, add in residual_adds(layers, results).items()
        }
        #: By layer, the number of the library that computes it on the CPU.
        self.libraries = cpu_libraries(network, cost)
        #: By layer, True where the GPU computes it in a planar fallback variant.
        self.planar = planar_layers(network, cost)
        #: By layer, the layer whose output it only reshapes and may be a view of; or -1.
        viewed = (self.makers.get(x.inputs[0], -1) if x.op.keeps_order else -1 for x in layers)
        self.viewed = np.fromiter(viewed, np.int64, len(layers))
        self.traits = LayerTraits(network)
        #: By tensor, its number, and the number of its shape.
        self.tensor_numbers = {name: number for number, name in enumerate(self.tensors)}
        shape_numbers = (self.regions.shapes[network.shapes[name]] for name in self.tensors)
        self.tensor_shapes = np.fromiter(shape_numbers, np.int64, len(self.tensors))
        #: By layer and input, True where that is a private tensor.
        self.is_private = np.zeros((len(layers), self.sub_ops.needs.shape[1]), np.bool_)
        for number, layer in enumerate(layers):
            for at, name in enumerate(layer.inputs):
                self.is_private[number, at] = name in self.private_tensors

    @cached_property
    def live(self) -> list[tuple[str, ...]]:
        """By point between layers, the live tensors, oldest first, without private tensors."""
        live: list[list[str]] = [[] for _ in range(len(self.network.layers) + 1)]
        made = {name: at + 1 for name, at in self.makers.items()}
        names = self.last_reader.keys() - self.private_tensors
        for name in sorted(names, key=lambda name: (made.get(name, 0), name)):
            for at in range(made.get(name, 0), self.last_reader[name] + 1):
                live[at].append(name)
        return [tuple(names) for names in live]

    def tensor(self, start: int, seen: int) -> str:
        """The name of the tensor with number `seen` in a chain that begins at layer `start`."""
        made = len(self.makers)
        return self.tensors[start + seen if seen < made else seen - made]

    def variants(self, candidate: CandidateChain) -> dict[str, dict[str, str]]:
        """The kernel variants of a chain by layer and processor, first layer first."""
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
        """The chains of some walks for which each processor has variants.

        With `limited`, chains with a large halo are left out. Equal walks are evaluated once.
        """
        numbers: dict[Hashable, int] = {}
        which = [numbers.setdefault(self._content(walk), len(numbers)) for walk in walks]
        places = dict(zip(reversed(which), reversed(range(len(walks))), strict=True))
        distinct = [walks[places[number]] for number in range(len(numbers))]
        by_walk = self._evaluated(distinct, limited=limited)
        candidates = [
            candidate.moved(walk.stop - distinct[number].stop)
            for walk, number in zip(walks, which, strict=True)
            for candidate in by_walk[number]
        ]
        self.known.update((candidate[:4], candidate) for candidate in candidates)
        return candidates

    def _evaluated(self, walks: Sequence[Walk], *, limited: bool) -> list[list[CandidateChain]]:
        """The chains of each walk; walks with near ends are evaluated together."""
        order = sorted(range(len(walks)), key=lambda number: walks[number].stop)
        if len(walks) <= MOST_WALKS:
            order = list(range(len(walks)))
        batches = [order[at : at + MOST_WALKS] for at in range(0, len(order), MOST_WALKS)]
        halos = [self.halo([walks[at] for at in batch], limited=limited) for batch in batches]
        passes = [halo.steps() for halo in halos]
        each = [step.parts for steps in passes for step in steps]
        parts = np.concatenate([np.empty((0, 2), np.int64), *each])
        for side in (0, 1):  # predict all parts in one batch
            self.sub_ops.fastest_ms(parts[:, side], side)
        found: list[list[CandidateChain]] = [[] for _ in walks]
        for batch, halo, steps in zip(batches, halos, passes, strict=True):
            evaluation = ChainEvaluation(self, [walks[at] for at in batch], halo, steps)
            for at, candidates in zip(batch, evaluation.candidates(), strict=True):
                found[at] = candidates
        return found

    def steps(self, walks: Sequence[Walk]) -> list[LayerPass]:
        """The passes of all layers on some walks, last layer first."""
        return self.halo(walks, limited=False).steps()

    def halo(self, walks: Sequence[Walk], *, limited: bool) -> HaloPropagation:
        network_facts = self.network.layers, self.sub_ops, self.last_reader, self.private_tensors
        return HaloPropagation(*network_facts, walks, limited=limited)

    # Equal stretches of layers.

    def _content(self, walk: Walk) -> Hashable:
        """A key that equal walks share; a long walk is its own key.

        Walks are equal if their first points have the same number, and all of their layers too.
        """
        first, (layers, points) = min(walk.starts), self._numbers
        if walk.stop - first > LONGEST_ALIKE:
            return walk
        starts = tuple(sorted(walk.stop - start for start in walk.starts))
        return walk.dim, walk.step, starts, points[first], tuple(layers[first : walk.stop])

    @cached_property
    def _numbers(self) -> tuple[list[int], list[int]]:
        """Numbers of the layers, and of the points before each layer and after the last one.

        Equal layers have the same number, and so have points with equal live tensors.
        """

        def seen_from(at: int, name: str) -> tuple[Hashable, int]:
            """A tensor by the distance to its maker, and to its last reader."""
            if name in self.private_tensors:
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


class ChainEvaluation:
    """Evaluates all chains of some walks at once.

    Arrays have one row for each layer in each walk, last layer first.
    """

    def __init__(
        self,
        costs: ChainCosts,
        walks: Sequence[Walk],
        halo: HaloPropagation,
        steps: Sequence[LayerPass],
    ) -> None:
        self._walks, self._steps, self._begins = walks, steps, halo.begins
        self._first_layer = halo.first
        self._cost, self._sub_ops, self._regions = costs.cost, costs.sub_ops, costs.regions
        self._network, self._shapes = costs.network, costs.tensor_shapes
        self._tensor_numbers, self._is_private = costs.tensor_numbers, costs.is_private
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
        cpu, gpu = self._parts.T
        self._misplaced = costs.weights.misplaced(self._layer, self._parts, costs.sub_ops)
        common = costs.network, costs.cost, costs.sub_ops
        preferred = costs.libraries[self._layer]
        self._cpu = CpuShards(*common, cpu, self._layer, preferred, len(walks), costs.traits)
        self._gpu = GpuShards(
            *common, gpu, costs.orders, len(walks), costs.adds, costs.planar[self._layer]
        )
        self._viewed = costs.viewed[self._layer]
        #: By layer and walk, the number of the walk's longest chain that begins there or later.
        #: The chains of a walk have successive numbers, the shortest first.
        backwards = self._begins[::-1].T
        self._chain = (np.cumsum(backwards).reshape(backwards.shape)[:, ::-1] - 1).T

    def candidates(self) -> list[list[CandidateChain]]:
        """By walk, the chains for which each processor has variants, the shortest first."""
        reads, leaves = self._read_rows(), self._left_rows()
        order = np.argsort(self._walk, kind="stable")  # rows by walk, last layer first
        libraries, storages = self._cpu.libraries[order], self._gpu.storages[order]
        chosen = Chosen(self._layer[order], self._parts[order], libraries, storages)
        walk, start = self._ends
        stop = np.array([walk.stop for walk in self._walks], np.int64)[walk]
        first = np.searchsorted(self._walk[order], np.arange(len(self._walks)))[walk]
        last = first + stop - start
        running = np.concatenate(
            [np.zeros((1, len(COLUMNS))), np.cumsum(self.columns()[order], axis=0)]
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
        """The walk and the first layer of each chain."""
        walk, start = np.nonzero(self._begins.T[:, ::-1])
        return walk, self._first_layer + len(self._begins) - 1 - start

    def _seen(self, chain: Numbers, tensor: Numbers) -> Numbers:
        """The numbers of tensors in chains, relative to the chains' first layers."""
        made = len(self._network.layers)
        return np.where(tensor < made, tensor - self._ends[1][chain], tensor + made)

    def _read_rows(self) -> Numbers:
        """Inputs of chains: rows of (chain, processor, tensor, region, *loads by library).

        Tensor numbers are relative to the chain's first layer.
        """
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
            numbers = np.array([self._tensor_numbers[name] for name in tensors])[tensor]
            chain = self._chain[step.layer - self._first_layer, walks[walk]]
            columns.append(np.stack([chain, side, numbers, notes, *loads]))
            read.append(needed[at])
        chain, side, tensor, notes, *loads = np.concatenate(columns, axis=1)
        regions = self._regions.of(self._shapes[tensor], np.concatenate(read), notes)
        order = np.lexsort([side, chain])
        seen = self._seen(chain, tensor)
        return np.column_stack([chain, side, seen, regions, *loads])[order]

    def _left_rows(self) -> Numbers:
        """Outputs of chains that later chains read: rows of (chain, processor, tensor, region)."""
        row, side = np.nonzero(self._leaves[:, None] & (self._parts != NONE))
        layer, walk = self._layer[row], self._walk[row]
        notes = np.where(side == 1, self._gpu.orders(row), 0)
        boxes = self._sub_ops.boxes[self._parts[row, side]]
        regions = self._regions.of(self._shapes[layer], boxes, notes)
        # All chains of the walk that begin at the layer or before it leave its output.
        at = layer - self._first_layer
        first = self._chain[at, walk] + ~self._begins[at, walk]
        counts = np.cumsum(self._begins.sum(axis=0))[walk] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        chain = np.repeat(first, counts) + within
        order = np.argsort(chain, kind="stable")
        side, layer, regions = (np.repeat(column, counts) for column in (side, layer, regions))
        seen = self._seen(chain, layer)
        return np.column_stack([chain, side, seen, regions])[order]

    def columns(self) -> Milliseconds:
        """The columns to sum over the layers of a chain, shaped (rows, columns)."""
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
        """Milliseconds and bytes of packing and unpacking layers' outputs in CPU nets; (rows)."""
        cpu, parts = self._cpu, self._cpu.parts
        packing_ms, packed_bytes = np.zeros((2, len(parts)))
        for number, library in enumerate(LIBRARIES):
            mine = cpu.libraries == number
            ways = {loading(library): cpu.loaded[:, number], storing(library): cpu.stored * mine}
            for way, times in ways.items():
                self._add_moves(way, times, None, packing_ms, packed_bytes)
            for at, is_private in enumerate(self._is_private.T):
                needs = is_something(self._sub_ops.needs[parts, at])
                times = is_private[self._layer] & needs & cpu.packs & mine
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
        """Add the cost of packing input `at` of CPU parts, or their output (None), `times` each."""
        rows = np.flatnonzero(times)
        if not rows.size:
            return
        numbers, which = np.unique(self._cpu.parts[rows], return_inverse=True)
        ops = [self._sub_ops.op(number) for number in numbers.tolist()]
        shapes = [op.output if at is None else op.inputs[at] for op in ops]
        packing_ms[rows] += times[rows] * self._cost.packings_ms(way, shapes)[which]
        packed_bytes[rows] += times[rows] * np.array([2.0 * x.bytes for x in shapes])[which]

    def _works(self, totals: Mapping[str, Milliseconds]) -> tuple[Milliseconds, Milliseconds]:
        """Milliseconds of the shards of chains, each alone, and together; (chains, 2) each."""
        images = totals["cpu_images"] / np.maximum(totals["cpu_parts"], 1)
        saved_ms = self._cost.turns(images) * totals["cpu_saved_ms"]
        alone = np.column_stack([totals["cpu_ms"] - saved_ms, totals["gpu_ms"]])
        moved = np.column_stack([totals[f"{name}_bytes"] for name in PROCESSORS])
        packing_ms = totals["packing_ms"][:, None] * [1.0, 0.0]
        return alone, self._cost.together_ms(moved, alone + packing_ms)

    def _add_loads(self, totals: dict[str, Milliseconds], reads: Numbers) -> None:
        """Add the cost of packing the inputs of chains in CPU nets."""
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


def _by_chain(rows: Numbers, count: int) -> list[list[list[int]]]:
    """(tensor, processor, region) of rows ordered by chain, as one list for each chain."""
    bounds = np.searchsorted(rows[:, 0], np.arange(count + 1)).tolist()
    kept = rows[:, [2, 1, 3]].tolist()
    return [kept[first:last] for first, last in pairwise(bounds)]
