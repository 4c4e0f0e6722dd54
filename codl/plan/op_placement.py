"""Where each op of a plan runs, why, and its latency there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from codl.ir import Network, Op, Region
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Plan
from codl.ir.types import PLANAR, Element, Layout, Processor, Storage, arithmetic_of
from codl.kernels import registry
from codl.lower.partition import Part, Segment, Shard, partition_plan
from codl.plan.cost_model import CostModel
from codl.plan.profile_feedback import KINDS, Totals
from codl.records.results import Fallback
from codl.records.soc import Soc

#: Layers that are timed together, by the label of their net or kernels.
Groups: TypeAlias = Mapping[str, Sequence[str]]


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
    placed = [
        _placed(part, side, segment, soc, cost, plan.strategy)
        for segment in partition_plan(network, plan, soc).segments
        for side, shard in _shards(segment)
        for part in shard.parts
    ]
    fallen = {(fallback.op, fallback.instead): fallback for fallback in plan.fallbacks}
    return [
        replace(row, reason=f"in place of {fallback.variant}: {fallback.reason}")
        if (fallback := fallen.get((row.op, row.variant)))
        else row
        for row in placed
    ]


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
    """Placements with the variants that replace kernels which a device has refused."""
    by_label = {name: fallback for fallback in fallbacks for name in fallback.layer.split(" + ")}
    rows = []
    for row in placed:
        fallback = by_label.get(row.op) if row.processor == "gpu" else None
        if fallback is not None:
            row = replace(
                row, variant=fallback.instead, reason=f"in place of {fallback.variant}, which fails"
            )
        rows.append(row)
    return rows


def _shards(segment: Segment) -> tuple[tuple[Processor, Shard], tuple[Processor, Shard]]:
    return ("cpu", segment.cpu), ("gpu", segment.gpu)


def _placed(
    part: Part,
    side: Processor,
    segment: Segment,
    soc: Soc,
    cost: CostModel | None,
    strategy: str,
) -> OpPlacement:
    chain, layer = segment.chain, part.layer
    variant = chain.variants[layer.name][side]
    latency_ms = cost.variant_ms(part.op, side, variant) if cost else None
    # CPU tensors are planar outside nets; a replayed variant has no storage.
    storage: Storage = getattr(registry.find(part.op, variant), "storage", PLANAR)
    return OpPlacement(
        op=layer.name,
        kind=layer.op.kind,
        processor=side,
        dim=chain.dim,
        gpu_ratio=chain.gpu_ratio,
        variant=variant,
        latency_ms=latency_ms,
        reason=_reason(part, side, segment, soc, _by(part, side, cost, strategy)),
        layout=storage.layout,
        stored=storage.element,
        computed=arithmetic_of(variant),
    )


def _by(part: Part, side: Processor, cost: CostModel | None, strategy: str) -> str:
    """The strategy that chose the processor, and the predicted latency on each of them."""
    other: Processor = "gpu" if side == "cpu" else "cpu"
    reason = f"as {strategy} plans it"
    if cost is None:
        return reason
    here_ms, other_ms = (cost.fastest_ms([part.layer.op], at)[0] for at in (side, other))
    if inf in (here_ms, other_ms):
        return reason
    return f"{reason} (alone {here_ms:.3f} ms here, {other_ms:.3f} ms on the {other})"


def _reason(part: Part, side: Processor, segment: Segment, soc: Soc, by: str) -> str:
    op, chain = part.layer.op, segment.chain
    if isinstance(op, OnnxModel):
        return f"codl has no operator for {op.nodes}, or for its types: ONNX Runtime runs it whole"
    other: Processor = "gpu" if side == "cpu" else "cpu"
    if part.region != Region.whole(op.output):
        reason = f"split on {chain.dim}, {chain.gpu_ratio:.0%} on the GPU, {by}"
    elif 0 < chain.gpu_ratio < 1:
        reason = f"a {op.kind} is never split, and both sides read it"
    elif not registry.variants(op, other, soc):
        reason = f"the {other} has no kernel variant for it"
    else:
        reason = f"{'whole' if op.dims else 'never split'}, {by}"
    variant = registry.find(part.op, chain.variants[part.layer.name][side])
    refusal = _ncnn_refusal(part.op, soc) if variant.backend in ("ort", "openvino") else ""
    return f"{reason}; {refusal}" if refusal else reason


def _ncnn_refusal(op: Op, soc: Soc) -> str:
    """Why ncnn does not compute an op; empty where it could."""
    of_ncnn = [v for v in registry.of_kind(op.kind, "cpu") if v.backend == "ncnn"]
    refusals = [variant.refusal(op, soc) for variant in of_ncnn]
    if not refusals:
        return f"ncnn has no {op.kind}"
    return f"not in ncnn: {refusals[0]}" if all(refusals) else ""
