"""From chosen chains to a plan: kernel variants, the predicted latency of the whole, what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from codl.ir import Dim, Layer, Network
from codl.ir.plan import Chain, Plan, Sharing
from codl.lower.program import Segment, build_program
from codl.plan.cost_model import CostModel
from codl.plan.coverage import estimated, not_counted
from codl.plan.cpu_backend_choice import few_changes
from codl.plan.pipeline_model import program_ms


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
    # Chains are cut once, by the program; their variants then follow from the shards.
    plan = Plan(
        model=network.name,
        digest=network.digest,
        soc=cost.soc.name,
        strategy=strategy,
        predictor=cost.predictors.name,
        sharing=sharing,
        predicted_ms=None,
        chains=tuple(_chain(one) for one in cuts),
        source=cost.soc.source,
        not_counted=not_counted(cost, network),
        estimated=estimated(cost, network),
        method=method,
    )
    program = build_program(network, plan, cost.soc)
    segments = tuple(_in_variants(segment, cost) for segment in program.segments)
    return replace(
        plan,
        chains=tuple(segment.chain for segment in segments),
        predicted_ms=program_ms(network, replace(program, segments=segments), cost),
    )


def _chain(one: Cut) -> Chain:
    """A chain before its variants are chosen."""
    return Chain(tuple(layer.name for layer in one.layers), one.dim, one.gpu_ratio, {})


def _in_variants(segment: Segment, cost: CostModel) -> Segment:
    """A segment in the variants that are predicted fastest."""
    shards = segment.cpu, segment.gpu
    variants = few_changes(segment.cpu, cost.variants(*shards), cost.soc)
    return replace(segment, chain=replace(segment.chain, variants=variants))
