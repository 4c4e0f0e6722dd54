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
from codl.lower.partition import loading, storing
from codl.plan.cost_model import CostModel, Milliseconds, Pair
from codl.plan.parts import (
    NONE,
    Flags,
    HaloPropagation,
    LayerPass,
    Numbers,
    PartTable,
    RegionTable,
    Walk,
    is_something,
)
from codl.plan.shards import (
    CpuShards,
    GpuShards,
    StorageOrders,
    cpu_libraries,
    cpu_variant,
    gpu_variant,
    planar_layers,
)

#: A chain's first layer, the layer after its last one, its dimension and its ratio.
ChainKey: TypeAlias = tuple[int, int, Dim, float]
#: Stretches of more layers than this are not compared with others.
LONGEST_ALIKE = 32
#: Walks are evaluated in batches of at most this many. Arrays have an entry for each layer and walk
#: of a batch, so one batch for a network of thousands of layers would need quadratic time.
MOST_WALKS = 1 << 14
#: The columns that are summed over the layers of a chain.
COLUMNS = (
    "missing", "cpu_ms", "cpu_saved_ms", "cpu_bytes", "cpu_images", "cpu_parts", "packing_ms",
    "gpu_ms", "gpu_bytes", "launches",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Chosen:
    """Columns over the layers of some walks: parts, CPU libraries and GPU storages.

    `parts` is shaped (rows, 2), the others (rows).
    """

    parts: Numbers
    libraries: Numbers
    storages: Numbers


class CandidateChain(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain at a cut, with the costs of both shards.

    `reads` and `writes` are rows of (tensor, processor, region): the inputs of the shards in the
    order of lowering, and the outputs that later chains read. Processor 0 is the CPU and 1 the GPU;
    regions are numbers of `RegionTable`, whose notes are storage orders. A tensor of a layer is
    numbered by the layer's distance from `start`, and other tensors by numbers beyond all layers.

    `work_ms` is the time of each shard while the other one works, and `alone_ms` that of its ops
    without the other. `launches` counts kernels, or small groups of kernels. `rows` are the chain's
    rows of `Chosen`, last layer first; chains with the same rows differ only in where they begin.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    reads: Sequence[Sequence[int]]
    writes: Sequence[Sequence[int]]
    work_ms: Pair
    alone_ms: Pair
    launches: int
    rows: tuple[Chosen, int, int]

    def moved(self, layers: int) -> CandidateChain:
        """The equal chain that begins `layers` layers later."""
        moved = CandidateChain(self.start + layers, self.stop + layers, *self[2:])
        return moved if layers else self


class ChainCosts:
    """The costs of a network's chains at some ratios, by one cost model.

    `known` has the evaluated chains by first layer, stop, dimension and ratio. `table` has the
    parts, `regions` the regions, and `orders` the storage orders that chains refer to by number.
    """

    def __init__(self, network: Network, cost: CostModel, ratios: Sequence[float]) -> None:
        layers = network.layers
        self.network, self.cost = network, cost
        self.known: dict[ChainKey, CandidateChain] = {}
        #: The index of the last layer that reads each tensor; of results, the number of layers.
        self.last_reader = dict.fromkeys((*network.inputs, *network.constants), -1)
        for at, layer in enumerate(layers):
            self.last_reader |= {layer.output: -1, **dict.fromkeys(layer.inputs, at)}
        results = [name for name, _ in network.outputs.values()]
        self.last_reader |= dict.fromkeys(results, len(layers))
        #: Constants with a single reader. Each processor has them from the start, in the storage of
        #: that layer, so chains neither read nor transfer them.
        self.private_tensors = network.private_constants
        self.table = PartTable([layer.op for layer in layers], cost, ratios)
        #: All tensors by number, outputs of layers first.
        self.makers = {layer.output: at for at, layer in enumerate(layers)}
        self.tensors = list({**self.makers, **network.shapes})
        self.numbers = {name: number for number, name in enumerate(self.tensors)}
        self.regions = RegionTable(network.shapes.values())
        #: By tensor, the number of its shape.
        self.shapes = np.array([self.regions.shapes[network.shapes[x]] for x in self.tensors])
        self.orders = StorageOrders(cost.storages)
        #: By layer, the number of the CPU's library.
        self.libraries = cpu_libraries(network, cost)
        #: By layer, True where the GPU computes it in a planar fallback variant.
        self.planar = planar_layers(network, cost)
        #: By layer, the layer whose output it only reshapes and may be a view of; or -1.
        viewed = [self.makers.get(x.inputs[0], -1) if x.op.keeps_order else -1 for x in layers]
        self.viewed = np.array(viewed, np.int64)
        #: By layer and input, True where that is a private tensor.
        self.is_private = np.zeros((len(layers), self.table.needs.shape[1]), np.bool_)
        for number, layer in enumerate(layers):
            is_private = [name in self.private_tensors for name in layer.inputs]
            self.is_private[number, : len(is_private)] = is_private

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

    def named(self, start: int, rows: Sequence[Sequence[int]]) -> list[tuple[str, int, int]]:
        """Rows of `reads` or `writes` of a chain from layer `start` on, with names of tensors."""
        made, names = len(self.makers), self.tensors
        return [
            (names[start + tensor if tensor < made else tensor - made], side, region)
            for tensor, side, region in rows
        ]

    def variants(self, candidate: CandidateChain) -> dict[str, dict[str, str]]:
        chosen, first, last = candidate.rows
        variants: dict[str, dict[str, str]] = {}
        for layer, row in enumerate(reversed(range(first, last)), candidate.start):
            by_side = variants[self.network.layers[layer].name] = {}
            cpu, gpu = chosen.parts[row].tolist()
            if cpu != NONE:
                library = int(chosen.libraries[row])
                by_side["cpu"] = cpu_variant(self.table.op(cpu), library, self.cost)
            if gpu != NONE:
                storage = int(chosen.storages[row])
                by_side["gpu"] = gpu_variant(self.table.op(gpu), storage, self.cost)
        return variants

    def walk(self, start: int, stop: int, dim: Dim, gpu_ratio: float) -> Walk:
        return Walk(stop, dim, self.table.ratios.index(gpu_ratio), frozenset([start]))

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
        order = list(range(len(walks)))
        if len(walks) > MOST_WALKS:
            order.sort(key=lambda number: walks[number].stop)
        batches = [order[at : at + MOST_WALKS] for at in range(0, len(order), MOST_WALKS)]
        halos = [self.halo([walks[at] for at in batch], limited=limited) for batch in batches]
        passes = [halo.steps() for halo in halos]
        each = [step.parts for steps in passes for step in steps]
        parts = np.concatenate([np.empty((0, 2), np.int64), *each])
        for side in (0, 1):  # predict all parts in one batch
            self.table.fastest_ms(parts[:, side], side)
        found: list[list[CandidateChain]] = [[] for _ in walks]
        for batch, halo, steps in zip(batches, halos, passes, strict=True):
            evaluation = ChainEvaluation(self, [walks[at] for at in batch], halo, steps)
            for at, candidates in zip(batch, evaluation.candidates(), strict=True):
                found[at] = candidates
        return found

    def halo(self, walks: Sequence[Walk], *, limited: bool = False) -> HaloPropagation:
        """The propagation of some walks through the network; see `evaluate` for `limited`."""
        facts = self.network.layers, self.table, self.last_reader, self.private_tensors
        return HaloPropagation(*facts, walks, limited=limited)

    # Equal stretches of layers.

    def _content(self, walk: Walk) -> Hashable:
        """A key that equal walks share; a long walk is its own key.

        Walks are equal if their first points have the same number, and all of their layers too.
        """
        first, (layers, points) = min(walk.starts), self._stretch_numbers
        if walk.stop - first > LONGEST_ALIKE:
            return walk
        starts = tuple(sorted(walk.stop - start for start in walk.starts))
        return walk.dim, walk.step, starts, points[first], tuple(layers[first : walk.stop])

    @cached_property
    def _stretch_numbers(self) -> tuple[list[int], list[int]]:
        """Numbers of the layers, and of the points before each layer and after the last one.

        Equal layers have the same number, and so have points with equal live tensors.
        """

        def seen_from(at: int, name: str) -> tuple[Hashable, int]:
            if name in self.private_tensors:
                return "", 0
            source = at - self.makers[name] if name in self.makers else name
            return source, min(self.last_reader[name] - at, LONGEST_ALIKE + 1)

        def numbers(contents: Sequence[Hashable]) -> list[int]:
            number_of: dict[Hashable, int] = {}
            return [number_of.setdefault(content, len(number_of)) for content in contents]

        layers = [
            (
                self.table.op_of[at],
                int(self.libraries[at]),
                self.planar[at],
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
        self._costs, self._walks, self._steps = costs, walks, steps
        self._begins, self._first_layer = halo.begins, halo.first
        counts = [len(step.walks) for step in steps]
        self._layer = np.repeat([step.layer for step in steps], counts).astype(np.int64)
        self._walk, self._is_written, self._parts = (
            np.concatenate([none, *columns])
            for none, columns in (
                (np.empty(0, np.int64), [step.walks for step in steps]),
                (np.empty(0, np.bool_), [step.is_written for step in steps]),
                (np.empty((0, 2), np.int64), [step.parts for step in steps]),
            )
        )
        cpu, gpu = self._parts.T
        common = costs.network, costs.cost, costs.table
        self._cpu = CpuShards(*common, costs.libraries, self._layer, cpu, len(walks))
        planar = costs.planar[self._layer]
        self._gpu = GpuShards(*common, costs.orders, planar, gpu, len(walks))
        #: By layer and walk, the number of the walk's longest chain that begins there or later.
        #: The chains of a walk have successive numbers, the shortest first.
        backwards = self._begins[::-1].T
        self._chain = (np.cumsum(backwards).reshape(backwards.shape)[:, ::-1] - 1).T
        walk, start = np.nonzero(backwards)
        #: The walk and the first layer of each chain.
        self._ends = walk, self._first_layer + len(self._begins) - 1 - start

    def candidates(self) -> list[list[CandidateChain]]:
        """By walk, the chains for which each processor has variants, the shortest first."""
        reads, writes = self._read_rows(), self._write_rows()
        order = np.argsort(self._walk, kind="stable")  # rows by walk, last layer first
        libraries, storages = self._cpu.libraries[order], self._gpu.storages[order]
        chosen = Chosen(self._parts[order], libraries, storages)
        walk, start = self._ends
        stop = np.array([walk.stop for walk in self._walks], np.int64)[walk]
        first = np.searchsorted(self._walk[order], np.arange(len(self._walks)))[walk]
        last = first + stop - start
        sums = np.cumsum(self.columns()[order], axis=0)
        running = np.concatenate([np.zeros((1, len(COLUMNS))), sums])
        totals = dict(zip(COLUMNS, (running[last] - running[first]).T, strict=True))
        self._add_loads(totals, reads)
        alone, works = self._works(totals)
        able = np.flatnonzero(np.rint(totals["missing"]) == 0)
        reads_of, writes_of = _by_chain(reads, len(walk)), _by_chain(writes, len(walk))
        launches = np.rint(totals["launches"]).astype(np.int64)
        columns = (walk, start, launches, first, last)
        rows = zip(*(column[able].tolist() for column in columns), strict=True)
        pairs = zip(map(tuple, works[able].tolist()), map(tuple, alone[able].tolist()), strict=True)
        by_walk: list[list[CandidateChain]] = [[] for _ in self._walks]
        ratios = self._costs.table.ratios
        for at, (w, begin, count, first_, last_), (work_ms, alone_ms) in zip(
            able.tolist(), rows, pairs, strict=True
        ):
            end, dim, step, _ = self._walks[w]
            by_walk[w].append(
                CandidateChain(
                    begin, end, dim, ratios[step], reads_of[at], writes_of[at],
                    work_ms, alone_ms, count, (chosen, first_, last_)
                )
            )  # fmt: skip
        return by_walk

    def _relative(self, chain: Numbers, tensor: Numbers) -> Numbers:
        """The numbers of tensors in chains, relative to the chains' first layers."""
        made = len(self._costs.makers)
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
            numbers = np.array([self._costs.numbers[name] for name in tensors])[tensor]
            chain = self._chain[step.layer - self._first_layer, walks[walk]]
            columns.append(np.stack([chain, side, numbers, notes, *loads]))
            read.append(needed[at])
        chain, side, tensor, notes, *loads = np.concatenate(columns, axis=1)
        shapes = self._costs.shapes[tensor]
        regions = self._costs.regions.of(shapes, np.concatenate(read), notes)
        order = np.lexsort([side, chain])
        tensor = self._relative(chain, tensor)
        return np.column_stack([chain, side, tensor, regions, *loads])[order]

    def _write_rows(self) -> Numbers:
        """Outputs of chains that later chains read: rows of (chain, processor, tensor, region)."""
        row, side = np.nonzero(self._is_written[:, None] & (self._parts != NONE))
        layer, walk = self._layer[row], self._walk[row]
        orders = self._costs.orders.single[self._gpu.storages[row]]
        boxes = self._costs.table.boxes[self._parts[row, side]]
        shapes, notes = self._costs.shapes[layer], np.where(side == 1, orders, 0)
        regions = self._costs.regions.of(shapes, boxes, notes)
        # All chains of the walk that begin at the layer or before it leave its output.
        at = layer - self._first_layer
        first = self._chain[at, walk] + ~self._begins[at, walk]
        counts = np.cumsum(self._begins.sum(axis=0))[walk] - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        chain = np.repeat(first, counts) + within
        order = np.argsort(chain, kind="stable")
        side, layer, regions = (np.repeat(column, counts) for column in (side, layer, regions))
        tensor = self._relative(chain, layer)
        return np.column_stack([chain, side, tensor, regions])[order]

    def columns(self) -> Milliseconds:
        """The columns to sum over the layers of a chain, shaped (rows, columns)."""
        cpu, gpu, table = self._cpu, self._gpu, self._costs.table
        packing_ms, packed_bytes = self._packing()
        columns = {
            "missing": cpu.missing + gpu.missing,
            "cpu_ms": cpu.ms,
            "cpu_saved_ms": cpu.saved_ms,
            "cpu_bytes": table.bytes[cpu.parts] + packed_bytes,
            "cpu_images": table.images[cpu.parts],
            "cpu_parts": cpu.parts != NONE,
            "packing_ms": packing_ms,
            "gpu_ms": gpu.ms,
            "gpu_bytes": table.bytes[gpu.parts],
            "launches": gpu.launches,
        }
        sums = np.column_stack([columns[name] for name in COLUMNS]).astype(np.float64)
        viewed = self._costs.viewed[self._layer]
        views, sources = gpu.views(self._layer, self._walk, self._is_written, viewed)
        costs_of_views = {
            "gpu_ms": gpu.alone_ms,
            "gpu_bytes": columns["gpu_bytes"],
            "launches": gpu.part_launches,
        }
        for name, column in costs_of_views.items():
            np.subtract.at(sums[:, COLUMNS.index(name)], sources, column[views])
        return sums

    def _packing(self) -> tuple[Milliseconds, Milliseconds]:
        """Milliseconds and bytes of packing and unpacking layers' outputs in CPU nets; (rows)."""
        cpu, parts = self._cpu, self._cpu.parts
        packing_ms, packed_bytes = np.zeros((2, len(parts)))
        #: Moves of a library: how often by row, and the moved input's index, or None: the output.
        moves: list[tuple[Direction, Numbers | Flags, int | None]] = []
        for number, library in enumerate(LIBRARIES):
            mine = cpu.libraries == number
            moves.append((loading(library), cpu.loaded[:, number], None))
            moves.append((storing(library), cpu.stored * mine, None))
            for at, is_private in enumerate(self._costs.is_private.T):
                needs = is_something(self._costs.table.needs[parts, at])
                moves.append(
                    (loading(library), is_private[self._layer] & needs & cpu.packs & mine, at)
                )
        for way, times, input_ in moves:
            rows = np.flatnonzero(times)
            if rows.size:
                numbers, which = np.unique(parts[rows], return_inverse=True)
                ops = [self._costs.table.op(number) for number in numbers.tolist()]
                shapes = [op.output if input_ is None else op.inputs[input_] for op in ops]
                move_ms = self._costs.cost.packings_ms(way, shapes)[which]
                packing_ms[rows] += times[rows] * move_ms
                packed_bytes[rows] += times[rows] * np.array([2.0 * x.bytes for x in shapes])[which]
        return packing_ms, packed_bytes

    def _works(self, totals: Mapping[str, Milliseconds]) -> tuple[Milliseconds, Milliseconds]:
        cost = self._costs.cost
        images = totals["cpu_images"] / np.maximum(totals["cpu_parts"], 1)
        saved_ms = cost.turns(images) * totals["cpu_saved_ms"]
        alone = np.column_stack([totals["cpu_ms"] - saved_ms, totals["gpu_ms"]])
        moved = np.column_stack([totals[f"{name}_bytes"] for name in PROCESSORS])
        packing_ms = totals["packing_ms"][:, None] * [1.0, 0.0]
        return alone, cost.together_ms(moved, alone + packing_ms)

    def _add_loads(self, totals: dict[str, Milliseconds], reads: Numbers) -> None:
        count, regions = len(totals["packing_ms"]), self._costs.regions
        for column, library in enumerate(LIBRARIES, 4):
            chain, _, _, numbers, *_ = some = reads[reads[:, column] > 0].T
            if not chain.size:
                continue
            distinct, which = np.unique(numbers, return_inverse=True)
            shapes = [regions.region(x).shape(regions.wholes[x]) for x in distinct.tolist()]
            load_ms = self._costs.cost.packings_ms(loading(library), shapes)[which]
            size = np.array([shape.bytes for shape in shapes], np.float64)[which]
            totals["packing_ms"] += np.bincount(chain, some[column] * load_ms, count)
            totals["cpu_bytes"] += np.bincount(chain, 2 * some[column] * size, count)


def _by_chain(rows: Numbers, count: int) -> list[list[list[int]]]:
    """(tensor, processor, region) of rows ordered by chain, as one list for each chain."""
    bounds = np.searchsorted(rows[:, 0], np.arange(count + 1)).tolist()
    kept = rows[:, [2, 1, 3]].tolist()
    return [kept[first:last] for first, last in pairwise(bounds)]
