"""From chosen chains to a plan: variants, the latency of the whole; or one processor alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import itemgetter

from codl.errors import UnsupportedError
from codl.ir import Dim, Layer, Network, to_text
from codl.ir.plan import Chain, OpFallback, Plan, Sharing
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.plan.chain_costs import ChainCosts, ChainKey
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, estimated, not_counted
from codl.plan.sub_ops import Walk
from codl.plan.transitions import START, Transitions
from codl.records.soc import Soc


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
    cost, alone = covered(cost, network), _gpu_ratio(processor)
    latencies_ms = cost.fastest_ms((layer.op for layer in network.layers), processor)
    ratios = [alone if ms < inf else 1.0 - alone for ms in latencies_ms]
    chains = [
        chain_of([layer for layer, _ in together], "H", ratio)
        for ratio, together in groupby(zip(network.layers, ratios, strict=True), itemgetter(1))
    ]
    return make_plan(
        network, cost, chains, strategy=strategy, sharing=sharing, method=method, costs=costs
    )


def does_all(network: Network, cost: CostModel, processor: Processor) -> bool:
    """Whether a processor has variants for all of a network."""
    cost = covered(cost, network)
    latencies_ms = cost.fastest_ms((layer.op for layer in network.layers), processor)
    return all(ms < inf for ms in latencies_ms)


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
    given = variants or {}
    names: dict[str, dict[str, str]] = {
        layer.name: {processor: given.get(layer.name) or _default(layer, processor, soc)}
        for layer in network.layers
    }
    groups = [tuple(names)] if chained else [(name,) for name in names]
    ratio = _gpu_ratio(processor)
    chains = tuple(Chain(ops, "H", ratio, {op: names[op] for op in ops}) for ops in groups if ops)
    return Plan(
        model=network.name,
        digest=network.digest,
        soc=soc.name,
        strategy=f"all-{processor}",
        predictor="none",
        sharing="gather",
        predicted_ms=None,
        chains=chains,
    )


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
        own = [layer for layer, _ in together]
        names = {layer.name: {side: _default(layer, side, soc)} for layer in own}
        chains.append(Chain(tuple(names), "H", _gpu_ratio(side), names))
    return Plan(
        model=network.name,
        digest=network.digest,
        soc=soc.name,
        strategy=f"rather-{processor}",
        predictor="none",
        sharing="missing",
        predicted_ms=None,
        chains=tuple(chains),
    )


def unless_alone(
    plan: Plan, network: Network, cost: CostModel, costs: ChainCosts | None = None
) -> Plan:
    """The plan, or the faster processor alone where the predicted gain is within the error.

    `costs` are those of chains by the same cost model, if there are any yet.
    """
    for alone in sorted(_alone(network, cost, plan.strategy, costs), key=_predicted_ms):
        if _predicted_ms(plan) > cost.rules.worth * _predicted_ms(alone):
            return alone
    return plan


def _predicted_ms(plan: Plan) -> float:
    assert plan.predicted_ms is not None
    return plan.predicted_ms


def _alone(
    network: Network, cost: CostModel, strategy: str, costs: ChainCosts | None
) -> list[Plan]:
    """The network on either processor that has variants for all of it."""
    return [
        one_processor(
            network,
            cost,
            processor,
            strategy=strategy,
            sharing="missing",
            method=f"the {processor} alone: two gain less than {1 - cost.rules.worth:.0%}",
            costs=costs,
        )
        for processor in PROCESSORS
        if does_all(network, cost, processor)
    ]


def _gpu_ratio(processor: Processor) -> float:
    """The partition ratio of all on one processor."""
    return float(PROCESSORS.index(processor))


def _default(layer: Layer, processor: Processor, soc: Soc) -> str:
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
    return variants[0].name


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
    plan = Plan(
        model=network.name,
        digest=network.digest,
        soc=cost.soc.name,
        strategy=strategy,
        predictor=cost.predictors.name,
        sharing=sharing,
        predicted_ms=None,
        chains=tuple(chains),
        source=cost.soc.source,
        not_counted=not_counted(cost, network),
        estimated=estimated(cost, network),
        method=method,
    )
    ratios = sorted({0.0, 1.0, *(chain.gpu_ratio for chain in plan.chains)})
    chosen, latency_ms = _choose(network, plan, costs or ChainCosts(network, cost, ratios))
    return replace(plan, chains=tuple(chosen), predicted_ms=latency_ms)


def _choose(network: Network, plan: Plan, costs: ChainCosts) -> tuple[list[Chain], float]:
    """The plan's chains in the variants that are predicted fastest, and what they take in all."""
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
    clocks, holdings, chosen = START, transitions.start, []
    for chain, key in zip(plan.chains, walks, strict=True):
        candidate = costs.known[key]
        clocks, holdings = transitions.after(clocks, holdings, candidate)
        variants: dict[str, Mapping[str, str]] = {
            network.layers[k].name: own for k, own in costs.chosen.variants(candidate) if own
        }
        chosen.append(replace(chain, variants=variants))
    return chosen, transitions.end_ms(clocks, holdings)


def _unsupported(costs: ChainCosts, walks: Sequence[Walk]) -> UnsupportedError:
    """Which part has no variant."""
    for step in costs.steps(walks):
        for numbers in step.parts:
            for side, number in enumerate(numbers.tolist()):
                if costs.sub_ops.fastest_ms(numbers[[side]], side)[0] == float("inf"):
                    name = costs.network.layers[step.layer].name
                    return UnsupportedError(
                        f"The {PROCESSORS[side]} has no kernel variant with a predictor for "
                        f"{name!r} ({to_text(costs.sub_ops.op(number))})."
                    )
    raise AssertionError("every part has a variant")


#: What runs each layer elsewhere or otherwise, by the processor that it is wrong on.
ByLayer = Mapping[str, Mapping[Processor, OpFallback]]


def with_fallbacks(network: Network, plan: Plan, fallbacks: Sequence[OpFallback]) -> Plan:
    """The plan with layers in what stands in for their variants; nothing is predicted of it.

    A layer that goes to the other processor is cut out of its chain. All others stay as they are.
    """
    by_layer: dict[str, dict[Processor, OpFallback]] = {}
    for one in fallbacks:
        by_layer.setdefault(one.op, {})[one.processor] = one
    written, applied = plan.applied(network)
    chains = [
        changed
        for chain, layers in applied.layers(written)
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
    named = (replace(one, op=texts[one.op]) for one in fallbacks)
    return tuple({(one.op, one.processor, one.variant): one for one in named}.values())


def _changed(chain: Chain, layers: Sequence[Layer], by_layer: ByLayer) -> Iterator[Chain]:
    """A chain, or the pieces of it between layers that go elsewhere."""

    def mover(layer: Layer) -> tuple[Processor, str] | None:
        return _elsewhere(layer, by_layer.get(layer.name, {}))

    for move, group in groupby(layers, mover):
        own = [layer.name for layer in group]
        if move is None:
            variants = {n: {**chain.variants[n], **_otherwise(by_layer.get(n, {}))} for n in own}
            yield replace(chain, ops=tuple(own), variants=variants)
        else:
            processor, variant = move
            ratio = float(PROCESSORS.index(processor))
            yield Chain(tuple(own), "H", ratio, {name: {processor: variant} for name in own})


def _elsewhere(layer: Layer, own: Mapping[Processor, OpFallback]) -> tuple[Processor, str] | None:
    """The processor and the variant that all of a layer goes to; None where it stays."""
    for processor, one in own.items():
        other = registry.find(layer.op.whole, one.instead).processor
        if other != processor:
            return other, one.instead
    return None


def _otherwise(own: Mapping[Processor, OpFallback]) -> dict[str, str]:
    return {processor: one.instead for processor, one in own.items()}
