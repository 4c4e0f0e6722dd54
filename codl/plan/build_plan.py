"""From chosen chains to a plan: kernel variants, the predicted latency of the whole, what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from codl.errors import UnsupportedError
from codl.ir import Dim, Layer, Network, to_text
from codl.ir.plan import Chain, Plan, Sharing
from codl.ir.types import PROCESSORS
from codl.plan.candidate_chain import ChainKey
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.coverage import estimated, not_counted
from codl.plan.halo_propagation import Walk
from codl.plan.transitions import START, Transitions


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
