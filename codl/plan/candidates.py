"""Candidate chains of a network for a search: where they begin and end, and how they are cut.

A chain here is a run of layers in topological order, which is always a convex set of the graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Network
from codl.ir.ops.base import AXES
from codl.ir.plan import Chain
from codl.plan.chain_costs import CandidateChain, ChainCosts
from codl.plan.cost_model import CostModel, Milliseconds
from codl.plan.sub_ops import Walk

#: Ratios are tried in steps of one twentieth, or one image where a batch has more images; the ends
#: are one processor alone.
STEPS = 20
#: A plan's ratios are then moved in finer steps, up to this many on either side.
FINE_STEPS, REACH = 160, 12
#: Ratios this many steps on either side of the balanced one are tried.
NEAR = 1
#: Where single ops are cut, from where both shards would take equally long if time were linear.
AROUND = (-6, -3, -1, 0, 1, 3, 6)
#: A chain on both processors has this many layers at most.
LONGEST = 24
#: Lengths of chains on one processor that end before the network does.
LENGTHS = (1, 4)
#: Chains that compute this many times longer than their ops at their best are left out.
MOST_LOSS = 1.3


class Candidates:
    """The candidate chains of one network, by where they begin.

    `complete`: all ratios and lengths, which is for small networks; otherwise ratios around the
    one at which both shards would take equally long, and chains that lose little by their length.
    """

    def __init__(
        self, network: Network, cost: CostModel, *, complete: bool = False, steps: int = STEPS
    ) -> None:
        self.network, self.complete = network, complete
        self._layers = network.layers
        self._steps_count = max(steps, *(layer.op.images for layer in network.layers))
        ratios = [step / self._steps_count for step in range(self._steps_count + 1)]
        self.costs = ChainCosts(network, cost, ratios)
        self._sub_ops = self.costs.sub_ops
        walks = [*self._single(), *self._split()]
        self.starting: list[list[CandidateChain]] = [[] for _ in self._layers]
        for candidate in self.costs.evaluate(walks, limited=not complete):
            self.starting[candidate.start].append(candidate)

    # Cuts of single ops, from which it is seen what is worth a longer look.

    @cached_property
    def _steps(self) -> list[dict[Dim, tuple[int, ...]]]:
        """The steps between 0 and the last at which each layer may be cut."""
        of_op: list[dict[Dim, tuple[int, ...]]] = []
        for op in self._sub_ops.ops:
            dims = [dim for dim in op.dims if dim != "H" or op.output.h > 1]
            of_op.append({dim: _steps(op.output.n, dim, self._steps_count) for dim in dims})
        every = enumerate(of_op[op] for op in self._sub_ops.op_of)
        return [self.costs.weights.allowed(at, steps) for at, steps in every]

    @cached_property
    def _fixed(self) -> list[tuple[Dim, int] | None]:
        """By layer the dimension and the step of its chain where another plan is followed."""
        fixed: list[tuple[Dim, int] | None] = []
        for at in range(len(self._layers)):
            cut = self.costs.weights.cut(at)
            fixed.append(None if cut is None else (cut[0], round(cut[1] * self._steps_count)))
        return fixed

    @cached_property
    def _whole_ms(self) -> Milliseconds:
        """Milliseconds of whole layers on either processor, shaped (2, layers); or infinite."""
        sub_ops = self._sub_ops
        whole = self._cut_parts({(op, "H"): [0] for op in range(len(sub_ops.ops))})[:, 0]
        latencies = np.array([sub_ops.fastest_ms(whole, side) for side in (0, 1)])
        return latencies[:, sub_ops.op_of]

    def _cut_parts(self, cuts: Mapping[tuple[int, Dim], Sequence[int]]) -> NDArray[np.int64]:
        """The parts of ops that are cut after some steps, one behind the other, (cuts, 2)."""
        sub_ops, counts = self._sub_ops, [len(steps) for steps in cuts.values()]
        shares = [sub_ops.shares(op)[sub_ops.cut(dim, np.array(steps, np.int64))]
                  for (op, dim), steps in cuts.items()]  # fmt: skip
        ops = np.array([op for op, _ in cuts], np.int64)
        wanted = np.concatenate([np.empty((0, 2, 6), np.int64), *shares])
        return sub_ops.of(np.repeat(ops, counts), wanted)

    @cached_property
    def _alone(self) -> Mapping[Dim, Milliseconds]:
        """Milliseconds of both shards of every layer, shaped (2, layers, steps + 1); or infinite.

        Predicted around the balanced cut and on a line in between: this only says which chains are
        looked at. The ends of a dimension that a layer has not are there all the same.
        """
        sub_ops = self._sub_ops
        cuts: dict[tuple[int, Dim], list[int]] = {}
        for k, op in enumerate(sub_ops.op_of):
            for dim, steps in self._steps[k].items():
                if (op, dim) not in cuts:
                    cuts[op, dim] = self._looked_at(k, dim, steps)
        asked = self._cut_parts(cuts)
        latencies = np.array([sub_ops.fastest_ms(asked[:, side], side) for side in (0, 1)])
        last = self._steps_count
        tables = {dim: np.full((2, len(sub_ops.ops), last + 1), np.inf) for dim in AXES}
        first = 0
        for (op, dim), cut in cuts.items():
            cut_ms = latencies[:, first : first + len(cut)]
            first += len(cut)
            if cut:
                inner = np.arange(cut[0], cut[-1] + 1)
                for side in (0, 1):
                    tables[dim][side, op, inner] = np.interp(inner, cut, cut_ms[side])
        for dim, by_op in tables.items():
            tables[dim] = table = by_op[:, sub_ops.op_of]
            table[0, :, 0], table[1, :, 0] = self._whole_ms[0], 0.0
            table[0, :, last], table[1, :, last] = 0.0, self._whole_ms[1]
        return tables

    @cached_property
    def _fixed_of_ops(self) -> Mapping[int, set[int]]:
        """By op the steps at which layers are cut where another plan is followed."""
        steps: dict[int, set[int]] = {}
        for op, fixed in zip(self._sub_ops.op_of, self._fixed, strict=True):
            if fixed is not None:
                steps.setdefault(op, set()).add(fixed[1])
        return steps

    def _looked_at(self, k: int, dim: Dim, steps: tuple[int, ...]) -> list[int]:
        """The steps at which a layer is predicted: near balance, or all where it is unknown."""
        cpu_ms, gpu_ms = self._whole_ms[:, k]
        if self.complete or dim == "N" or not 0 < cpu_ms + gpu_ms < np.inf:
            return list(steps)  # of a replayed SoC's ops that nobody measured both are 0
        middle = round(self._steps_count * cpu_ms / (cpu_ms + gpu_ms))
        wanted = {middle + d for d in AROUND}.union(
            self._fixed_of_ops.get(self._sub_ops.op_of[k], ())
        )
        return sorted(wanted.intersection(steps))

    @cached_property
    def _best_ms(self) -> Milliseconds:
        """The least that each layer computes, on its own and with nothing shared."""
        slower = [np.max(alone, axis=0).min(axis=1) for alone in self._alone.values()]
        return np.asarray(np.min(slower, axis=0))

    # Walks that cut chains: on one processor, and on both.

    def _single(self) -> Iterator[Walk]:
        able = np.isfinite(self._whole_ms)
        for stop in range(1, len(self._layers) + 1):
            for side, step in ((0, 0), (1, self._steps_count)):
                starts: set[int] = set()
                for start in reversed(range(stop)):
                    if not able[side, start]:
                        break
                    if self.complete or stop == len(self._layers) or stop - start in LENGTHS:
                        starts.add(start)
                    elif stop - start > LENGTHS[-1]:
                        break
                if starts:
                    yield Walk(stop, "H", step, frozenset(starts))

    def _split(self) -> Iterator[Walk]:
        """Of layers behind each other with the same ops once, wherever they stand."""
        walks_by_ops: dict[Hashable, list[Walk]] = {}
        for stop in range(1, len(self._layers) + 1):
            window = slice(max(0, stop - LONGEST), stop)
            ops = tuple(self._sub_ops.op_of[window]), tuple(self._fixed[window])
            if ops not in walks_by_ops:
                walks_by_ops[ops] = list(self._split_before(stop))
            for walk in walks_by_ops[ops]:
                moved = stop - walk.stop
                starts = frozenset(start + moved for start in walk.starts) if moved else walk.starts
                yield walk._replace(stop=stop, starts=starts)

    def _split_before(self, stop: int) -> Iterator[Walk]:
        for dim in AXES:
            seen: set[tuple[int, ...]] = set()
            for step, starts in self._first_by_step(stop, dim).items():
                # Ratios that cut at the same places are one.
                ops = self._sub_ops.op_of[min(starts) : stop]
                places = tuple(self._sub_ops.cuts(op, dim)[step] for op in ops)
                if places not in seen:
                    seen.add(places)
                    yield Walk(stop, dim, step, frozenset(starts))

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
        by_step: dict[int, set[int]] = {}
        for at, start in enumerate(starts):
            steps: Sequence[int] = inner
            if not self.complete:
                near = int(least[at])
                steps = inner[max(0, near - NEAR) : near + NEAR + 1] if worth[at] else ()
            for step in self._followed(start, stop, dim, steps):
                by_step.setdefault(step, set()).add(start)
        return by_step

    def _followed(self, start: int, stop: int, dim: Dim, steps: Sequence[int]) -> Sequence[int]:
        """The steps, or where another plan is followed that of all of its chains."""
        fixed = {cut for cut in self._fixed[start:stop] if cut is not None}
        if not fixed:
            return steps
        (own_dim, step), *others = fixed
        return () if others or own_dim != dim or not 0 < step < self._steps_count else (step,)

    def _starts(self, stop: int, dim: Dim, inner: tuple[int, ...]) -> list[int]:
        """Where chains may begin that end at `stop` and are cut at such steps."""
        starts: list[int] = []
        for start in range(stop - 1, max(-1, stop - 1 - LONGEST), -1):
            if self._steps[start].get(dim) != inner:
                break
            starts.append(start)
            if dim == "OC" and not self._layers[start].op.carries_channels:
                break
        return starts


class Recuts(Candidates):
    """The chains of a plan at the ratios around their own, in steps of 1 / `FINE_STEPS`.

    Chains keep their layers and dimension. A chain on one processor stays there.
    """

    def __init__(self, network: Network, cost: CostModel, chains: Sequence[Chain]) -> None:
        self._chains = chains
        super().__init__(network, cost, steps=FINE_STEPS)

    def _single(self) -> Iterator[Walk]:
        return iter(())

    def _split(self) -> Iterator[Walk]:
        last, stop = self._steps_count, 0
        for chain in self._chains:
            start, stop = stop, stop + len(chain.ops)
            step = round(last * chain.gpu_ratio)
            if chain.gpu_ratio in (0, 1):
                yield Walk(stop, chain.dim, step, frozenset([start]))
                continue
            seen: set[tuple[int, ...]] = set()
            for near in range(max(1, step - REACH), min(last - 1, step + REACH) + 1):
                ops = self._sub_ops.op_of[start:stop]
                places = tuple(self._sub_ops.cuts(op, chain.dim)[near] for op in ops)
                if places not in seen:
                    seen.add(places)
                    yield Walk(stop, chain.dim, near, frozenset([start]))


def _steps(images: int, dim: Dim, steps: int) -> tuple[int, ...]:
    if dim != "N":
        return tuple(range(1, steps))
    return tuple(sorted({round(steps * k / images) for k in range(1, images)} - {0, steps}))
