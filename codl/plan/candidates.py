"""Candidate chains of a network for a search: their first and last layers, and their cuts.

A chain is a run of layers in topological order, which is always a convex set of the graph.
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

#: Ratios are tried in steps of 1/20, or of one image in larger batches; 0 and 1 are one processor.
STEPS = 20
#: `Recuts` tries ratios in steps of 1/160, up to 12 steps on either side.
FINE_STEPS, REACH = 160, 12
#: Steps on either side of the balanced ratio that are tried for a chain.
NEAR = 1
#: Steps at which single ops are predicted, from the ratio that balances linear latencies.
AROUND = (-6, -3, -1, 0, 1, 3, 6)
#: The most layers of a chain on both processors.
LONGEST = 24
#: Lengths of chains on one processor that do not end with the network.
LENGTHS = (1, 4)
#: Chains that take more than this many times the sum of their ops' best latencies are left out.
MOST_LOSS = 1.3


class Candidates:
    """The candidate chains of one network; `starting` lists them by their first layer.

    With `complete`, all ratios and lengths are candidates, for small networks. Otherwise ratios are
    near the balanced one, and chains lose little compared with single ops.
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

    # Cuts of single ops, which bound what chains can gain.

    @cached_property
    def _steps(self) -> list[dict[Dim, tuple[int, ...]]]:
        """By layer and dimension, the inner steps at which it may be cut."""
        of_op: list[dict[Dim, tuple[int, ...]]] = []
        for op in self._sub_ops.ops:
            dims = [dim for dim in op.dims if dim != "H" or op.output.h > 1]
            of_op.append({dim: _steps(op.output.n, dim, self._steps_count) for dim in dims})
        every = enumerate(of_op[op] for op in self._sub_ops.op_of)
        return [self.costs.weights.allowed(at, steps) for at, steps in every]

    @cached_property
    def _fixed(self) -> list[tuple[Dim, int] | None]:
        """By layer, the dimension and step of its chain in the followed plan, if any."""
        fixed: list[tuple[Dim, int] | None] = []
        for at in range(len(self._layers)):
            cut = self.costs.weights.cut(at)
            fixed.append(None if cut is None else (cut[0], round(cut[1] * self._steps_count)))
        return fixed

    @cached_property
    def _whole_ms(self) -> Milliseconds:
        """Milliseconds of whole layers by processor, (2, layers); infinite without a variant."""
        sub_ops = self._sub_ops
        whole = self._cut_parts({(op, "H"): [0] for op in range(len(sub_ops.ops))})[:, 0]
        latencies = np.array([sub_ops.fastest_ms(whole, side) for side in (0, 1)])
        return latencies[:, sub_ops.op_of]

    def _cut_parts(self, cuts: Mapping[tuple[int, Dim], Sequence[int]]) -> NDArray[np.int64]:
        """The parts of ops at some steps of a dimension, concatenated; (cuts, 2)."""
        sub_ops, counts = self._sub_ops, [len(steps) for steps in cuts.values()]
        shares = [sub_ops.shares(op)[sub_ops.cut(dim, np.array(steps, np.int64))]
                  for (op, dim), steps in cuts.items()]  # fmt: skip
        ops = np.array([op for op, _ in cuts], np.int64)
        wanted = np.concatenate([np.empty((0, 2, 6), np.int64), *shares])
        return sub_ops.of(np.repeat(ops, counts), wanted)

    @cached_property
    def _alone(self) -> Mapping[Dim, Milliseconds]:
        """By dimension, milliseconds of both shards of each layer; (2, layers, steps + 1).

        Latencies are predicted near the balanced step and interpolated between; they only decide
        which chains become candidates. Steps without a value are infinite, except the two ends.
        """
        sub_ops = self._sub_ops
        cuts: dict[tuple[int, Dim], list[int]] = {}
        for k, op in enumerate(sub_ops.op_of):
            for dim, steps in self._steps[k].items():
                if (op, dim) not in cuts:
                    cuts[op, dim] = self._predicted_steps(k, dim, steps)
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
        """By op, the steps at which the followed plan cuts layers with this op."""
        steps: dict[int, set[int]] = {}
        for op, fixed in zip(self._sub_ops.op_of, self._fixed, strict=True):
            if fixed is not None:
                steps.setdefault(op, set()).add(fixed[1])
        return steps

    def _predicted_steps(self, k: int, dim: Dim, steps: tuple[int, ...]) -> list[int]:
        """The steps at which a layer is predicted: near balance, or all where that is unknown."""
        cpu_ms, gpu_ms = self._whole_ms[:, k]
        if self.complete or dim == "N" or not 0 < cpu_ms + gpu_ms < np.inf:
            return list(steps)  # unmeasured ops of a replayed SoC take 0 on both processors
        middle = round(self._steps_count * cpu_ms / (cpu_ms + gpu_ms))
        wanted = {middle + d for d in AROUND}.union(
            self._fixed_of_ops.get(self._sub_ops.op_of[k], ())
        )
        return sorted(wanted.intersection(steps))

    @cached_property
    def _best_ms(self) -> Milliseconds:
        """By layer, its least latency as a single op without data sharing; (layers)."""
        slower = [np.max(alone, axis=0).min(axis=1) for alone in self._alone.values()]
        return np.asarray(np.min(slower, axis=0))

    # Walks of chains on one processor, and on both.

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
        """Walks of split chains; equal runs of ops have equal walks, which are made once."""
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
                # Skip ratios that cut all ops at the same places as an earlier ratio.
                ops = self._sub_ops.op_of[min(starts) : stop]
                places = tuple(self._sub_ops.cuts(op, dim)[step] for op in ops)
                if places not in seen:
                    seen.add(places)
                    yield Walk(stop, dim, step, frozenset(starts))

    def _first_by_step(self, stop: int, dim: Dim) -> dict[int, set[int]]:
        """By step, the first layers of promising chains that end at `stop`."""
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
        """The steps, or the one step of the followed plan for these layers, if it has one."""
        fixed = {cut for cut in self._fixed[start:stop] if cut is not None}
        if not fixed:
            return steps
        (own_dim, step), *others = fixed
        return () if others or own_dim != dim or not 0 < step < self._steps_count else (step,)

    def _starts(self, stop: int, dim: Dim, inner: tuple[int, ...]) -> list[int]:
        """The first layers of chains that end at `stop` and can be cut at the steps `inner`."""
        starts: list[int] = []
        for start in range(stop - 1, max(-1, stop - 1 - LONGEST), -1):
            if self._steps[start].get(dim) != inner:
                break
            starts.append(start)
            if dim == "OC" and not self._layers[start].op.carries_channels:
                break
        return starts


class Recuts(Candidates):
    """The chains of a plan at ratios around their own, in steps of 1 / `FINE_STEPS`.

    Chains keep their layers and dimension; chains on one processor stay there.
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
