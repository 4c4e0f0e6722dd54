"""Makes plans: of given chains, of one processor, and with fallbacks for wrong variants.

`make_plan` chooses the variants that are predicted fastest for given chains, and predicts the plan.
`one_processor` and `cpu_plans` make predicted plans without a split, `default_plan` and
`preferring` plans without predictions. `with_fallbacks` replaces variants that were found wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any, TypeAlias

from codl.errors import UnsupportedError
from codl.ir import Dim, Layer, Network, to_text
from codl.ir.plan import Chain, OpFallback, Plan, Sharing
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.plan.beam_search import Transitions
from codl.plan.chain_costs import ChainCosts, ChainKey
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, estimated, not_counted
from codl.plan.parts import Walk
from codl.plan.price import START
from codl.plan.shards import in_each_library, planar_of

#: A split plan must be predicted to take less than this part of the faster processor's latency.
#: Predictions of one processor are within 10 % for most networks, and plans of many chains are
#: slower than predicted more often than faster (docs/decisions.md).
WORTH = 0.9
#: The partition ratio of a plan of one processor.
ALONE: Mapping[Processor, float] = {"cpu": 0.0, "gpu": 1.0}
#: Fallbacks by layer, and by the processor on which the planned variant is wrong.
ByLayer: TypeAlias = Mapping[str, Mapping[Processor, OpFallback]]


def chain_of(layers: Sequence[Layer], dim: Dim, gpu_ratio: float) -> Chain:
    """A chain of layers without variants."""
    return Chain(tuple(layer.name for layer in layers), dim, gpu_ratio, {})


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
    plan = _unpredicted(network, cost.soc, strategy, chains, sharing)
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


def _unpredicted(
    network: Network, soc: Soc, strategy: str, chains: Iterable[Chain], sharing: Sharing
) -> Plan:
    return Plan(
        model=network.name,
        digest=network.digest,
        soc=soc.name,
        strategy=strategy,
        predictor="none",
        sharing=sharing,
        predicted_ms=None,
        chains=tuple(chains),
    )


def _unsupported(costs: ChainCosts, walks: Sequence[Walk]) -> UnsupportedError:
    for step in costs.halo(walks).steps():
        for numbers in step.parts:
            for side, number in enumerate(numbers.tolist()):
                if costs.table.fastest_ms(numbers[[side]], side)[0] == inf:
                    name = costs.network.layers[step.layer].name
                    return UnsupportedError(
                        f"The {PROCESSORS[side]} has no kernel variant with a predictor for "
                        f"{name!r} ({to_text(costs.table.op(number))})."
                    )
    raise AssertionError("every part has a variant")


# One processor.


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


def default_plan(
    network: Network,
    soc: Soc,
    processor: Processor,
    *,
    chained: bool = True,
    variants: Mapping[str, str] | None = None,
) -> Plan:
    """All ops on one processor, without predictions: in one chain, or each in its own chain.

    `variants` has the kernel variants of some layers; others take their default. Raises
    `UnsupportedError` for a layer without a variant on the processor.
    """
    named = variants or {}
    chosen: list[Any] = [
        registry.find(layer.op, named[layer.name], processor)
        if layer.name in named
        else _default(layer, processor, soc)
        for layer in network.layers
    ]
    names: dict[str, dict[str, str]] = {
        layer.name: {processor: variant.name}
        for layer, variant in zip(network.layers, chosen, strict=True)
    }
    if processor == "gpu" and chained:
        planar = planar_of(network.layers, chosen, soc)
        for layer, variant, is_planar in zip(network.layers, chosen, planar, strict=True):
            if is_planar and layer.name not in named:
                names[layer.name] = {processor: variant.planar_fallback}
    groups = [tuple(names)] if chained else [(name,) for name in names]
    ratio = ALONE[processor]
    chains = (Chain(ops, "H", ratio, {op: names[op] for op in ops}) for ops in groups if ops)
    return _unpredicted(network, soc, f"all-{processor}", chains, "gather")


def preferring(network: Network, soc: Soc, processor: Processor) -> Plan:
    """All ops on one processor without predictions; unsupported ops go to the other one.

    Raises `UnsupportedError` for a layer without a variant on either processor.
    """
    other: Processor = "gpu" if processor == "cpu" else "cpu"
    sides = [
        processor if registry.variants(layer.op, processor, soc) else other
        for layer in network.layers
    ]
    chains = []
    for side, together in groupby(zip(network.layers, sides, strict=True), itemgetter(1)):
        names = {layer.name: {side: _default(layer, side, soc).name} for layer, _ in together}
        chains.append(Chain(tuple(names), "H", ALONE[side], names))
    return _unpredicted(network, soc, f"rather-{processor}", chains, "missing")


def _default(layer: Layer, processor: Processor, soc: Soc) -> Any:
    """The first variant that is meant for the SoC, or else the first one that works on it."""
    variants = registry.variants(layer.op, processor, soc) or registry.variants(
        layer.op, processor, soc, include_unfit=True
    )
    if not variants:
        refusals = "; ".join(
            f"{variant.name}: {variant.refusal(layer.op, soc)}"
            for variant in registry.of_kind(layer.op.kind, processor)
        )
        raise UnsupportedError(
            f"The {processor} has no kernel variant for {layer.name!r} ({layer.op.kind}). "
            f"{refusals or 'None is written.'}"
        )
    return variants[0]


# Fallbacks.


def with_fallbacks(network: Network, plan: Plan, fallbacks: Sequence[OpFallback]) -> Plan:
    """The plan with fallbacks applied and without a predicted latency.

    A layer that goes to the other processor becomes a chain of its own; other layers stay.
    """
    by_layer: dict[str, dict[Processor, OpFallback]] = {}
    for fallback in fallbacks:
        by_layer.setdefault(fallback.op, {})[fallback.processor] = fallback
    changed = (_changed(*chain_and_layers, by_layer) for chain_and_layers in plan.layers(network))
    return replace(
        plan,
        chains=tuple(chain for chains in changed for chain in chains),
        predicted_ms=None,
        predicted_mj=None,
        fallbacks=(*plan.fallbacks, *fallbacks),
    )


def _changed(chain: Chain, layers: Sequence[Layer], by_layer: ByLayer) -> Iterator[Chain]:
    """The chain with fallbacks, split at layers that go to the other processor."""

    def elsewhere(layer: Layer) -> tuple[Processor, str] | None:
        """The other processor and variant that computes the whole layer; None where it stays."""
        for processor, fallback in by_layer.get(layer.name, {}).items():
            other = registry.find(layer.op, fallback.instead).processor
            if other != processor:
                return other, fallback.instead
        return None

    for move, group in groupby(layers, elsewhere):
        names = [layer.name for layer in group]
        if move is None:
            instead = {
                name: {side: fallback.instead for side, fallback in by_layer.get(name, {}).items()}
                for name in names
            }
            variants = {name: {**chain.variants[name], **instead[name]} for name in names}
            yield replace(chain, ops=tuple(names), variants=variants)
        else:
            processor, variant = move
            variants = {name: {processor: variant} for name in names}
            yield Chain(tuple(names), "H", ALONE[processor], variants)
