"""Every chain of a network that is worth a thought, cut and predicted, all in a few batches.

A chain here is a run of layers in topological order, which is always a convex set of the graph. The
regions that a half needs of a layer do not depend on where the chain begins: so one walk backwards
from a chain's end, at one dimension and ratio, gives all chains that end there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from codl.kernels.base import PROCESSORS, Processor
from codl.ops import Dim, Layer, Network, Region
from codl.ops.base import AXES, split
from codl.ops.chain import Part
from codl.plan.clocks import Pair, both_ends
from codl.plan.cost import LEAST_SHARE, CostModel, packed
from codl.predict.surroundings import Load

#: Ratios that are tried, in steps of one twentieth; the ends are one processor alone.
STEPS = 20
#: Ratios so many steps on either side of the balanced one are tried.
NEAR = 1
#: A chain on both processors has so many layers at most, and computes so many times its rows.
LONGEST, MOST_OVERLAP = 24, 1.5
#: Chains that compute so many times longer than their ops at their best are left out.
MOST_LOSS = 1.25
Regions = Mapping[str, Region]


@dataclass(frozen=True, slots=True)
class Segment:
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


@dataclass
class _Run:
    """Parts of one processor in a row, of which chains are stretches; sums, once predicted.

    `sums` has a row for every number of parts from the first: their bytes, FLOPs,
    milliseconds, bytes of weights, and images.
    """

    processor: Processor
    parts: list[Part] = field(default_factory=list)
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 5)))

    def predict(self, cost: CostModel) -> None:
        rows = [(*cost.work(part.op, self.processor), part.op.images) for part in self.parts]
        self.sums = np.cumsum([(0.0,) * 5, *rows], axis=0)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Parts `first` ... `last` - 1 of a run; a run may go backwards through the layers."""

    run: _Run
    first: int
    last: int

    @property
    def launches(self) -> int:
        """Each part is launched for every image that it has."""
        return int(self._total[4])

    @property
    def weights(self) -> float:
        return float(self._total[3])

    @property
    def _total(self) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self.run.sums[self.last] - self.run.sums[self.first]
        return total

    def load(self, cost: CostModel) -> Load:
        size, flops, latency_ms, _, images = self._total.tolist()
        count = self.last - self.first
        runs = images / max(count, 1)
        in_one_ms = cost.in_one_ms(latency_ms, count, self.run.processor, runs=runs)
        return Load(size, flops, in_one_ms)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A segment before it is predicted; `own` are the parts of the CPU and of the GPU."""

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    own: tuple[_Stretch, _Stretch]
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
        self._block = cost.soc.gpu.vector_width
        self.last_reader = last_readers(network)
        self._none = _Run("cpu")
        self._runs: list[_Run] = []
        drafts = [*self._single(), *self._split()]
        self.starting: list[list[Segment]] = [[] for _ in self._layers]
        for segment in self._predict(drafts):
            self.starting[segment.start].append(segment)

    # Cuts of single ops, from which it is seen what is worth a longer look.

    @cached_property
    def _steps(self) -> list[dict[Dim, tuple[int, ...]]]:
        """The steps between 0 and `STEPS` at which each layer is cut, each in another place."""
        return [{dim: _steps(layer, dim) for dim in self._dims(layer)} for layer in self._layers]

    def _dims(self, layer: Layer) -> list[Dim]:
        return [dim for dim in layer.op.dims if dim != "H" or layer.op.output.h > 1]

    @cached_property
    def _alone(self) -> Mapping[Dim, NDArray[np.float64]]:
        """Milliseconds of both halves of every layer, shaped (2, layers, STEPS + 1); or infinite.

        The ends of a dimension that a layer has not are there all the same.
        """
        parts: list[tuple[Dim, int, int, tuple[Part | None, Part | None]]] = []
        for k, layer in enumerate(self._layers):
            for dim in AXES:
                for step in (0, *self._steps[k].get(dim, ()), STEPS):
                    shares = split(layer.op, dim, step / STEPS, align=self._block)
                    cpu, gpu = (Part.of(layer, share, dim) for share in shares)
                    parts.append((dim, k, step, (cpu, gpu)))
        self._prefetch(own for *_, own in parts)
        found = {dim: np.full((2, len(self._layers), STEPS + 1), inf) for dim in AXES}
        for dim, k, step, own in parts:
            for side, part in enumerate(own):
                found[dim][side, k, step] = self._latency_ms(part, PROCESSORS[side])
        return found

    @cached_property
    def best_ms(self) -> NDArray[np.float64]:
        """The least that each layer computes, on its own and with nothing shared."""
        slower = [np.max(alone, axis=0).min(axis=1) for alone in self._alone.values()]
        return np.asarray(np.min(slower, axis=0))

    def least_ms(self, share: float) -> NDArray[np.float64]:
        """The least weighted mean of both halves of each layer; the CPU's weighs `share`, 0 ... 1.

        In a net of many layers an op of the CPU may take less by all of its call.
        """
        least = np.full(len(self._layers), inf)
        for cpu, gpu in self._alone.values():
            cpu = np.maximum(cpu - self.cost.call_ms, LEAST_SHARE * cpu)
            means = share * cpu + (1 - share) * gpu
            least = np.minimum(least, means.min(axis=1))
        return least

    def _prefetch(self, halves: Iterable[tuple[Part | None, Part | None]]) -> None:
        known = list(halves)
        for side, processor in enumerate(PROCESSORS):
            ops = (pair[side].op for pair in known if pair[side] is not None)  # type: ignore[union-attr]
            self.cost.prefetch(ops, processor)

    def _latency_ms(self, part: Part | None, processor: Processor) -> float:
        if part is None:
            return 0.0
        choice = self.cost.choice(part.op, processor)
        return inf if choice is None else choice.latency_ms

    # Drafts: chains on one processor, and on both.

    def _single(self) -> Iterator[_Draft]:
        """All of a processor's chains are stretches of one run."""
        alone = self._alone["H"]
        for side, processor in enumerate(PROCESSORS):
            able = np.isfinite(alone[side, :, STEPS * side])
            parts = [_whole(layer) for layer in self._layers]
            run = self._add(_Run(processor, parts))
            for start in range(len(parts)):
                needed: dict[str, Region] = {}
                made: dict[str, Region] = {}
                stops = set(_stops(start, len(parts), every=self.complete))
                for index in range(start, len(parts)):
                    if not able[index]:
                        break
                    part = parts[index]
                    part.add_needs(needed)
                    made[part.layer.output] = part.region
                    if index + 1 in stops:
                        inputs = {name: r for name, r in needed.items() if name not in made}
                        yield self._on(side, _Stretch(run, start, index + 1), inputs, made)

    def _on(self, side: int, own: _Stretch, inputs: Regions, made: Regions) -> _Draft:
        """A chain on one processor."""
        start, stop = own.first, own.last
        outputs = {n: r for n, r in made.items() if self.last_reader[n] >= stop}
        empty = _Stretch(self._none, 0, 0)
        ratio = float(side)
        if side == 0:
            return _Draft(start, stop, "H", ratio, (own, empty), (inputs, {}), (outputs, {}))
        return _Draft(start, stop, "H", ratio, (empty, own), ({}, inputs), ({}, outputs))

    def _add(self, run: _Run) -> _Run:
        self._runs.append(run)
        return run

    def _split(self) -> Iterator[_Draft]:
        for stop in range(1, len(self._layers) + 1):
            for dim in AXES:
                firsts = self._first_by_step(stop, dim)
                for step, starts in firsts.items():
                    walk = self._walk(stop, dim, step / STEPS, min(starts))
                    yield from (draft for draft in walk if draft.start in starts)

    def _first_by_step(self, stop: int, dim: Dim) -> dict[int, set[int]]:
        """For every ratio, in steps, where the chains begin that end at `stop` and are worth it."""
        found: dict[int, set[int]] = {}
        sums = np.zeros((2, STEPS + 1))
        best = 0.0
        inner = self._steps[stop - 1].get(dim, ())
        for start in range(stop - 1, max(-1, stop - 1 - LONGEST), -1):
            layer = self._layers[start]
            if not inner or self._steps[start].get(dim) != inner:
                break
            sums = sums + self._alone[dim][:, start]
            best += float(self.best_ms[start])
            slower = sums.max(axis=0)
            steps: Sequence[int] = inner
            if not self.complete:
                least = int(np.argmin(slower[list(inner)]))
                steps = inner[max(0, least - NEAR) : least + NEAR + 1]
                if slower[inner[least]] > MOST_LOSS * best:
                    steps = ()
            for step in steps:
                if slower[step] < inf:
                    found.setdefault(step, set()).add(start)
            if dim == "OC" and not layer.op.acts_on_channels_alone:
                break
        return found

    def _walk(self, stop: int, dim: Dim, ratio: float, first: int) -> Iterator[_Draft]:
        """The chains at a dimension and ratio that end at `stop`, longer and longer."""
        needed: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
        left: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
        runs = self._add(_Run("cpu")), self._add(_Run("gpu"))
        for start in range(stop - 1, first - 1, -1):
            layer = self._layers[start]
            is_left = self.last_reader[layer.output] >= stop
            shares = split(layer.op, dim, ratio, align=self._block)
            computed = 0
            for side in (0, 1):
                region = needed[side].pop(layer.output, None)
                if is_left:
                    region = shares[side] if region is None else region.join(shares[side])
                part = None if region is None else Part.of(layer, region, dim)
                if part is None:
                    continue
                runs[side].parts.append(part)
                computed += part.op.output.elements
                if is_left:
                    left[side][layer.output] = part.region
                part.add_needs(needed[side])
            if computed > MOST_OVERLAP * layer.op.output.elements and not self.complete:
                return
            yield _Draft(
                start,
                stop,
                dim,
                ratio,
                (
                    _Stretch(runs[0], 0, len(runs[0].parts)),
                    _Stretch(runs[1], 0, len(runs[1].parts)),
                ),
                (dict(needed[0]), dict(needed[1])),
                (dict(left[0]), dict(left[1])),
            )

    # Predictions.

    def _predict(self, drafts: Sequence[_Draft]) -> Iterator[Segment]:
        cost, shapes = self.cost, self.network.shapes
        for processor in PROCESSORS:
            runs = [run for run in self._runs if run.processor == processor]
            cost.prefetch((part.op for run in runs for part in run.parts), processor)
        for run in self._runs:
            run.predict(cost)
        moves = [packed(shapes, draft.inputs[0], draft.outputs[0]) for draft in drafts]
        cost.prefetch_sharing(move for own in moves for move in own)
        loads = [
            (draft.own[0].load(cost) + cost.packing(own), draft.own[1].load(cost))
            for draft, own in zip(drafts, moves, strict=True)
        ]
        for draft, both, slower in zip(drafts, loads, cost.slowdowns(loads), strict=True):
            works = both[0].latency_ms, both[1].latency_ms
            if max(works) < inf:
                yield Segment(
                    draft.start,
                    draft.stop,
                    draft.dim,
                    draft.gpu_ratio,
                    draft.inputs,
                    draft.outputs,
                    both_ends(works, slower),
                    draft.own[1].launches,
                    draft.own[0].weights + draft.own[1].weights,
                )


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    found = dict.fromkeys((*network.inputs, *network.constants), -1)
    for index, layer in enumerate(network.layers):
        found[layer.output] = -1
        found |= dict.fromkeys(layer.inputs, index)
    return found | {name: len(network.layers) for name, _ in network.outputs.values()}


def _steps(layer: Layer, dim: Dim) -> tuple[int, ...]:
    images = layer.op.output.n
    if dim != "N":
        return tuple(range(1, STEPS))
    return tuple(sorted({round(STEPS * k / images) for k in range(1, images)} - {0, STEPS}))


def _whole(layer: Layer) -> Part:
    part = Part.of(layer, Region.whole(layer.op.output), "H")
    assert part is not None, layer
    return part


def _stops(start: int, count: int, *, every: bool) -> Iterator[int]:
    """Where chains on one processor end: after 1, 2, 3, 4, 6, 8, 12 ... layers, or all of them."""
    if every:
        yield from range(start + 1, count + 1)
        return
    length, stop = 1, start + 1
    while stop < count:
        yield stop
        length = max(length + 1, length * 3 // 2)
        stop = start + length
    yield count
