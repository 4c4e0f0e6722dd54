"""Every chain of a network that is worth a thought, cut and predicted, all in a few batches.

A chain here is a run of layers in topological order, which is always a convex set of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Network, Region
from codl.ir.ops.base import AXES
from codl.ir.types import PROCESSORS, Direction
from codl.lower.fusion import residual_adds
from codl.plan import region_array as boxes
from codl.plan.cost_model import ADDED_INSIDE, LEAST_SHARE, CostModel, Moved
from codl.plan.halo_propagation import Drafts, Walks, Way
from codl.plan.pipeline_model import Pair, both_ends
from codl.plan.region_array import NONE
from codl.plan.subop_table import DIMS, Parts

#: Ratios so many steps on either side of the balanced one are tried.
NEAR = 1
#: Where single ops are cut, from where both shards would take equally long if time were linear.
AROUND = (-6, -3, -1, 0, 1, 3, 6)
#: A chain on both processors has so many layers at most.
LONGEST = 24
#: Lengths of chains on one processor that end before the network does.
LENGTHS = (1, 4)
#: Chains that compute so many times longer than their ops at their best are left out.
MOST_LOSS = 1.1
#: Rows of a processor's number, 0 for the CPU and 1 for the GPU, and a region's.
Held: TypeAlias = NDArray[np.int64]
Vector = NDArray[np.float64]


class Segment(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each shard takes.

    `reads` and `leaves` are the regions, by number, that the shards read from outside, and leave
    for others; `work_ms` how long each shard takes while the other one works; `kernels` how many
    kernels, or small groups of them, are launched; `weights` the bytes of weights of both.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    reads: Held
    leaves: Held
    work_ms: Pair
    kernels: int
    weights: float


class Segments:
    """The chains of one network, by where they begin.

    `complete`: all ratios and lengths, which is for small networks; otherwise ratios around the
    one at which both shards would take equally long, and chains that lose little by their length.
    """

    def __init__(self, network: Network, cost: CostModel, *, complete: bool = False) -> None:
        self.network, self.cost, self.complete = network, cost, complete
        self._layers = network.layers
        self.last_reader = last_readers(network)
        self._parts = Parts(network.layers, cost)
        ways = [*self._single(), *self._split()]
        walks = Walks(network, self._parts, self.last_reader, ways, complete=complete)
        #: The regions that chains read and leave.
        self.regions = walks.numbering
        drafts = walks.drafts()
        #: The numbers of what chains leave, and read, on either processor.
        self.left, self.read = (
            tuple(np.unique(held[held[:, 1] == side, 2]).tolist() for side in (0, 1))
            for held in (drafts.leaves, drafts.reads)
        )
        for holder, _ in network.outputs.values():  # results are read whole, behind the last chain
            whole = boxes.box(Region.whole(network.shapes[holder]))
            self.read[0].append(self.regions.one(holder, whole))
        self.starting: list[list[Segment]] = [[] for _ in self._layers]
        for segment in self._predict(drafts):
            self.starting[segment.start].append(segment)

    def _residual_adds(self) -> dict[int, int]:
        """The number of the layer that each convolution's kernels may compute too, by its own."""
        numbers = {layer.name: number for number, layer in enumerate(self._layers)}
        results = [name for name, last in self.last_reader.items() if last == len(self._layers)]
        found = residual_adds(self._layers, results)
        return {numbers[name]: numbers[add.name] for name, add in found.items()}

    # Cuts of single ops, from which it is seen what is worth a longer look.

    @cached_property
    def _steps(self) -> list[dict[Dim, tuple[int, ...]]]:
        """The steps between 0 and the last at which each layer may be cut."""
        of_op: list[dict[Dim, tuple[int, ...]]] = []
        for op in self._parts.ops:
            dims = [dim for dim in op.dims if dim != "H" or op.output.h > 1]
            of_op.append({dim: _steps(op.output.n, dim, self._parts.steps) for dim in dims})
        return [of_op[number] for number in self._parts.op_of]

    @cached_property
    def _whole_ms(self) -> Vector:
        """Milliseconds of whole layers on either processor, shaped (2, layers); or infinite."""
        parts = self._parts
        whole = self._cut_parts({(op, "H"): [0] for op in range(len(parts.ops))})[:, 0]
        found = np.array([parts.latency_ms(whole, side) for side in (0, 1)])
        return found[:, parts.op_of]

    def _cut_parts(self, cuts: Mapping[tuple[int, Dim], Sequence[int]]) -> NDArray[np.int64]:
        """The parts of ops that are cut after some steps, one behind the other, (cuts, 2)."""
        parts, counts = self._parts, [len(steps) for steps in cuts.values()]
        shares = [parts.shares(op)[parts.cut(dim, np.array(steps, np.int64))]
                  for (op, dim), steps in cuts.items()]  # fmt: skip
        ops, dims = np.array([(op, DIMS.index(dim)) for op, dim in cuts]).reshape(-1, 2).T
        wanted = np.concatenate([np.empty((0, 2, 6), np.int64), *shares])
        return parts.of(np.repeat(ops, counts), wanted, np.repeat(dims, counts))

    @cached_property
    def _alone(self) -> Mapping[Dim, Vector]:
        """Milliseconds of both shards of every layer, shaped (2, layers, steps + 1); or infinite.

        Predicted around the balanced cut and on a line in between: this only says which chains are
        looked at. The ends of a dimension that a layer has not are there all the same.
        """
        parts = self._parts
        cuts: dict[tuple[int, Dim], list[int]] = {}
        for k, op in enumerate(parts.op_of):
            for dim, steps in self._steps[k].items():
                if (op, dim) not in cuts:
                    cuts[op, dim] = self._looked_at(k, dim, steps)
        asked = self._cut_parts(cuts)
        latencies = np.array([parts.latency_ms(asked[:, side], side) for side in (0, 1)])
        found = {dim: np.full((2, len(parts.ops), parts.steps + 1), inf) for dim in AXES}
        first = 0
        for (op, dim), cut in cuts.items():
            own = latencies[:, first : first + len(cut)]
            first += len(cut)
            if cut:
                inner = np.arange(cut[0], cut[-1] + 1)
                for side in (0, 1):
                    found[dim][side, op, inner] = np.interp(inner, cut, own[side])
        for dim, table in found.items():
            found[dim] = table = table[:, parts.op_of]
            table[0, :, 0], table[1, :, 0] = self._whole_ms[0], 0.0
            table[0, :, parts.steps], table[1, :, parts.steps] = 0.0, self._whole_ms[1]
        return found

    def _looked_at(self, k: int, dim: Dim, steps: tuple[int, ...]) -> list[int]:
        """The steps at which a layer is predicted: near balance, or all where it is unknown."""
        cpu_ms, gpu_ms = self._whole_ms[:, k]
        if self.complete or dim == "N" or not np.isfinite(cpu_ms + gpu_ms):
            return list(steps)
        middle = round(self._parts.steps * cpu_ms / (cpu_ms + gpu_ms))
        return sorted(set(steps).intersection(middle + d for d in AROUND))

    @cached_property
    def _best_ms(self) -> Vector:
        """The least that each layer computes, on its own and with nothing shared."""
        slower = [np.max(alone, axis=0).min(axis=1) for alone in self._alone.values()]
        return np.asarray(np.min(slower, axis=0))

    # Ways to cut chains: on one processor, and on both.

    def _single(self) -> Iterator[Way]:
        able = np.isfinite(self._whole_ms)
        for stop in range(1, len(self._layers) + 1):
            for side, step in ((0, 0), (1, self._parts.steps)):
                starts: set[int] = set()
                for start in reversed(range(stop)):
                    if not able[side, start]:
                        break
                    if self.complete or stop == len(self._layers) or stop - start in LENGTHS:
                        starts.add(start)
                    elif stop - start > LENGTHS[-1]:
                        break
                if starts:
                    yield Way(stop, "H", step, frozenset(starts))

    def _split(self) -> Iterator[Way]:
        for stop in range(1, len(self._layers) + 1):
            for dim in AXES:
                seen: set[tuple[int, ...]] = set()
                for step, starts in self._first_by_step(stop, dim).items():
                    # Ratios that cut at the same places are one.
                    ops = self._parts.op_of[min(starts) : stop]
                    places = tuple(self._parts.cuts(op, dim)[step] for op in ops)
                    if places not in seen:
                        seen.add(places)
                        yield Way(stop, dim, step, frozenset(starts))

    def _first_by_step(self, stop: int, dim: Dim) -> dict[int, set[int]]:
        """For every ratio, in steps, where the chains begin that end at `stop` and are worth it."""
        inner = self._steps[stop - 1].get(dim, ())
        starts = self._starts(stop, dim, inner)
        if not inner or not starts:
            return {}
        sums = np.cumsum(self._alone[dim][:, starts], axis=1)
        slower = sums.max(axis=0)[:, inner]
        least, best = slower.argmin(axis=1), np.cumsum(self._best_ms[starts])
        worth = slower.min(axis=1) <= MOST_LOSS * best
        found: dict[int, set[int]] = {}
        for at, start in enumerate(starts):
            steps: Sequence[int] = inner
            if not self.complete:
                near = int(least[at])
                steps = inner[max(0, near - NEAR) : near + NEAR + 1] if worth[at] else ()
            for step in steps:
                found.setdefault(step, set()).add(start)
        return found

    def _starts(self, stop: int, dim: Dim, inner: tuple[int, ...]) -> list[int]:
        """Where chains may begin that end at `stop` and are cut at such steps."""
        found: list[int] = []
        for start in range(stop - 1, max(-1, stop - 1 - LONGEST), -1):
            if self._steps[start].get(dim) != inner:
                break
            found.append(start)
            if dim == "OC" and not self._layers[start].op.acts_on_channels_alone:
                break
        return found

    # Predictions.

    def _predict(self, drafts: Drafts) -> Iterator[Segment]:
        amounts = self._parts.amounts()
        sums = [self._sums(drafts, side, amounts) for side in (0, 1)]
        loads = np.array([[own["bytes"], own["flops"], own["ms"]] for own in sums]).T
        loads = loads.transpose(0, 2, 1)
        loads[:, 0] += self._packing(drafts)
        works = both_ends(loads[:, :, 2], self.cost.slowdowns(loads))
        able = np.flatnonzero(np.isfinite(works).all(axis=1))
        kernels = sums[1]["launches"].astype(int)
        weights = sums[0]["weights"] + sums[1]["weights"]
        reads, leaves = (_by_draft(held, len(loads)) for held in (drafts.reads, drafts.leaves))
        columns = (able, drafts.way[able], drafts.start[able], kernels[able], weights[able])
        rows = zip(*(column.tolist() for column in (*columns, *works[able].T)), strict=True)
        for at, way, start, count, weight, cpu_ms, gpu_ms in rows:
            stop, dim, step, _ = drafts.ways[way]
            ratio, work_ms = step / self._parts.steps, (cpu_ms, gpu_ms)
            held = reads[at], leaves[at]
            yield Segment(start, stop, dim, ratio, *held, work_ms, count, weight)

    def _packing(self, drafts: Drafts) -> Vector:
        """Bytes, FLOPs and milliseconds of what the CPU packs and unpacks, shaped (drafts, 3)."""
        found = np.zeros((len(drafts.way), 3))
        packing: tuple[tuple[Direction, NDArray[np.int64]], ...] = (
            ("load", drafts.reads),
            ("store", drafts.leaves),
        )
        for way, held in packing:
            draft, side, numbers = held.T
            asked = np.unique(numbers[side == 0])
            moves: list[Moved] = [(way, self.regions.shape(number)) for number in asked.tolist()]
            self.cost.prefetch_sharing(moves)
            known = np.zeros((len(self.regions.boxes), 3))
            known[asked, 0] = [2 * shape.bytes for _, shape in moves]
            known[asked, 2] = [self.cost.sharing_ms(*move) for move in moves]
            for column in (0, 2):
                values = known[numbers[side == 0], column]
                found[:, column] += np.bincount(draft[side == 0], values, len(found))
        return found

    def _sums(self, drafts: Drafts, side: int, of_parts: Mapping[str, Vector]) -> dict[str, Vector]:
        """What each draft's shard does: sums over its parts, as one net or queue."""
        # The parts of all ways, one behind the other, and where each draft's begin and end there.
        of_way = drafts.parts[::-1, :, side].T
        rows = of_way[of_way > NONE]
        behind = np.cumsum(of_way > NONE).reshape(of_way.shape)
        last = behind[drafts.way, len(self._layers) - 1 - drafts.start]
        first = np.concatenate([[0], behind[:, -1]])[drafts.way]
        amounts = dict(of_parts, ms=self._parts.latency_ms(rows, side))
        if PROCESSORS[side] == "gpu":
            amounts["ms"] -= self._saved_ms(drafts)[::-1].T[of_way > NONE]
        found: dict[str, Vector] = {}
        for name, of_part in amounts.items():
            values = of_part if name == "ms" else of_part[rows]
            # Infinite ones are counted apart: sums past them would be of no use.
            finite = np.isfinite(values)
            total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
            missing = np.concatenate([[0], np.cumsum(~finite)])
            found[name] = np.where(missing[last] > missing[first], inf, total[last] - total[first])
        counts = last - first
        if PROCESSORS[side] == "cpu":
            images = found["images"] / np.maximum(counts, 1)
            saved = self.cost.turns(images) * self.cost.saved_ms(int(counts.max(initial=1)))[counts]
            found["ms"] = np.maximum(found["ms"] - saved, LEAST_SHARE * found["ms"])
        return found

    def _saved_ms(self, drafts: Drafts) -> Vector:
        """What the GPU saves by computing residual adds with convolutions, (layers, ways)."""
        found = np.zeros(drafts.parts.shape[:2])
        for layer, add in self._residual_adds().items():
            pairs = drafts.parts[[layer, add], :, 1]
            there = np.flatnonzero((pairs > NONE).all(axis=0))
            fused = {p for p in set(zip(*pairs[:, there].tolist(), strict=True))
                     if self._parts.are_fused(*p)}  # fmt: skip
            saved = [way for way in there.tolist() if tuple(pairs[:, way].tolist()) in fused]
            added_ms = self._parts.latency_ms(pairs[1, saved], 1)
            found[layer, saved] = (1 - ADDED_INSIDE) * added_ms
        return found


def _by_draft(held: NDArray[np.int64], count: int) -> list[Held]:
    """The processor and the region of rows that are ordered by draft, for each draft."""
    bounds = np.searchsorted(held[:, 0], np.arange(count + 1)).tolist()
    rows = held[:, 1:]
    return [rows[first:last] for first, last in pairwise(bounds)]


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    found = dict.fromkeys((*network.inputs, *network.constants), -1)
    for index, layer in enumerate(network.layers):
        found[layer.output] = -1
        found |= dict.fromkeys(layer.inputs, index)
    return found | {name: len(network.layers) for name, _ in network.outputs.values()}


def _steps(images: int, dim: Dim, steps: int) -> tuple[int, ...]:
    if dim != "N":
        return tuple(range(1, steps))
    return tuple(sorted({round(steps * k / images) for k in range(1, images)} - {0, steps}))
