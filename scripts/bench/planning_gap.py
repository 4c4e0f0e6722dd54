"""How far the search's plans are from the best ones, on networks small enough to try them all.

    python scripts/bench/planning_gap.py --networks 20

The best plan is found without the search's tables, candidates and bounds: every way to cut a
network into chains, each on one processor or at a quarter, half or three quarters along H or OC, is
lowered and priced whole. The best few are then improved one step of a twentieth, or one kernel
variant, at a time. Latencies follow a law (simulated), with a law of its own for each network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import chain as joined
from itertools import product
from math import inf
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.plans import make_plan
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.errors import CodlError
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Layer, Network
from codl.ir.plan import Plan
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.cost_model import CostModel
from codl.plan.price import price
from codl.plan.search import search

RATIOS, STEP = (0.25, 0.5, 0.75), 0.05
#: So many of the plans by quarters are improved.
IMPROVED = 4
Cut = tuple[int, str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    gaps = []
    for seed in range(args.networks):
        network, cost = drawn(seed, args.layers)
        plan = search(network, cost, "test")
        found_ms, least_ms = priced_ms(network, cost, plan), best_ms(network, cost)
        gaps.append(found_ms / least_ms - 1)
        where = "split" if is_split(plan) else "one processor"
        print(
            f"{seed}: {len(network.layers)} layers, {where}, "
            f"search {found_ms:.4f} ms, best {least_ms:.4f} ms, gap {100 * gaps[-1]:+.2f} %"
        )
    print(f"largest gap {100 * max(gaps):+.2f} %, mean {100 * sum(gaps) / len(gaps):+.2f} %")


def drawn(seed: int, most_layers: int) -> tuple[Network, CostModel]:
    """A small network with or without branches, and the costs of a law, by a seed."""
    dice, b = Random(seed), ModelBuilder("small")
    x = before = b.input("x", (1, 16, 56, 56))
    for _ in range(dice.randint(2, most_layers)):
        step = dice.choice(("conv", "conv", "wide", "pool", "add", "concat"))
        if step == "pool":
            x = before = b.max_pool(x, 2, 2)
        elif step == "add":
            x = b.add(x, before) if x != before else b.relu(x)
        elif step == "concat":
            x = before = b.concat([x, before])
        else:
            x = b.conv(x, 16, 5 if step == "wide" else 3, pad=2 if step == "wide" else 1)
            before = x if dice.random() < 0.5 or step == "wide" else before
    b.output(b.conv(x, dice.choice((8, 32)), 1, pad=0))
    exchange = Line(dice.choice((1e-4, 0.01, 0.1)), dice.choice((0.0, 0.1, 2.0)))
    make = dice.choice((SyntheticPredictors, SyntheticPredictors.with_all_terms))
    law = make(gpu=dice.choice((0.5, 1.0, 2.0)), exchange=exchange)
    network = convert(simplify(import_onnx(b.build(), "small")))
    return network, CostModel(SOC, law)


def is_split(plan: Plan) -> bool:
    """Whether both processors work on some chain."""
    return any(0 < chain.gpu_ratio < 1 for chain in plan.chains)


def best_ms(network: Network, cost: CostModel) -> float:
    """The least that any plan takes that is tried."""
    cuts = every_cut(network.layers)
    plans = [make_plan(network, SOC, own, sharing="missing") for own in cuts]
    pairs = ((priced_ms(network, cost, plan), at) for at, plan in enumerate(plans))
    best = nsmallest(IMPROVED, pairs)
    return min(improved_ms(network, cost, plans[at], ms) for ms, at in best)


def every_cut(layers: Sequence[Layer]) -> Iterator[list[Cut]]:
    for ends in product((False, True), repeat=len(layers) - 1):
        stops = [at + 1 for at, is_end in enumerate(ends) if is_end] + [len(layers)]
        pairs = zip([0, *stops], stops, strict=False)
        yield from map(list, product(*(cuts_of(layers[start:stop]) for start, stop in pairs)))


def cuts_of(layers: Sequence[Layer]) -> list[Cut]:
    dims = [dim for dim in ("H", "OC") if all(dim in layer.op.dims for layer in layers)]
    both = [(len(layers), dim, ratio) for dim in dims for ratio in RATIOS]
    return [(len(layers), "H", 0.0), (len(layers), "H", 1.0), *both]


def improved_ms(network: Network, cost: CostModel, plan: Plan, ms: float) -> float:
    """What is left of a plan's latency when no single change makes it faster."""
    while True:
        tried = ((priced_ms(network, cost, other), other) for other in changed(network, plan))
        least, other = min(tried, key=lambda pair: pair[0], default=(inf, plan))
        if least >= ms:
            return ms
        ms, plan = least, other


def changed(network: Network, plan: Plan) -> Iterator[Plan]:
    """Plans that differ in one chain's ratio, or in one layer's variant on one processor."""
    layers = {layer.name: layer for layer in network.layers}
    for at, chain in enumerate(plan.chains):
        ratios = (round(chain.gpu_ratio + by, 2) for by in (-STEP, STEP))
        others = (
            replace(chain, gpu_ratio=r) for r in ratios if 0 < chain.gpu_ratio < 1 and 0 < r < 1
        )
        swapped = (
            replace(chain, variants={**chain.variants, name: {**usual, side: variant.name}})
            for name, usual in chain.variants.items()
            for side in usual
            for variant in registry.variants(layers[name].op, side, SOC)
            if variant.name != usual[side]
        )
        for other in joined(others, swapped):
            yield replace(plan, chains=(*plan.chains[:at], other, *plan.chains[at + 1 :]))


def priced_ms(network: Network, cost: CostModel, plan: Plan) -> float:
    """The price of all that a plan is lowered to; infinite for one that is not legal."""
    try:
        return price(lower(network, plan, SOC, Tuning()), cost).latency_ms
    except CodlError:
        return inf


if __name__ == "__main__":
    main()
