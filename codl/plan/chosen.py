"""From chosen chains to a plan: kernel variants, the predicted latency of the whole, what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from codl.execute.program import build_program, chain_outputs
from codl.ops import Dim, Layer, Network
from codl.ops.chain import cut
from codl.ops.plan import Chain, Plan, Sharing
from codl.plan import estimated, unmeasured
from codl.plan.clocks import program_ms
from codl.plan.cost import CostModel


@dataclass(frozen=True)
class Cut:
    """Layers as one chain, and where it is cut."""

    layers: tuple[Layer, ...]
    dim: Dim
    gpu_ratio: float


def make_plan(
    network: Network,
    cost: CostModel,
    cuts: Sequence[Cut],
    *,
    strategy: str,
    sharing: Sharing,
    method: str = "",
) -> Plan:
    """A plan of these chains, in the variants that are predicted fastest."""
    plan = Plan(
        model=network.name,
        digest=network.digest,
        soc=cost.soc.name,
        strategy=strategy,
        predictor=cost.predictors.name,
        sharing=sharing,
        predicted_ms=None,
        chains=tuple(_chain(network, cost, one) for one in cuts),
        source=cost.soc.source,
        not_counted=unmeasured.not_counted(cost, network),
        estimated=estimated.estimated(cost, network),
        method=method,
    )
    program = build_program(network, plan, cost.soc)
    return replace(plan, predicted_ms=program_ms(network, program, cost))


def _chain(network: Network, cost: CostModel, one: Cut) -> Chain:
    outputs = chain_outputs(network, one.layers)
    block = cost.soc.gpu.vector_width
    halves = cut(one.layers, outputs, one.dim, one.gpu_ratio, block=block)
    names = tuple(layer.name for layer in one.layers)
    return Chain(names, one.dim, one.gpu_ratio, cost.variants(*halves))
