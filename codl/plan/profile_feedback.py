"""Profile-guided correction of predictions, by plans that ran.

A predictor learns from ops that run by themselves; a plan that has run shows what they take inside
its network. The ratio of the two goes to the same op, and the more alike another op of the same
target is, the more of it that op gets too: other ratios of the same layer above all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op, parse
from codl.ir.executable import Executable, GpuOp
from codl.ir.statistic import level
from codl.ir.types import Processor
from codl.kernels import registry
from codl.plan.cost_model import CostModel
from codl.plan.price import StagePrice, price

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


def op_ratios(executable: Executable, profiles: Iterable[Totals], cost: CostModel) -> list[OpRatio]:
    """What nets and kernels took in some profiles, over what was predicted of them.

    Ops that are computed together have the ratio of all of them. `cost` is without corrections.
    """
    spent = _levels_ms(profiles)
    ratios: list[OpRatio] = []
    for stage in price(executable, cost).stages:
        for processor, label, expected_ms, ops in _timed(executable, stage, cost):
            measured_ms = spent.get((processor, label), 0.0)
            if expected_ms and LEAST < measured_ms / expected_ms < MOST:
                ratio = measured_ms / expected_ms
                ratios += [_of_op(text, variant, ratio) for text, variant in ops]
    return ratios


def _timed(
    executable: Executable, stage: StagePrice, cost: CostModel
) -> Iterator[tuple[Processor, str, float, list[tuple[str, str]]]]:
    """What is timed by itself in a stage: where, its label, its price, its ops and variants."""
    for number, net_ms in stage.times.nets_ms.items():
        net = executable.nets[number]
        yield "cpu", net.label, net_ms, [(layer.op, layer.variant) for layer in net.layers]
    for number, step_ms in stage.times.kernels_ms.items():
        step = executable.steps[number]
        if isinstance(step, GpuOp):
            storage = executable.tensors[step.writes.tensor].storage
            adds = [(text, cost.fastest_by_storage(parse(text), "gpu")) for text in step.ops[1:]]
            ops = [(step.ops[0], step.variant)]
            ops += [(text, own[storage].variant) for text, own in adds if storage in own]
            yield "gpu", step.label, step_ms, ops


def _levels_ms(profiles: Iterable[Totals]) -> Mapping[tuple[Processor, str], float]:
    """Milliseconds by processor and label."""
    samples: dict[tuple[Processor, str], list[float]] = {}
    for totals in profiles:
        for (kind, label), ms in totals.items():
            if kind in KINDS:
                samples.setdefault((KINDS[kind], label), []).append(ms)
    return {key: level(own) for key, own in samples.items()}


def _of_op(text: str, name: str, ratio: float) -> OpRatio:
    op = parse(text)
    return OpRatio(registry.target(registry.find(op, name), op), op, ratio)
