"""Every chain of a network that is worth a thought, cut and predicted, all in a few batches.

A chain here is a run of layers in topological order, which is always a convex set of the graph. The
regions that a half needs of a layer do not depend on where the chain begins: so one walk backwards
from a chain's end, at one dimension and ratio, gives all chains that end there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.execute.fusing import residual_adds
from codl.kernels.base import PROCESSORS
from codl.ops import Dim, Network, Region
from codl.ops.base import AXES
from codl.plan.clocks import Pair, both_ends
from codl.plan.cost import ADDED_INSIDE, LEAST_SHARE, CostModel, Moved
from codl.plan.parts import NONE, Parts

#: Ratios so many steps on either side of the balanced one are tried.
NEAR = 1
#: Where single ops are cut, from where both halves would take equally long if time were linear.
AROUND = (-6, -3, -1, 0, 1, 3, 6)
#: A chain on both processors has so many layers at most, and computes so many times its rows.
LONGEST, MOST_OVERLAP = 24, 1.15
#: Lengths of chains on one processor that end before the network does.
LENGTHS = (1, 2, 4, 8)
#: Chains that compute so many times longer than their ops at their best are left out.
MOST_LOSS = 1.1
Regions = Mapping[str, Region]
RegionSets = defaultdict[str, set[Region]]
Vector = NDArray[np.float64]


class Segment(NamedTuple):
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each half takes.

    `inputs` and `outputs` are the regions that the CPU's and the GPU's half read from outside, and
    leave for others; `work_ms` how long each half takes while the other one works; `kernels` how
    many kernels, or small groups of them, are launched; `weights` the bytes of weights of both.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    inputs: tuple[Regions, Regions]
    outputs: tuple[Regions, Regions]
    work_ms: Pair
    kernels: int
    weights: float


class _Draft(NamedTuple):
    """A segment before it is predicted; `parts` are where the CPU's and the GPU's lie.

    From the first to behind the last in the rows of parts of all walks.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    parts: tuple[tuple[int, int], tuple[int, int]]
    inputs: tuple[Regions, Regions]
    outputs: tuple[Regions, Regions]


class Segments:
    """The chains of one network, by where they begin.

    `complete`: all ratios and lengths, which is for small networks; otherwise ratios around the
    one at which both halves would take equally long, and chains that lose little by their length.
    """

    def __init__(self, network: Network, cost: CostModel, *, complete: bool = False) -> None:
        self.network, self.cost, self.complete = network, cost, complete
        self._layers = network.layers
        self.last_reader = last_readers(network)
        self._parts = Parts(network.layers, cost)
        #: The parts of all walks, one walk behind the other.
        self._rows: tuple[list[int], list[int]] = ([], [])
        #: The adds behind those of the GPU's that may compute them too.
        self._added: list[int] = []
        self._adds = self._residual_adds()
        #: What chains leave of each tensor, and read of it, on either processor.
        self.left: tuple[RegionSets, RegionSets] = (defaultdict(set), defaultdict(set))
        self.read: tuple[RegionSets, RegionSets] = (defaultdict(set), defaultdict(set))
        for holder, _ in network.outputs.values():  # results are read whole, behind the last chain
            self.read[0][holder].add(Region.whole(network.shapes[holder]))
        drafts = [*self._single(), *self._split()]
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
        whole = [parts.of(op, parts.shares(op, "H", 0)[0], "H") for op in range(len(parts.ops))]
        found = np.array([parts.latency_ms(whole, side) for side in (0, 1)])
        return found[:, parts.op_of]

    @cached_property
    def _alone(self) -> Mapping[Dim, Vector]:
        """Milliseconds of both halves of every layer, shaped (2, layers, steps + 1); or infinite.

        Predicted around the balanced cut and on a line in between: this only says which chains are
        looked at. The ends of a dimension that a layer has not are there all the same.
        """
        parts = self._parts
        cuts: dict[tuple[int, Dim], list[int]] = {}
        for k, op in enumerate(parts.op_of):
            for dim, steps in self._steps[k].items():
                cuts[op, dim] = self._looked_at(k, dim, steps)
        asked = [(op, dim, step) for (op, dim), steps in cuts.items() for step in steps]
        numbers = [
            [parts.of(op, parts.shares(op, dim, step)[side], dim) for op, dim, step in asked]
            for side in (0, 1)
        ]
        latencies = [parts.latency_ms(numbers[side], side).tolist() for side in (0, 1)]
        known = [dict(zip(asked, own, strict=True)) for own in latencies]
        found = {dim: np.full((2, len(self._layers), parts.steps + 1), inf) for dim in AXES}
        for dim, table in found.items():
            table[0, :, 0], table[1, :, 0] = self._whole_ms[0], 0.0
            table[0, :, parts.steps], table[1, :, parts.steps] = 0.0, self._whole_ms[1]
            for k, op in enumerate(parts.op_of):
                if cut := cuts.get((op, dim)):
                    inner = slice(cut[0], cut[-1] + 1)
                    for side in (0, 1):
                        own_ms = [known[side][op, dim, step] for step in cut]
                        line = np.interp(np.arange(cut[0], cut[-1] + 1), cut, own_ms)
                        table[side, k, inner] = line
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

    # Drafts: chains on one processor, and on both.

    def _single(self) -> Iterator[_Draft]:
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
                    yield from self._walk(stop, "H", step, starts)

    def _split(self) -> Iterator[_Draft]:
        for stop in range(1, len(self._layers) + 1):
            for dim in AXES:
                seen: set[tuple[int, ...]] = set()
                for step, starts in self._first_by_step(stop, dim).items():
                    # Ratios that cut at the same place are one.
                    shares = (self._parts.shares(self._parts.op_of[k], dim, step)[0]
                              for k in range(min(starts), stop))  # fmt: skip
                    place = tuple(hash(share) for share in shares)
                    if place not in seen:
                        seen.add(place)
                        yield from self._walk(stop, dim, step, starts)

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

    def _walk(self, stop: int, dim: Dim, step: int, starts: set[int]) -> Iterator[_Draft]:
        """The chains at a dimension and ratio that end at `stop`, longer and longer."""
        parts, readers = self._parts, self.last_reader
        needed: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
        left: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
        first = len(self._rows[0]), len(self._rows[1])
        on_gpu: dict[int, int] = {}
        for start in range(stop - 1, min(starts) - 1, -1):
            layer, op = self._layers[start], parts.op_of[start]
            output = layer.output
            shares = parts.shares(op, dim, step) if readers[output] >= stop else None
            computed = 0
            for side in (0, 1):
                region = needed[side].pop(output, None)
                if shares and (share := shares[side]):
                    region = share if region is None else region.join(share)
                if not (number := parts.of(op, region, dim)):
                    continue
                self._rows[side].append(number)
                if side:
                    on_gpu[start] = number
                    self._added.append(on_gpu.get(self._adds.get(start, stop), NONE))
                computed += parts.elements[number]
                if shares:
                    left[side][output] = made = parts.regions[number]
                    self.left[side][output].add(made)
                own, read = needed[side], self.read[side]
                for name, need in zip(layer.inputs, parts.needs[number], strict=True):
                    if need is not None:
                        own[name] = joined = need.join(own[name]) if name in own else need
                        read[name].add(joined)
            if computed > MOST_OVERLAP * layer.op.output.elements and not self.complete:
                return
            if start in starts:
                yield _Draft(
                    start,
                    stop,
                    dim,
                    step / parts.steps,
                    ((first[0], len(self._rows[0])), (first[1], len(self._rows[1]))),
                    (needed[0].copy(), needed[1].copy()),
                    (left[0].copy(), left[1].copy()),
                )

    # Predictions.

    def _predict(self, drafts: Sequence[_Draft]) -> Iterator[Segment]:
        sums = [self._sums(drafts, side) for side in (0, 1)]
        loads = np.array([[own["bytes"], own["flops"], own["ms"]] for own in sums]).T
        loads = loads.transpose(0, 2, 1)
        loads[:, 0] += self._packing(drafts)
        slower = self.cost.slowdowns_of(loads).tolist()
        kernels = sums[1]["launches"].astype(int).tolist()
        weights = (sums[0]["weights"] + sums[1]["weights"]).tolist()
        works = loads[:, :, 2].tolist()
        for at, draft in enumerate(drafts):
            cpu_ms, gpu_ms = works[at]
            if cpu_ms < inf and gpu_ms < inf:
                ends = both_ends((cpu_ms, gpu_ms), slower[at])
                start, stop, dim, ratio, _, inputs, outputs = draft
                yield Segment(
                    start, stop, dim, ratio, inputs, outputs, ends, kernels[at], weights[at]
                )

    def _packing(self, drafts: Sequence[_Draft]) -> Vector:
        """Bytes, FLOPs and milliseconds of what the CPU packs and unpacks, shaped (drafts, 3)."""
        asked: dict[tuple[bool, str, Region], Moved] = {}
        shapes = self.network.shapes
        for is_store, regions in enumerate((self.read[0], self.left[0])):
            for name, own in regions.items():
                for region in own:
                    move: Moved = ("store" if is_store else "load", region.shape(shapes[name]))
                    asked[bool(is_store), name, region] = move
        self.cost.prefetch_sharing(asked.values())
        known: dict[tuple[bool, str, Region], tuple[float, float]] = {}
        for what, (way, shape) in asked.items():
            known[what] = float(2 * shape.bytes), self.cost.sharing_ms(way, shape)
        found = np.zeros((len(drafts), 3))
        for at, draft in enumerate(drafts):
            bytes_, latency_ms = 0.0, 0.0
            for is_store, held in ((False, draft.inputs[0]), (True, draft.outputs[0])):
                for name, region in held.items():
                    more, more_ms = known[is_store, name, region]
                    bytes_, latency_ms = bytes_ + more, latency_ms + more_ms
            found[at] = bytes_, 0.0, latency_ms
        return found

    def _sums(self, drafts: Sequence[_Draft], side: int) -> dict[str, Vector]:
        """What each draft's half does: sums over its parts, as one net or queue."""
        rows = self._rows[side]
        amounts = dict(self._parts.amounts(), ms=np.zeros(0))
        first, last = np.array([draft.parts[side] for draft in drafts]).reshape(-1, 2).T
        amounts["ms"] = self._parts.latency_ms(rows, side)
        if PROCESSORS[side] == "gpu" and any(self._added):
            amounts["ms"] -= self._saved_ms()
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

    def _saved_ms(self) -> Vector:
        """What the GPU saves by computing a residual add with each part of its rows."""
        pairs = list(zip(self._rows[1], self._added, strict=True))
        fused = {pair for pair in set(pairs) if pair[1] and self._parts.are_fused(*pair)}
        added = [pair[1] if pair in fused else NONE for pair in pairs]
        return (1 - ADDED_INSIDE) * self._parts.latency_ms(added, 1)


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
