"""Profile-guided correction of predictions, by plans that ran.

A predictor learns from ops that run by themselves; a plan that has run shows what they take inside
its network. The ratio of the two goes to the same op, and the more alike another op of the same
target is, the more of it that op gets too: other ratios of the same layer above all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network, Op
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.lower.partition import Part, Shard
from codl.lower.program import Segment, build_program, chain_outputs
from codl.plan.cost_model import CostModel
from codl.plan.pipeline_model import works_of

#: How far a ratio reaches, in doublings of an op's amounts: at this distance it counts 0.6.
REACH = 0.7
#: What says that a prediction was right weighs as much as this part of a sample of the very op.
DOUBT = 0.2
#: A ratio beyond these is of something else than the op: another program's work, or no time at all.
LEAST, MOST = 0.1, 10.0
#: What computes on either processor, as profiles call it.
KINDS: Mapping[str, Processor] = {"net": "cpu", "kernel": "gpu"}
#: Milliseconds in a profile by kind and label: of a net, or of all kernels of an op.
Totals: TypeAlias = Mapping[tuple[str, str], float]
#: Layers that are timed together, by the label of their net or kernels.
Groups: TypeAlias = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class OpRatio:
    """An op of a target, and how many times longer it took in a network than predicted."""

    target: str
    op: Op
    ratio: float


class ProfileCorrections:
    """Factors for predicted latencies: a kernel-weighted mean of the logarithms of ratios."""

    def __init__(self, samples: Iterable[OpRatio] = ()) -> None:
        by_target: dict[str, list[OpRatio]] = {}
        for sample in samples:
            by_target.setdefault(sample.target, []).append(sample)
        self._known = {
            target: (_amounts([s.op for s in own]), np.log([s.ratio for s in own]))
            for target, own in by_target.items()
        }

    def factors(self, target: str, ops: Sequence[Op]) -> NDArray[np.float64]:
        """What to multiply predictions with, shaped (ops); 1 far from every sample."""
        if target not in self._known or not ops:
            return np.ones(len(ops))
        amounts, logs = self._known[target]
        apart = _amounts(ops)[:, None, :] - amounts[None, :, :]
        weights = np.exp(-0.5 * (apart**2).sum(axis=2) / REACH**2)
        return np.asarray(np.exp(weights @ logs / (weights.sum(axis=1) + DOUBT)))


def _amounts(ops: Sequence[Op]) -> NDArray[np.float64]:
    """What an op computes, reads, keeps and writes, in doublings, shaped (ops, 4)."""
    amounts = [
        (op.flops, sum(shape.bytes for shape in op.inputs), op.bytes, op.output.bytes) for op in ops
    ]
    return np.log2(1.0 + np.array(amounts, np.float64).reshape(-1, 4))


def op_ratios(
    network: Network,
    plan: Plan,
    profiles: Iterable[Totals],
    groups: Mapping[Processor, Groups],
    cost: CostModel,
) -> list[OpRatio]:
    """What nets and kernels took in the median of some profiles, over what was predicted of them.

    `groups` are the layers that each processor computes together: each has the ratio of all of
    them. `cost` is without corrections.
    """
    spent = _median_ms(profiles)
    segments = build_program(network, plan, cost.soc).segments
    ratios: list[OpRatio] = []
    for segment, (alone, ends) in zip(segments, works_of(network, segments, cost), strict=True):
        for side, shard in enumerate((segment.cpu, segment.gpu)):
            processor = PROCESSORS[side]
            for label, together in _groups(shard, groups[processor]).items():
                stretch = ends[side] / alone[side] if alone[side] else 1.0
                expected = stretch * _alone_ms(network, together, side, segment, cost)
                measured = spent.get((processor, label), 0.0)
                if expected and LEAST < measured / expected < MOST:
                    ratio = measured / expected
                    ratios += [_of_part(part, side, segment, ratio) for part in together.parts]
    return ratios


def _median_ms(profiles: Iterable[Totals]) -> Mapping[tuple[Processor, str], float]:
    """Milliseconds by processor and label."""
    samples: dict[tuple[Processor, str], list[float]] = {}
    for totals in profiles:
        for (kind, label), ms in totals.items():
            if kind in KINDS:
                samples.setdefault((KINDS[kind], label), []).append(ms)
    return {key: median(own) for key, own in samples.items()}


def _groups(shard: Shard, groups: Groups) -> dict[str, Shard]:
    """The parts of a shard that are timed together, by their label; one alone has its own name."""
    label_of = {name: label for label, names in groups.items() for name in names}
    together: dict[str, list[Part]] = {}
    for part in shard.parts:
        together.setdefault(label_of.get(part.layer.name, part.layer.name), []).append(part)
    return {label: Shard(tuple(parts)) for label, parts in together.items()}


def _alone_ms(
    network: Network, together: Shard, side: int, segment: Segment, cost: CostModel
) -> float:
    """What parts that are timed together were predicted to take while the other side waits."""
    outputs = chain_outputs(network, [part.layer for part in together.parts])
    shards = (together, Shard(())) if side == 0 else (Shard(()), together)
    return cost.loads(network, outputs, shards, variants=segment.chain.variants)[side].latency_ms


def _of_part(part: Part, side: int, segment: Segment, ratio: float) -> OpRatio:
    name = segment.chain.variants[part.layer.name][PROCESSORS[side]]
    variant = registry.find(part.op, name)
    return OpRatio(registry.target(variant, part.op), part.op, ratio)
