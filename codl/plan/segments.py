"""Every chain of a network that is worth a thought, cut and predicted, all in a few batches.

A chain here is a run of layers in topological order, which is always a convex set of the graph. The
regions that a half needs of a layer do not depend on where the chain begins: so one walk backwards
from a chain's end, at one dimension and ratio, gives all chains that end there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from codl.kernels.base import Processor
from codl.ops import Dim, Layer, Network, Region
from codl.ops.base import split
from codl.ops.chain import Half, Part
from codl.plan.clocks import Pair, both_ends
from codl.plan.cost import CostModel, Moved
from codl.predict.surroundings import Load

#: Ratios that are tried, in steps of one twentieth; the ends are one processor alone.
STEPS = 20
#: Ratios so many steps on either side of the balanced one are tried.
NEAR = 1
#: A chain on both processors has so many layers at most, and computes so many times its rows.
LONGEST, MOST_OVERLAP = 24, 1.5
#: Chains that compute so many times longer than their ops at their best are left out.
MOST_LOSS = 1.25
SIDES: tuple[Processor, Processor] = ("cpu", "gpu")
Regions = Mapping[str, Region]


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers `start` ... `stop` - 1 as one chain, cut, with what each half takes.

    `inputs` and `outputs` are the regions that the CPU's and the GPU's half read from outside, and
    leave for others; `work_ms` how long each half takes while the other one works.
    """

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    halves: tuple[Half, Half]
    inputs: tuple[Regions, Regions]
    outputs: tuple[Regions, Regions]
    work_ms: Pair


@dataclass(frozen=True)
class _Draft:
    """A segment before it is predicted."""

    start: int
    stop: int
    dim: Dim
    gpu_ratio: float
    halves: tuple[Half, Half]
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
        drafts = [*self._single(), *self._split()]
        self.starting: list[list[Segment]] = [[] for _ in self._layers]
        for segment in self._predict(drafts):
            self.starting[segment.start].append(segment)

    # Cuts of single ops, from which it is seen what is worth a longer look.

    def _dims(self, layer: Layer) -> list[Dim]:
        return [dim for dim in layer.op.dims if dim != "H" or layer.op.output.h > 1]

    @cached_property
    def _alone(self) -> Mapping[Dim, NDArray[np.float64]]:
        """Milliseconds of both halves of every layer, shaped (2, layers, STEPS + 1); or infinite.

        The ends of a dimension that a layer has not are there all the same.
        """
        parts: list[tuple[Dim, int, int, tuple[Part | None, Part | None]]] = []
        for k, layer in enumerate(self._layers):
            dims = self._dims(layer)
            for dim in DIMS:
                steps = range(STEPS + 1) if dim in dims else (0, STEPS)
                for step in steps:
                    shares = split(layer.op, dim, step / STEPS, align=self._block)
                    cpu, gpu = (_part(layer, share, dim) for share in shares)
                    parts.append((dim, k, step, (cpu, gpu)))
        self._prefetch(own for *_, own in parts)
        found = {dim: np.full((2, len(self._layers), STEPS + 1), inf) for dim in DIMS}
        for dim, k, step, own in parts:
            for side, part in enumerate(own):
                found[dim][side, k, step] = self._latency_ms(part, SIDES[side])
        return found

    @cached_property
    def best_ms(self) -> NDArray[np.float64]:
        """The least that each layer computes, on its own and with nothing shared."""
        slower = [np.max(alone, axis=0).min(axis=1) for alone in self._alone.values()]
        return np.asarray(np.min(slower, axis=0))

    def _prefetch(self, halves: Iterable[tuple[Part | None, Part | None]]) -> None:
        known = list(halves)
        for side, processor in enumerate(SIDES):
            ops = (pair[side].op for pair in known if pair[side] is not None)  # type: ignore[union-attr]
            self.cost.prefetch(ops, processor)

    def _latency_ms(self, part: Part | None, processor: Processor) -> float:
        if part is None:
            return 0.0
        choice = self.cost.choice(part.op, processor)
        return inf if choice is None else choice.latency_ms

    # Drafts: chains on one processor, and on both.

    def _single(self) -> Iterator[_Draft]:
        count = len(self._layers)
        whole = [_part(layer, Region.whole(layer.op.output), "H") for layer in self._layers]
        assert all(part is not None for part in whole)
        parts = [part for part in whole if part is not None]
        alone = self._alone["H"]
        able = np.isfinite([alone[0, :, 0], alone[1, :, STEPS]])
        for start in range(count):
            for stop in _stops(start, count, every=self.complete):
                half = Half(tuple(parts[start:stop]))
                outputs = self._outside(half, stop)
                for side, ratio in enumerate((0.0, 1.0)):
                    if able[side, start:stop].all():
                        yield _Draft(
                            start,
                            stop,
                            "H",
                            ratio,
                            (half, NOTHING) if side == 0 else (NOTHING, half),
                            (half.inputs, {}) if side == 0 else ({}, half.inputs),
                            (outputs, {}) if side == 0 else ({}, outputs),
                        )

    def _outside(self, half: Half, stop: int) -> Regions:
        """What is computed of tensors that layers from `stop` on read."""
        return {n: r for n, r in half.outputs.items() if self.last_reader[n] >= stop}

    def _split(self) -> Iterator[_Draft]:
        for stop in range(1, len(self._layers) + 1):
            for dim in DIMS:
                firsts = self._first_by_step(stop, dim)
                for step, starts in firsts.items():
                    walk = self._walk(stop, dim, step / STEPS, min(starts))
                    yield from (draft for draft in walk if draft.start in starts)

    def _first_by_step(self, stop: int, dim: Dim) -> dict[int, set[int]]:
        """For every ratio, in steps, where the chains begin that end at `stop` and are worth it."""
        found: dict[int, set[int]] = {}
        sums = np.zeros((2, STEPS + 1))
        best = 0.0
        for start in range(stop - 1, max(-1, stop - 1 - LONGEST), -1):
            layer = self._layers[start]
            if dim not in self._dims(layer):
                break
            sums = sums + self._alone[dim][:, start]
            best += float(self.best_ms[start])
            slower = sums.max(axis=0)
            inner = range(1, STEPS)
            if self.complete:
                steps: Iterable[int] = inner
            else:
                least = min(inner, key=lambda step: slower[step])
                steps = [s for s in range(least - NEAR, least + NEAR + 1) if s in inner]
                if slower[least] > MOST_LOSS * best:
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
        parts: tuple[list[Part], list[Part]] = ([], [])
        left: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
        for start in range(stop - 1, first - 1, -1):
            layer = self._layers[start]
            is_left = self.last_reader[layer.output] >= stop
            shares = split(layer.op, dim, ratio, align=self._block)
            computed = 0
            for side in (0, 1):
                region = needed[side].pop(layer.output, None)
                if is_left:
                    region = shares[side] if region is None else region.join(shares[side])
                part = None if region is None else _part(layer, region, dim)
                if part is None:
                    continue
                parts[side].append(part)
                computed += part.op.output.elements
                if is_left:
                    left[side][layer.output] = part.region
                for name, need in zip(layer.inputs, part.needs, strict=True):
                    if not need.is_empty:
                        mine = needed[side]
                        mine[name] = need.join(mine[name]) if name in mine else need
            if computed > MOST_OVERLAP * layer.op.output.elements and not self.complete:
                return
            yield _Draft(
                start,
                stop,
                dim,
                ratio,
                (Half(tuple(reversed(parts[0]))), Half(tuple(reversed(parts[1])))),
                (dict(needed[0]), dict(needed[1])),
                (dict(left[0]), dict(left[1])),
            )

    # Predictions.

    def _predict(self, drafts: Sequence[_Draft]) -> Iterator[Segment]:
        cost, shapes = self.cost, self.network.shapes
        for side, processor in enumerate(SIDES):
            cost.prefetch((p.op for d in drafts for p in d.halves[side].parts), processor)
        packed = [_packed(draft, shapes) for draft in drafts]
        cost.prefetch_sharing(move for moves in packed for move in moves)
        loads = [self._loads(d, own) for d, own in zip(drafts, packed, strict=True)]
        for draft, own, slower in zip(drafts, loads, cost.slowdowns(loads), strict=True):
            works = own[0].latency_ms, own[1].latency_ms
            if max(works) < inf:
                yield Segment(
                    draft.start,
                    draft.stop,
                    draft.dim,
                    draft.gpu_ratio,
                    draft.halves,
                    draft.inputs,
                    draft.outputs,
                    both_ends(works, slower),
                )

    def _loads(self, draft: _Draft, packed: Sequence[Moved]) -> tuple[Load, Load]:
        cpu = self.cost.load(draft.halves[0], "cpu") + self.cost.packing(packed)
        return cpu, self.cost.load(draft.halves[1], "gpu")


NOTHING = Half(())
DIMS: tuple[Dim, ...] = ("H", "OC", "N")


def last_readers(network: Network) -> dict[str, int]:
    """The index of the last layer that reads each tensor; of results, the number of layers."""
    found = dict.fromkeys((*network.inputs, *network.constants), -1)
    for index, layer in enumerate(network.layers):
        found[layer.output] = -1
        found |= dict.fromkeys(layer.inputs, index)
    return found | {name: len(network.layers) for name, _ in network.outputs.values()}


def _part(layer: Layer, region: Region, dim: Dim) -> Part | None:
    """As `codl.ops.chain` makes parts; None of nothing."""
    if region.is_empty:
        return None
    if dim not in layer.op.dims:
        region = Region.whole(layer.op.output)
    needs = tuple(layer.op.needs(region, index) for index in range(len(layer.inputs)))
    return Part(layer, region, layer.op.restrict(region), needs)


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


def _packed(draft: _Draft, shapes: Mapping[str, tuple[int, ...]]) -> list[Moved]:
    """What the CPU packs before its half, and unpacks after it for others to read."""
    moves: list[Moved] = [("load", r.shape(shapes[n])) for n, r in draft.inputs[0].items()]  # type: ignore[arg-type]
    moves += [("store", r.shape(shapes[n])) for n, r in draft.outputs[0].items()]  # type: ignore[arg-type]
    return moves
