"""Makes plans with predictions: of given chains, and of one processor.

`make_plan` chooses the variants that are predicted fastest for given chains, and predicts the plan.
`one_processor` and `cpu_plans` make plans without a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import itemgetter

from codl.errors import UnsupportedError
from codl.ir import Network, to_text
from codl.ir.plan import Chain, Plan, Sharing
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.plan.beam_search import START, Transitions
from codl.plan.build_plan import ALONE, chain_of, default_plan, unpredicted
from codl.plan.chain_costs import ChainCosts, ChainKey
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, estimated, not_counted
from codl.plan.parts import Walk
from codl.plan.shards import in_each_library

#: A split plan must be predicted to take less than this part of the faster processor's latency.
#: Predictions of one processor are within 10 % for most networks, and plans of many chains are
#: slower than predicted more often than faster (docs/decisions.md).
WORTH = 0.9


def make_plan(
    network: Network,
    cost: CostModel,
    chains: Sequence[Chain],
    *,
    strategy: str,
    sharing: Sharing,
    method: str = "",
    costs: ChainCosts | None = None,
) -> Plan:
    """A plan of these chains, in the variants that are predicted fastest.

    `costs` may be chain costs of the same cost model at these ratios. Raises `UnsupportedError` for
    a layer for which its processor has no variant with a predictor.
    """
    if costs is None:
        costs = ChainCosts(network, cost, sorted({0.0, 1.0, *(x.gpu_ratio for x in chains)}))
    plan = unpredicted(network, cost.soc, strategy, chains, sharing)
    keys: list[ChainKey] = []
    for chain, layers in plan.layers(network):
        start = keys[-1][1] if keys else 0
        keys.append((start, start + len(layers), chain.dim, chain.gpu_ratio))
    transitions = Transitions(costs, sharing)
    new = [costs.walk(*key) for key in keys if key not in costs.known]
    if new:
        transitions.prefetch(costs.evaluate(new))
    if not costs.known.keys() >= set(keys):
        raise _unsupported(costs, new)
    clocks, resident, planned = START, transitions.start, []
    for chain, key in zip(plan.chains, keys, strict=True):
        candidate = costs.known[key]
        clocks, resident = transitions.after(clocks, resident, candidate)
        variants = {name: by_side for name, by_side in costs.variants(candidate).items() if by_side}
        planned.append(replace(chain, variants=variants))
    return replace(
        plan,
        chains=tuple(planned),
        predicted_ms=transitions.end_ms(clocks, resident),
        predictor=cost.predictors.name,
        source=cost.soc.source,
        not_counted=not_counted(cost, network),
        estimated=estimated(cost, network),
        method=method,
    )


def _unsupported(costs: ChainCosts, walks: Sequence[Walk]) -> UnsupportedError:
    for step in costs.halo(walks).steps():
        for numbers in step.parts:
            for side, number in enumerate(numbers.tolist()):
                if costs.table.fastest_ms(numbers[[side]], side)[0] == inf:
                    name, soc = costs.network.layers[step.layer].name, costs.cost.soc.name
                    return UnsupportedError(
                        f"The {PROCESSORS[side]} has no kernel variant with a predictor for "
                        f"{name!r} ({to_text(costs.table.op(number))}). `codl collect --soc {soc} "
                        f"--resume` measures more ops, and `codl train --soc {soc}` learns them."
                    )
    raise AssertionError("every part has a variant")


def one_processor(
    network: Network,
    cost: CostModel,
    processor: Processor,
    *,
    strategy: str,
    sharing: Sharing = "gather",
    method: str = "",
    costs: ChainCosts | None = None,
) -> Plan:
    """All ops on one processor in their fastest variants; unsupported ops go to the other one.

    `costs` may be chain costs of the same cost model.
    """
    cost, alone = covered(cost, network), ALONE[processor]
    latencies_ms = cost.fastest_ms((layer.op for layer in network.layers), processor)
    ratios = [alone if ms < inf else 1.0 - alone for ms in latencies_ms]
    chains = [
        chain_of([layer for layer, _ in together], "H", ratio)
        for ratio, together in groupby(zip(network.layers, ratios, strict=True), itemgetter(1))
    ]
    return make_plan(
        network, cost, chains, strategy=strategy, sharing=sharing, method=method, costs=costs
    )


def cpu_plans(network: Network, cost: CostModel, *, strategy: str) -> list[Plan]:
    """Plans of the CPU alone: the one predicted fastest, then one for each library.

    A library's plan uses other libraries only for ops that it does not support. A device decides
    which plan is fastest better than predictions do.
    """
    costs = in_each_library(network, cost)
    plans = [one_processor(network, each, "cpu", strategy=strategy) for each in costs]
    # After a short collection only some ops of a library have predictions, and predicted plans mix
    # libraries. So each library also has a plan without predictions. Library 0 (ncnn) has several
    # variants of an op; only predictions can choose one.
    for library in () if cost.soc.is_replayed else range(1, len(LIBRARIES)):
        accepted = ((x.name, registry.of_library(x.op, library, cost.soc)) for x in network.layers)
        variants = {name: variant.name for name, variant in accepted if variant is not None}
        if variants:
            plan = default_plan(network, cost.soc, "cpu", variants=variants)
            plans.append(replace(plan, strategy=strategy))
    different: dict[str, Plan] = {}
    for plan in plans:
        different.setdefault(plan.fingerprint, plan)
    return list(different.values())


def unless_alone(
    plan: Plan, network: Network, cost: CostModel, costs: ChainCosts | None = None
) -> Plan:
    """The plan, or the faster processor's where the predicted gain is below the prediction error.

    `costs` may be chain costs of the same cost model.
    """
    cost, ops = covered(cost, network), [layer.op for layer in network.layers]
    alone = [
        one_processor(
            network,
            cost,
            processor,
            strategy=plan.strategy,
            sharing="missing",
            method=f"the {processor} alone: two gain less than {1 - WORTH:.0%}",
            costs=costs,
        )
        for processor in PROCESSORS
        if max(cost.fastest_ms(ops, processor), default=0.0) < inf
    ]
    faster = min(alone, key=lambda single: single.predicted_ms or 0.0, default=plan)
    limit_ms = WORTH * (faster.predicted_ms or 0.0)
    return faster if (plan.predicted_ms or 0.0) > limit_ms else plan
