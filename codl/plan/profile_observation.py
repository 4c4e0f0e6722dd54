"""A plan that runs, against what was predicted of it: samples for corrections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from codl.ir import Network
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.lower.partition import Part, Shard
from codl.lower.program import Segment, build_program, chain_outputs
from codl.plan.cost_model import CostModel
from codl.plan.pipeline_model import works_of
from codl.plan.profile_feedback import Sample
from codl.runtime.engine import Engine
from codl.runtime.profiler import Span, totals_ms

#: What computes on either processor, as spans call it.
KINDS: Mapping[str, Processor] = {"net": "cpu", "kernel": "gpu"}
#: A ratio beyond these is of something else than the op: another program's work, or no time at all.
LEAST, MOST = 0.1, 10.0
NOTHING = Shard(())
#: Milliseconds by processor and the label of a net or of kernels.
Spent: TypeAlias = Mapping[tuple[Processor, str], float]


def observe(engine: Engine, cost: CostModel, runs: int = 7) -> list[Sample]:
    """Run an engine on what it was fed, and compare each net and kernel with its prediction.

    Ops that are computed together have the ratio of all of them. `cost` is without corrections.
    """
    spent = _spent(engine.profile(1) for _ in range(runs))
    segments = build_program(engine.network, engine.plan, engine.soc).segments
    works = works_of(engine.network, segments, cost)
    found: list[Sample] = []
    for segment, (alone, ends) in zip(segments, works, strict=True):
        shards = ((segment.cpu, engine.nets), (segment.gpu, engine.fused))
        for side, (shard, groups) in enumerate(shards):
            for label, together in _groups(shard, groups).items():
                stretch = ends[side] / alone[side] if alone[side] else 1.0
                expected = stretch * _alone_ms(engine.network, together, side, segment, cost)
                measured = spent.get((PROCESSORS[side], label), 0.0)
                if expected and LEAST < measured / expected < MOST:
                    ratio = measured / expected
                    found += [_sample(part, side, segment, ratio) for part in together.parts]
    return found


def _spent(profiles: Iterable[Sequence[Span]]) -> Spent:
    """The median over profiles."""
    samples: dict[tuple[Processor, str], list[float]] = {}
    for spans in profiles:
        for (kind, label), ms in totals_ms(spans).items():
            if kind in KINDS:
                samples.setdefault((KINDS[kind], label), []).append(ms)
    return {key: median(own) for key, own in samples.items()}


def _groups(shard: Shard, groups: Mapping[str, Sequence[str]]) -> dict[str, Shard]:
    """The parts of a shard that are timed together, by their label; one alone has its own name."""
    label_of = {name: label for label, names in groups.items() for name in names}
    found: dict[str, list[Part]] = {}
    for part in shard.parts:
        found.setdefault(label_of.get(part.layer.name, part.layer.name), []).append(part)
    return {label: Shard(tuple(parts)) for label, parts in found.items()}


def _alone_ms(
    network: Network, together: Shard, side: int, segment: Segment, cost: CostModel
) -> float:
    """What parts that are timed together were predicted to take while the other side waits."""
    outputs = chain_outputs(network, [part.layer for part in together.parts])
    shards = (together, NOTHING) if side == 0 else (NOTHING, together)
    return cost.loads(network, outputs, shards, variants=segment.chain.variants)[side].latency_ms


def _sample(part: Part, side: int, segment: Segment, ratio: float) -> Sample:
    name = segment.chain.variants[part.layer.name][PROCESSORS[side]]
    variant = registry.find(part.op, name)
    return Sample(registry.target(variant, part.op), part.op, ratio)
