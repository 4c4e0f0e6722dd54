"""The table of a plan's ops: where each part runs, in which variant, why, and for how long.

`predicted` makes the rows from a plan and a cost model, and `measured` puts the times of a profile
in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from codl.ir import Network, Region
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Chain, Plan
from codl.ir.records.results import Fallback
from codl.ir.records.soc import Soc
from codl.ir.types import PLANAR, PROCESSORS, Element, Layout, Processor, Storage, arithmetic_of
from codl.kernels import registry
from codl.lower.partition import Part, partition_plan

if TYPE_CHECKING:  # a plan that was given has no cost model
    from codl.plan.cost_model import CostModel
    from codl.plan.price import Totals

#: Layers that are timed together, by the label of their net or kernels.
Groups: TypeAlias = Mapping[str, Sequence[str]]
#: The processor of each kind of computing span.
KINDS: Mapping[str, Processor] = {"net": "cpu", "kernel": "gpu"}


@dataclass(frozen=True)
class OpPlacement:
    """The part of an op on one processor.

    `latency_ms` is None where it was neither predicted nor measured. Ops that share a net or
    kernels are measured `together`, a number of ops, and divide the time as predicted. `layout` is
    that of the output; `stored`, `computed` and `accumulated` are its precisions.
    """

    op: str
    kind: str
    processor: Processor
    dim: str
    gpu_ratio: float
    variant: str
    latency_ms: float | None
    reason: str
    together: int = 1
    layout: Layout = PLANAR.layout
    stored: Element = PLANAR.element
    computed: Element = "float32"
    accumulated: Element = "float32"


def predicted(network: Network, plan: Plan, soc: Soc, cost: CostModel | None) -> list[OpPlacement]:
    """The placement of each op of a plan, with latencies by a cost model if there is one."""
    fallen = {(fallback.op, fallback.instead): fallback for fallback in plan.fallbacks}
    rows = []
    for segment in partition_plan(network, plan, soc).segments:
        for side, shard in zip(PROCESSORS, (segment.cpu, segment.gpu), strict=True):
            for part in shard.parts:
                row = _placed(part, side, segment.chain, soc, cost, plan.strategy)
                if fallback := fallen.get((row.op, row.variant)):
                    reason = f"in place of {fallback.variant}: {fallback.reason}"
                    row = replace(row, reason=reason)
                rows.append(row)
    return rows


def measured(
    placed: Sequence[OpPlacement], totals: Totals, groups: Mapping[Processor, Groups]
) -> list[OpPlacement]:
    """Placements with latencies from a profile.

    `groups` has the ops that each processor computes together, by their label in the profile.
    """
    shares: dict[tuple[Processor, str], tuple[float, int]] = {
        ("gpu", row.op): (totals.get(("kernel", row.op), 0.0), 1)
        for row in placed
        if row.processor == "gpu"
    }
    expected = {(row.processor, row.op): row.latency_ms or 0.0 for row in placed}
    for kind, processor in KINDS.items():
        for label, ops in groups[processor].items():
            whole = sum(expected.get((processor, op), 0.0) for op in ops)
            for op in ops:
                share = expected.get((processor, op), 0.0) / whole if whole else 1 / len(ops)
                shares[processor, op] = (share * totals.get((kind, label), 0.0), len(ops))
    rows = []
    for row in placed:
        ms, together = shares.get((row.processor, row.op), (0.0, 1))
        rows.append(replace(row, latency_ms=ms, together=together))
    return rows


def standing_in(placed: Sequence[OpPlacement], fallbacks: Sequence[Fallback]) -> list[OpPlacement]:
    by_label = {name: fallback for fallback in fallbacks for name in fallback.layer.split(" + ")}
    rows = []
    for row in placed:
        if row.processor == "gpu" and (fallback := by_label.get(row.op)):
            reason = f"in place of {fallback.variant}, which fails"
            row = replace(row, variant=fallback.instead, reason=reason)
        rows.append(row)
    return rows


def _placed(
    part: Part, side: Processor, chain: Chain, soc: Soc, cost: CostModel | None, strategy: str
) -> OpPlacement:
    layer = part.layer
    variant = registry.find(part.op, chain.variants[layer.name][side])
    # CPU tensors are planar outside nets; a replayed variant has no storage.
    storage: Storage = getattr(variant, "storage", PLANAR)
    return OpPlacement(
        op=layer.name,
        kind=layer.op.kind,
        processor=side,
        dim=chain.dim,
        gpu_ratio=chain.gpu_ratio,
        variant=variant.name,
        latency_ms=cost.variant_ms(part.op, side, variant.name) if cost else None,
        reason=_reason(part, side, chain, soc, cost, strategy),
        layout=storage.layout,
        stored=storage.element,
        computed=arithmetic_of(variant.name),
    )


def _reason(
    part: Part, side: Processor, chain: Chain, soc: Soc, cost: CostModel | None, strategy: str
) -> str:
    """Why a part runs on a processor: its split, or the strategy and the predicted latencies."""
    op = part.layer.op
    if isinstance(op, OnnxModel):
        return f"codl has no operator for {op.nodes}, or for its types: ONNX Runtime runs it whole"
    other: Processor = "gpu" if side == "cpu" else "cpu"
    by = f"as {strategy} plans it"
    if cost is not None:
        here_ms, other_ms = (cost.fastest_ms([op], at)[0] for at in (side, other))
        if inf not in (here_ms, other_ms):
            by += f" (alone {here_ms:.3f} ms here, {other_ms:.3f} ms on the {other})"
    if part.region != Region.whole(op.output):
        return f"split on {chain.dim}, {chain.gpu_ratio:.0%} on the GPU, {by}"
    if 0 < chain.gpu_ratio < 1:
        return f"a {op.kind} is never split, and both sides read it"
    if not registry.variants(op, other, soc):
        return f"the {other} has no kernel variant for it"
    return f"{'whole' if op.dims else 'never split'}, {by}"
