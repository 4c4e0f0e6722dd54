"""Profile-guided correction of predictions, by plans that ran.

A predictor learns from ops that run by themselves; a plan that has run shows what they take inside
its network. The ratio of the two goes to the same op, and the more alike another op of the same
target is, the more of it that op gets too: other ratios of the same layer above all. Profiled
times are of the nets, steps and stages of an executable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import DeviceError
from codl.ir import Op, parse
from codl.ir.executable import (
    Command,
    Copy,
    Executable,
    GpuOp,
    Launch,
    RunNet,
    Stage,
    Transfer,
    Unmap,
)
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.plan.cost_model import CostModel
from codl.plan.price import StagePrice, StageTimes, price
from codl.records.results import SpanKind, TimeSpan
from codl.records.span_names import SpanName, span_of
from codl.records.statistic import PERCENT, level

#: The parts of data sharing that a profile tells. What a wait would have taken if the data had been
#: there, it does not.
SEEN: tuple[SpanKind, ...] = ("transform", "copy", "unmap")
#: The part of profiled runs that counts is one of this many.
COUNTED = 3
#: Milliseconds by a number.
ByNumber: TypeAlias = dict[int, float]
_SpansByName: TypeAlias = dict[SpanName, deque[TimeSpan]]


@dataclass(frozen=True)
class ProfiledTimes:
    """Milliseconds of nets and kernels as `StageTimes` has them, and of stages, one after another.

    A transfer has all parts of `SEEN`; those without a command took no time.
    """

    nets_ms: ByNumber = field(default_factory=dict)
    kernels_ms: ByNumber = field(default_factory=dict)
    transfers_ms: dict[int, dict[str, float]] = field(default_factory=dict)
    stages_ms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, executable: Executable, spans: Iterable[TimeSpan]) -> ProfiledTimes:
        """Each command with its span: those of one name come in the order of the commands.

        Raises `DeviceError` where a command has none.
        """
        times, done_ms = cls(), 0.0
        by_name: _SpansByName = {}
        for span in sorted(spans, key=lambda span: span.start_ms):
            by_name.setdefault(SpanName(span.kind, span.label), deque()).append(span)
        for stage in executable.stages:
            end_ms = done_ms
            for command, span in _spans(executable, stage, by_name):
                times._add(executable, command, span)
                end_ms = max(end_ms, span.end_ms)
            times.stages_ms.append(end_ms - done_ms)
            done_ms = end_ms
        return times

    @classmethod
    def typical(cls, profiles: Sequence[ProfiledTimes]) -> ProfiledTimes:
        """The mean of some runs of one executable: those nearest in length to the statistic's.

        Parts of the same runs add up to what these took; percentiles of parts would not, where
        other programs disturb each run in another part.
        """
        by_length = sorted(profiles, key=lambda run: fsum(run.stages_ms))
        count = len(by_length) - 2 * (len(by_length) // COUNTED)
        begin = round(PERCENT / 100 * (len(by_length) - 1)) - count // 2
        near = by_length[max(0, begin) :][:count]
        first = near[0]
        return cls(
            {n: fmean(run.nets_ms[n] for run in near) for n in first.nets_ms},
            {n: fmean(run.kernels_ms[n] for run in near) for n in first.kernels_ms},
            {
                n: {part: fmean(run.transfers_ms[n][part] for run in near) for part in parts}
                for n, parts in first.transfers_ms.items()
            },
            [fmean(stage_ms) for stage_ms in zip(*(run.stages_ms for run in near), strict=True)],
        )

    def _add(self, executable: Executable, command: Command, span: TimeSpan) -> None:
        if isinstance(command, RunNet):
            self.nets_ms[command.net] = self.nets_ms.get(command.net, 0.0) + span.ms
        elif isinstance(command, Launch | Copy | Unmap):
            number = command.step
            if isinstance(executable.steps[number], Transfer):
                parts = self.transfers_ms.setdefault(number, dict.fromkeys(SEEN, 0.0))
                parts[span.kind] += span.ms
            else:
                self.kernels_ms[number] = self.kernels_ms.get(number, 0.0) + span.ms

    # Predicted times with some of these instead.

    def with_nets(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        return [
            replace(stage, nets_ms={n: self.nets_ms[n] for n in stage.nets_ms}) for stage in times
        ]

    def with_kernels(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        measured = ({n: self.kernels_ms[n] for n in stage.kernels_ms} for stage in times)
        return [replace(stage, kernels_ms=ms) for stage, ms in zip(times, measured, strict=True)]

    def with_transfers(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        """What a profile does not tell of transfers stays as predicted."""

        def parts(number: int, predicted: Mapping[str, float]) -> Mapping[str, float]:
            unseen = {part: ms for part, ms in predicted.items() if part not in SEEN}
            return {**unseen, **self.transfers_ms[number]}

        return [
            replace(stage, transfers_ms={n: parts(n, ms) for n, ms in stage.transfers_ms.items()})
            for stage in times
        ]


def paced(times: Sequence[StageTimes], slowdown: Mapping[str, float]) -> list[StageTimes]:
    """Times on a machine whose processors are slower at nets and kernels by these factors."""
    cpu, gpu = (slowdown.get(side, 1.0) for side in PROCESSORS)
    return [
        replace(
            stage,
            nets_ms={n: cpu * ms for n, ms in stage.nets_ms.items()},
            kernels_ms={n: gpu * ms for n, ms in stage.kernels_ms.items()},
        )
        for stage in times
    ]


def _spans(
    executable: Executable, stage: Stage, by_name: _SpansByName
) -> Iterator[tuple[Command, TimeSpan]]:
    """A stage's commands that a profile shows, each with its span."""
    for command in stage.commands:
        name = span_of(executable, command)
        if name is None:
            continue
        if not by_name.get(name):
            raise DeviceError(
                f"The profile of {executable.model!r} has no span for a command of the stage "
                f"{stage.label!r}: {name.kind} {name.label!r}. The device's agent may be of "
                "another version: `codl agent install` brings this one."
            )
        yield command, by_name[name].popleft()


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
            target: (_amounts([s.op for s in ratios]), np.log([s.ratio for s in ratios]))
            for target, ratios in by_target.items()
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
            ops += [(text, costs[storage].variant) for text, costs in adds if storage in costs]
            yield "gpu", step.label, step_ms, ops


def _levels_ms(profiles: Iterable[Totals]) -> Mapping[tuple[Processor, str], float]:
    """Milliseconds by processor and label."""
    samples: dict[tuple[Processor, str], list[float]] = {}
    for totals in profiles:
        for (kind, label), ms in totals.items():
            if kind in KINDS:
                samples.setdefault((KINDS[kind], label), []).append(ms)
    return {key: level(runs_ms) for key, runs_ms in samples.items()}


def _of_op(text: str, name: str, ratio: float) -> OpRatio:
    op = parse(text)
    return OpRatio(registry.target(registry.find(op, name), op), op, ratio)
