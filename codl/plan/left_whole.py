"""Ops that a plan leaves whole on one processor: what splitting each would save, and cost.

Each op is split alone, at its best cut, out of its chain, and the plan with that chain in pieces is
predicted as any plan is. So the difference of both plans also has what no op shows by itself: calls
of nets and launches that the pieces need, and processors that wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import fsum

from codl.ir import Layer, Network
from codl.ir.plan import Chain, Plan
from codl.ir.types import PROCESSORS, Processor
from codl.lower.partition import partition_plan
from codl.plan.build_plan import chain_of, make_plan
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.waterfall import OpCut, best_cuts, lossless, tried_ratios
from codl.records.waterfall import WholeOp


def left_whole(network: Network, plan: Plan, cost: CostModel) -> list[WholeOp]:
    """Every op that the plan leaves whole, the one that saves most first.

    `cost` covers the network. Every part counts in the variant that is predicted fastest.
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
    cuts = best_cuts(ops, cost, tried_ratios(network, plan)).split
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
    """The chains with one layer in two parts, and what is before and behind it in its chain."""
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
    """What all transfers of a plan take."""
    return fsum(
        ms
        for moves in partition_plan(network, plan, cost.soc).exchanges
        for move in moves
        for ms in cost.transfer_parts(
            move.direction, move.region.shape(network.shapes[move.tensor])
        ).values()
    )


def _computing(layer: Layer, processor: Processor, cut: OpCut | None, cost: CostModel) -> WholeOp:
    """What an op takes whole on a processor, and in two parts."""
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
    """What the slower part takes more since the fastest variant of the whole is not one of its own.

    That is its share of what the whole op takes in the fastest of the part's variants, and less its
    share of what that takes in the fastest of all.
    """
    side = cut.parts_ms.index(max(cut.parts_ms))
    processor: Processor = PROCESSORS[side]
    of_whole, of_part = cost.prefetch([layer.op, cut.parts[side]], processor)
    common = [known.latency_ms for name, known in of_whole.items() if name in of_part]
    if not common:
        return 0.0
    share = cut.gpu_ratio if processor == "gpu" else 1 - cut.gpu_ratio
    return share * (min(common) - min(known.latency_ms for known in of_whole.values()))
