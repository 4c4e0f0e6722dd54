"""Plans of chosen chains, of one processor alone, and with layers in other variants."""

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
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.kernels.base import LIBRARIES
from codl.plan.chain_costs import ChainCosts, ChainKey
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, estimated, not_counted
from codl.plan.cpu_libraries import in_each_library
from codl.plan.price import START
from codl.plan.shards import planar_of
from codl.plan.sub_ops import Walk
from codl.plan.transitions import Transitions
from codl.records.soc import Soc

#: A plan that moves work between processors must be predicted to take less than this part of what
#: one of them takes alone. What one takes is predicted within 10 % for most networks, and plans of
#: many chains come out slower than predicted more often than faster (docs/decisions.md).
WORTH = 0.9
#: The partition ratio of all on one processor.
ALONE: Mapping[Processor, float] = {"cpu": 0.0, "gpu": 1.0}
#: What runs each layer elsewhere or otherwise, by the processor that it is wrong on.
ByLayer: TypeAlias = Mapping[str, Mapping[Processor, OpFallback]]


def chain_of(layers: Sequence[Layer], dim: Dim, gpu_ratio: float) -> Chain:
    """Layers as one chain, whose variants are still to be chosen."""
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

    `costs` are those of chains cut at these ratios, by the same cost model, if there are any yet.
    Raises `UnsupportedError` with a layer for which a processor has no variant with a predictor.
    """
    plan = _unpredicted(
        network,
        cost.soc,
        strategy,
        chains,
        sharing,
        predictor=cost.predictors.name,
        source=cost.soc.source,
        not_counted=not_counted(cost, network),
        estimated=estimated(cost, network),
        method=method,
    )
    ratios = sorted({0.0, 1.0, *(chain.gpu_ratio for chain in plan.chains)})
    return _with_variants(network, plan, costs or ChainCosts(network, cost, ratios))


def _unpredicted(
    network: Network,
    soc: Soc,
    strategy: str,
    chains: Iterable[Chain],
    sharing: Sharing,
    **more: Any,
) -> Plan:
    return Plan(
        model=network.name,
        digest=network.digest,
        soc=soc.name,
        strategy=strategy,
        sharing=sharing,
        predicted_ms=None,
        chains=tuple(chains),
        **{"predictor": "none", **more},
    )


def _with_variants(network: Network, plan: Plan, costs: ChainCosts) -> Plan:
    """The plan in the variants that are predicted fastest, with what it takes in all."""
    ratios, stop = costs.sub_ops.ratios, 0
    walks: dict[ChainKey, Walk] = {}
    for chain, layers in plan.layers(network):
        start, stop = stop, stop + len(layers)
        walk = Walk(stop, chain.dim, ratios.index(chain.gpu_ratio), frozenset([start]))
        walks[start, stop, chain.dim, chain.gpu_ratio] = walk
    transitions = Transitions(costs, plan.sharing)
    new = [walk for key, walk in walks.items() if key not in costs.known]
    if new:
        transitions.prefetch(costs.evaluate(new))
    if not walks.keys() <= costs.known.keys():
        raise _unsupported(costs, new)
    clocks, resident, chains = START, transitions.start, []
    for chain, key in zip(plan.chains, walks, strict=True):
        candidate = costs.known[key]
        clocks, resident = transitions.after(clocks, resident, candidate)
        variants = {name: by_side for name, by_side in costs.variants(candidate).items() if by_side}
        chains.append(replace(chain, variants=variants))
    predicted_ms = transitions.end_ms(clocks, resident)
    return replace(plan, chains=tuple(chains), predicted_ms=predicted_ms)


def _unsupported(costs: ChainCosts, walks: Sequence[Walk]) -> UnsupportedError:
    """Which part has no variant."""
    for step in costs.steps(walks):
        for numbers in step.parts:
            for side, number in enumerate(numbers.tolist()):
                if costs.sub_ops.fastest_ms(numbers[[side]], side)[0] == inf:
                    name = costs.network.layers[step.layer].name
                    return UnsupportedError(
                        f"The {PROCESSORS[side]} has no kernel variant with a predictor for "
                        f"{name!r} ({to_text(costs.sub_ops.op(number))})."
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
    """Every op on one processor, in its fastest variant; what that cannot do goes to the other.

    `costs` are those of chains by the same cost model, if there are any yet.
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
    """Plans of the CPU alone, the best first: that, and those of each library as far as it can.

    Which of them is the fastest a device tells better than predictions do.
    """
    costs = in_each_library(network, cost)
    plans = [one_processor(network, each, "cpu", strategy=strategy) for each in costs]
    # ncnn has several variants of an op, among which nothing but predictions chooses.
    others = (_in_library(network, cost.soc, at, strategy) for at in range(1, len(LIBRARIES)))
    plans += filter(None, others)
    different: dict[str, Plan] = {}
    for plan in plans:
        different.setdefault(plan.fingerprint, plan)
    return list(different.values())


def _in_library(network: Network, soc: Soc, library: int, strategy: str) -> Plan | None:
    """All on the CPU in a library as far as it can, by no predictions; None where it is not there.

    A short collection knows a library by some ops alone, and then plans change between libraries.
    """
    accepted = {layer.name: registry.of_library(layer.op, library, soc) for layer in network.layers}
    variants = {name: variant.name for name, variant in accepted.items() if variant is not None}
    if not variants or soc.is_replayed:
        return None
    return replace(default_plan(network, soc, "cpu", variants=variants), strategy=strategy)


def unless_alone(
    plan: Plan, network: Network, cost: CostModel, costs: ChainCosts | None = None
) -> Plan:
    """The plan, or the faster processor alone where the predicted gain is within the error.

    `costs` are those of chains by the same cost model, if there are any yet.
    """
    if "worth" in cost.off:
        return plan
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
    """Every op on one processor, by no predictions: all in one chain, or each in its own.

    `variants` names the kernel variants of some layers; the others take their default. Raises
    `UnsupportedError` with the layer for which the processor has no variant.
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
    """Every op on one processor by no predictions, and on the other what that cannot do.

    Raises `UnsupportedError` with the layer for which neither has a variant.
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
    """The first variant that is meant for this SoC or, where there is none, that works at all."""
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
    """The plan with layers in what stands in for their variants; nothing is predicted of it.

    A layer that goes to the other processor is cut out of its chain. All others stay as they are.
    """
    by_layer: dict[str, dict[Processor, OpFallback]] = {}
    for fallback in fallbacks:
        by_layer.setdefault(fallback.op, {})[fallback.processor] = fallback
    chains = [
        changed
        for chain, layers in plan.layers(network)
        for changed in _changed(chain, layers, by_layer)
    ]
    return replace(
        plan,
        chains=tuple(chains),
        predicted_ms=None,
        predicted_mj=None,
        fallbacks=(*plan.fallbacks, *fallbacks),
    )


def for_soc(network: Network, fallbacks: Iterable[OpFallback]) -> tuple[OpFallback, ...]:
    """The fallbacks of a plan as a SoC file has them: by the text of the op, each once."""
    texts = {layer.name: to_text(layer.op) for layer in network.layers}
    named = (replace(fallback, op=texts[fallback.op]) for fallback in fallbacks)
    return tuple(
        {
            (fallback.op, fallback.processor, fallback.variant): fallback for fallback in named
        }.values()
    )


def _changed(chain: Chain, layers: Sequence[Layer], by_layer: ByLayer) -> Iterator[Chain]:
    """A chain, or the pieces of it between layers that go elsewhere."""

    def elsewhere(layer: Layer) -> tuple[Processor, str] | None:
        """The processor and the variant that all of a layer goes to; None where it stays."""
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
