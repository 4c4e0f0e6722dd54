"""Predicted totals of a latency waterfall, and what splitting each unsplit op would save.

A waterfall begins at the lossless bound and ends at the predicted latency. Each term ends with a
total. The first three totals are sums over chains of the slower processor's computing time:

- `bound`: each op on both processors without loss, 1 / (1 / CPU + 1 / GPU);
- `cuts`: each op by itself at its best cut, at the ratios that a search tries;
- `chains`: each chain at the plan's cut and in the plan's kernel variants.

The others are of the executable's stages:

- `fusion`: stages in turn, with savings from running ops together;
- `layouts`: with packing, and copies between storages;
- `overlap`: a walk over the commands, in which stages may overlap;
- `sharing`: the walk with data sharing;
- `launches`: the walk with launches;
- `contention`: the walk with the slowdown by the other processor, which is the price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import fsum, inf
from typing import NamedTuple

import numpy as np

from codl.ir import Dim, Layer, Network, Op, Region
from codl.ir.executable import Executable
from codl.ir.ops.base import AXES
from codl.ir.plan import Chain, Plan
from codl.ir.records.waterfall import BOUND, Total, WholeOp
from codl.ir.types import PROCESSORS, Direction, Processor
from codl.lower.partition import partition_plan
from codl.plan.build_plan import chain_of
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel, Pair
from codl.plan.coverage import without
from codl.plan.parts import DIMS, NONE, PartTable
from codl.plan.predicted_plan import make_plan
from codl.plan.price import Price, StageTimes, stage_times, walk
from codl.plan.search import STEPS
from codl.predict.in_network_cost import PACKING

#: The totals of computing, in order.
COMPUTING = (BOUND, "cuts", "chains")


def side_by_side_ms(network: Network, cost: CostModel) -> float:
    """1 / (1 / CPU + 1 / GPU) of a network: each op cut at the same ratio without loss.

    Ops that only one processor supports add their latency on it.
    """
    alone = [cost.fastest_ms((x.op for x in network.layers), side) for side in PROCESSORS]
    pairs = list(zip(*alone, strict=True))
    both = [fsum(ms) for ms in zip(*(pair for pair in pairs if max(pair) < inf), strict=True)]
    return fsum(min(pair) for pair in pairs if max(pair) == inf) + (lossless(*both) if both else 0)


def lossless(cpu_ms: float, gpu_ms: float) -> float:
    """The bound of both processors together: 1 / (1 / CPU + 1 / GPU)."""
    return 1 / (1 / cpu_ms + 1 / gpu_ms) if cpu_ms and gpu_ms else 0.0


def predicted_totals(
    network: Network, plan: Plan, executable: Executable, cost: CostModel
) -> list[Total]:
    """All totals of a plan and the executable that it was lowered to.

    Walks add one term of the cost model after the other; the last total is the price. Raises
    `MismatchError` where the plan is for another model or SoC.
    """
    chains = ChainTotals(plan, executable)
    ways: list[Direction] = [*PACKING.values(), "relayout"]
    no_layouts = without(cost, ways=ways, inside={"packed_ms": 0.0, "beside_ms": 0.0})
    fused = stage_times(executable, no_layouts)
    launched = stage_times(executable, without(cost, inside={"beside_ms": 0.0}))
    shared = [replace(stage, launches_ms=0.0) for stage in launched]
    laid = [replace(stage, transfers_ms={at: {} for at in stage.transfers_ms}) for stage in shared]
    return [
        *_computing_totals(network, plan, cost),
        chains.in_turn("fusion", fused),
        chains.in_turn("layouts", laid),
        chains.walked("overlap", walk(executable, laid)),
        chains.walked("sharing", walk(executable, shared)),
        chains.walked("launches", walk(executable, launched)),
        chains.walked("contention", walk(executable, stage_times(executable, cost))),
    ]


class ChainTotals:
    """Totals of an executable's stages by chain of the plan; the last entry is the output stage."""

    def __init__(self, plan: Plan, executable: Executable) -> None:
        self._count = len(plan.chains) + 1
        #: By stage, the number of its chain, found by label: empty chains have no stage.
        self._chains: list[int] = []
        labels, first = [chain.label for chain in plan.chains], 0
        for stage in executable.stages:
            is_chain = stage.label in labels[first:]
            self._chains.append(labels.index(stage.label, first) if is_chain else len(labels))
            first = min(self._chains[-1] + 1, len(labels))

    def in_turn(self, name: str, times: Sequence[StageTimes]) -> Total:
        """The total if each stage began only after both processors had finished the last one."""
        return self.total(name, [max(stage.works_ms) for stage in times])

    def walked(self, name: str, price: Price) -> Total:
        """The total of a walk: the time from the end of one stage to the end of the next."""
        ends_ms = [0.0, *map(max, price.ends_ms)]
        return self.total(name, [end - before for before, end in pairwise(ends_ms)])

    def total(self, name: str, stages_ms: Sequence[float]) -> Total:
        """The total of stages with these milliseconds; chains without a stage have 0."""
        chains_ms = [0.0] * self._count
        for chain, ms in zip(self._chains, stages_ms, strict=True):
            chains_ms[chain] += ms
        return Total(name, tuple(chains_ms))


# Computing.


def _computing_totals(network: Network, plan: Plan, cost: CostModel) -> list[Total]:
    """The totals of computing; the last entry, of the output stage, is 0."""
    ops = [layer.op for layer in network.layers]
    at_cuts, _ = best_cuts(ops, cost, tried_ratios(network, plan))
    alone = zip(*(cost.fastest_ms(ops, side) for side in PROCESSORS), strict=True)
    bounds = dict(zip(ops, (lossless(*pair) for pair in alone), strict=True))
    totals: dict[str, list[float]] = {name: [] for name in COMPUTING}
    segments = partition_plan(network, plan, cost.soc).segments
    for segment, (chain, layers) in zip(segments, plan.layers(network), strict=True):
        for name, by_op in ((BOUND, bounds), ("cuts", at_cuts)):
            totals[name].append(fsum(by_op[layer.op] for layer in layers))
        shards = zip(PROCESSORS, (segment.cpu, segment.gpu), strict=True)
        works_ms = [
            fsum(
                cost.variant_ms(part.op, side, chain.variants[part.layer.name][side])
                for part in shard.parts
            )
            for side, shard in shards
        ]
        totals["chains"].append(max(works_ms))
    return [Total(name, (*chains_ms, 0.0)) for name, chains_ms in totals.items()]


def tried_ratios(network: Network, plan: Plan) -> list[float]:
    """The ratios that a search tries, and those of the plan."""
    steps = {STEPS, *(layer.op.images for layer in network.layers)}
    tried = {step / count for count in steps for step in range(count + 1)}
    return sorted(tried | {chain.gpu_ratio for chain in plan.chains})


class OpCut(NamedTuple):
    """An op cut into the CPU's and the GPU's part, with the milliseconds of each."""

    dim: Dim
    gpu_ratio: float
    parts: tuple[Op, Op]
    parts_ms: Pair


def best_cuts(
    ops: Sequence[Op], cost: CostModel, ratios: Sequence[float]
) -> tuple[dict[Op, float], dict[Op, OpCut]]:
    """Milliseconds of each op by itself at its best cut, and its best cut into two parts, if any.

    One processor counts as a cut at the ratios 0 and 1.
    """
    table = PartTable(ops, cost, ratios)
    of_ops = [table.of(op, table.shares(op)) for op in range(len(table.ops))]
    every = np.concatenate(of_ops)
    for side in (0, 1):  # predicted at once
        table.fastest_ms(every[:, side], side)
    ops_ms: dict[Op, float] = {}
    split: dict[Op, OpCut] = {}
    for at, (op, numbers) in enumerate(zip(table.ops, of_ops, strict=True)):
        cuts = [(dim, place) for dim in DIMS for place in table.cuts(at, dim)]
        works_ms = np.stack([table.fastest_ms(numbers[:, side], side) for side in (0, 1)], axis=1)
        slower_ms = works_ms.max(axis=1)
        ops_ms[op] = float(slower_ms.min())
        is_split = (numbers != NONE).all(axis=1) & [dim in op.dims for dim, _ in cuts]
        slower_ms[~is_split] = inf
        best = int(slower_ms.argmin())
        if slower_ms[best] < inf:
            cpu, gpu = (table.op(number) for number in numbers[best].tolist())
            dim, place = cuts[best]
            size = getattr(Region.whole(op.output), AXES[dim]).size
            split[op] = OpCut(dim, place / size, (cpu, gpu), tuple(works_ms[best].tolist()))
    return ops_ms, split


# Unsplit ops.


def left_whole(network: Network, plan: Plan, cost: CostModel) -> list[WholeOp]:
    """What splitting each unsplit op of a plan would save, the largest saving first.

    Each op is split by itself at its best cut, out of its chain, and the new plan is predicted. So
    the difference of both plans includes the calls, launches and waits of the pieces. `cost` covers
    the network, and all parts run in the variants that are predicted fastest.
    """
    whole = [
        (layer, PROCESSORS[int(chain.gpu_ratio)])
        for chain, layers in plan.layers(network)
        for layer in layers
        if chain.gpu_ratio in (0, 1)
    ]
    if not whole:
        return []
    ops = [layer.op for layer, _ in whole]
    _, cuts = best_cuts(ops, cost, tried_ratios(network, plan))
    of_cuts = (cut.gpu_ratio for cut in cuts.values())
    ratios = sorted({0.0, 1.0, *(chain.gpu_ratio for chain in plan.chains), *of_cuts})
    make = partial(
        make_plan,
        network,
        cost,
        strategy=plan.strategy,
        sharing=plan.sharing,
        costs=ChainCosts(network, cost, ratios),
    )
    now = make(plan.chains)
    now_ms, shared_ms = now.predicted_ms or 0.0, _shared_ms(network, now, cost)
    rows = []
    for layer, processor in whole:
        cut = cuts.get(layer.op)
        row = _computing(layer, processor, cut, cost)
        if cut is not None:
            split = make([*_with_split(plan.chains, layer, cut)])
            row = replace(
                row,
                sharing_ms=_shared_ms(network, split, cost) - shared_ms,
                net_ms=(split.predicted_ms or 0.0) - now_ms,
            )
        rows.append(row)
    return sorted(rows, key=lambda row: -row.saves_ms)


def _with_split(chains: Sequence[Chain], layer: Layer, cut: OpCut) -> Iterator[Chain]:
    """The chains with one layer split, and its own chain cut before and after it."""
    for chain in chains:
        if layer.name not in chain.ops:
            yield chain
            continue
        at = chain.ops.index(layer.name)
        before, behind = (replace(chain, ops=ops) for ops in (chain.ops[:at], chain.ops[at + 1 :]))
        yield from (before,) if before.ops else ()
        yield chain_of([layer], cut.dim, cut.gpu_ratio)
        yield from (behind,) if behind.ops else ()


def _shared_ms(network: Network, plan: Plan, cost: CostModel) -> float:
    """The sum of the milliseconds of all transfers of a plan."""
    return fsum(
        ms
        for moves in partition_plan(network, plan, cost.soc).exchanges
        for move in moves
        for ms in cost.transfer_parts(
            move.direction, move.region.shape(network.shapes[move.tensor])
        ).values()
    )


def _computing(layer: Layer, processor: Processor, cut: OpCut | None, cost: CostModel) -> WholeOp:
    """The milliseconds of an op whole on a processor, and in two parts."""
    alone_ms = [cost.fastest_ms([layer.op], side)[0] for side in PROCESSORS]
    whole_ms = alone_ms[PROCESSORS.index(processor)]
    if cut is None:
        return WholeOp(op=layer.name, processor=processor, whole_ms=whole_ms, best_ms=whole_ms)
    best_ms = max(cut.parts_ms)
    variants_ms = _variants_ms(layer, cut, cost)
    return WholeOp(
        op=layer.name,
        processor=processor,
        whole_ms=whole_ms,
        best_ms=best_ms,
        dim=cut.dim,
        gpu_ratio=cut.gpu_ratio,
        saves_ms=whole_ms - best_ms,
        cuts_ms=best_ms - lossless(*alone_ms) - variants_ms,
        variants_ms=variants_ms,
    )


def _variants_ms(layer: Layer, cut: OpCut, cost: CostModel) -> float:
    """The slower part's loss if it does not support the fastest variant of the whole op.

    That is its share of the difference between the whole op's fastest variant and the fastest one
    that the part supports.
    """
    side = cut.parts_ms.index(max(cut.parts_ms))
    processor: Processor = PROCESSORS[side]
    of_whole, of_part = cost.prefetch([layer.op, cut.parts[side]], processor)
    common = [known.latency_ms for name, known in of_whole.items() if name in of_part]
    if not common:
        return 0.0
    share = cut.gpu_ratio if processor == "gpu" else 1 - cut.gpu_ratio
    return share * (min(common) - min(known.latency_ms for known in of_whole.values()))
