"""Corrects predictions of ops with the measured times of plans that ran.

The logarithm of measured over predicted latency is modelled as a sum of offsets: of the processor,
of plans on that processor alone, of the target (a kernel variant), of the layer in any variant, of
the layer in this variant, and noise. Each offset is a Gaussian process, and the variances maximise
the likelihood of the profile. So another cut of a measured layer gets nearly its whole correction,
and a variant that did not run gets the offsets of its processor and layer. Predictions are for
plans on both processors, so the offset of a processor alone is estimated and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network, Op, parse
from codl.ir.columns import amounts
from codl.ir.executable import Executable, GpuOp, Net
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.lower import lower
from codl.lower.nets import library_of, packed
from codl.lower.rules import storing
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.price import StageTimes, stage_times, walk
from codl.plan.profile_feedback import ProfiledTimes, Totals
from codl.records.profile import PlanRun
from codl.records.soc import Soc

#: Ratios below this are not used: the op was not computed.
LEAST = 0.02
#: Length scales of the layer offsets, in doublings: of features that a cut keeps (FLOPs and inputs
#: of an output element, columns), and of those that it changes (rows, channels).
KEPT, CUT = 0.7, 2.0
#: The standard deviations to try for each offset.
TRIED = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
#: The prior's width, in doublings, of a standard deviation around the usual one.
SPREAD = 2.0
#: Sweeps of coordinate descent over the standard deviations.
SWEEPS = 2
#: The most means that the variances are fitted to, evenly spread; time grows with the cube.
FITTED = 120
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class OpRatio:
    """Measured over predicted latency of an op in a target.

    `is_alone` is True for a plan that left the other processor idle.
    """

    processor: Processor
    target: str
    op: Op
    ratio: float
    is_alone: bool = False


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the offsets of a log ratio; the defaults are the prior.

    The offset of the processor is the largest: if one variant is slow, others probably are too.
    """

    processor: float = 0.25
    alone: float = 0.12
    target: float = 0.12
    layer: float = 0.12
    op: float = 0.12
    noise: float = 0.06

    @property
    def unlikely(self) -> float:
        """The negative logarithm of the prior, up to a constant."""
        off = (np.log2(value / vars(USUAL)[name]) for name, value in vars(self).items())
        return 0.5 * sum((float(each) / SPREAD) ** 2 for each in off)


USUAL = Deviations()


class ProfileCorrections:
    """Correction factors of predicted latencies, fitted to samples of each processor."""

    def __init__(self, samples: Iterable[OpRatio] = ()) -> None:
        by_side: dict[Processor, list[OpRatio]] = {side: [] for side in PROCESSORS}
        for sample in samples:
            by_side[sample.processor].append(sample)
        self._sides = {side: _Side(own) for side, own in by_side.items() if own}

    def factors(self, processor: Processor, target: str, ops: Sequence[Op]) -> Matrix:
        """The factors of a target's predictions, (ops); 1 for a processor without samples."""
        if processor not in self._sides or not ops:
            return np.ones(len(ops))
        return self._sides[processor].factors(target, ops)


@dataclass(frozen=True)
class _Side:
    """The samples of one processor.

    Repeated ratios of an op in one target, as in equal blocks, count as their mean with less noise,
    and their scatter informs the noise. This is equivalent to using each ratio by itself.
    """

    samples: Sequence[OpRatio]

    @cached_property
    def _logs(self) -> Mapping[tuple[str, Op, bool], NDArray[np.float64]]:
        """The logarithms of ratios by (target, op, is_alone)."""
        logs: dict[tuple[str, Op, bool], list[float]] = {}
        for sample in self.samples:
            key = sample.target, sample.op, sample.is_alone
            logs.setdefault(key, []).append(log(sample.ratio))
        return {key: np.array(values) for key, values in logs.items()}

    @cached_property
    def _features(self) -> Matrix:
        return _features([op for _, op, _ in self._logs])

    @cached_property
    def _targets(self) -> NDArray[np.str_]:
        return np.array([target for target, _, _ in self._logs])

    @cached_property
    def _fit(self) -> tuple[Deviations, NDArray[np.float64]]:
        """The fitted deviations, and the weights of the means."""
        count = len(self._logs)
        some = self._likelihood(np.unique(np.linspace(0, count - 1, FITTED).round().astype(int)))
        best = USUAL
        least = some.against(best)[0]
        for _, name in product(range(SWEEPS), vars(best)):
            for tried in TRIED:
                other = replace(best, **{name: tried})
                value = some.against(other)[0]
                if value < least:
                    best, least = other, value
        return best, self._likelihood(np.arange(count)).against(best)[1]

    def _likelihood(self, places: NDArray[np.intp]) -> _Likelihood:
        """The likelihood of the means at some places."""
        features, targets = self._features[places], self._targets[places]
        logs, keys = [*self._logs.values()], [*self._logs]
        chosen = [logs[at] for at in places]
        return _Likelihood(
            near=_near(features, features),
            same=(targets[:, None] == targets[None, :]).astype(float),
            alone=np.array([float(keys[at][2]) for at in places]),
            means=np.array([each.mean() for each in chosen]),
            counts=np.array([len(each) for each in chosen]),
            squares=sum(float(((each - each.mean()) ** 2).sum()) for each in chosen),
        )

    def factors(self, target: str, ops: Sequence[Op]) -> Matrix:
        deviations, weights = self._fit
        near = _near(_features(ops), self._features)
        covariance = _covariance(deviations, near, (self._targets == target).astype(float)[None])
        return np.asarray(np.exp(covariance @ weights))


@dataclass(frozen=True)
class _Likelihood:
    """Means of `counts` log ratios each, with the similarity of their ops and targets.

    `squares` is the sum of squared differences of log ratios from their means.
    """

    near: Matrix
    same: Matrix
    alone: Matrix
    means: Matrix
    counts: Matrix
    squares: float

    def against(self, deviations: Deviations) -> tuple[float, Matrix]:
        """The negative log likelihood under some deviations, and the weight of each mean."""
        noise = deviations.noise
        covariance = _covariance(deviations, self.near, self.same)
        covariance += deviations.alone**2 * np.outer(self.alone, self.alone)
        covariance[np.diag_indices_from(covariance)] += noise**2 / self.counts
        weights = np.linalg.solve(covariance, self.means)
        half_determinant = np.log(np.diag(np.linalg.cholesky(covariance))).sum()
        more = float((self.counts - 1).sum())
        scatter = 0.5 * self.squares / noise**2 + more * log(noise)
        value = 0.5 * self.means @ weights + half_determinant + scatter + deviations.unlikely
        return float(value), np.asarray(weights)


def _covariance(deviations: Deviations, near: Matrix, same: Matrix) -> Matrix:
    """The covariance of offsets, from the similarity of ops (`near`) and of targets (`same`)."""
    d = deviations
    parts = d.target**2 * same + near * (d.layer**2 + d.op**2 * same)
    return np.asarray(d.processor**2 + parts)


def _features(ops: Sequence[Op]) -> Matrix:
    """Features of ops in units of length scales, shaped (ops, 5)."""
    inputs, _, outputs, flops = amounts(ops)
    shapes = np.array([op.output[-3:] for op in ops], np.float64)
    channels, rows, columns = shapes.T
    kept = flops / outputs, inputs / (rows * columns), columns
    logs = [np.log2(1.0 + value) / KEPT for value in kept]
    return np.stack([*logs, np.log2(rows) / CUT, np.log2(channels) / CUT], axis=1)


def _near(some: Matrix, others: Matrix) -> Matrix:
    """The similarity of ops, 1 for equal features."""
    apart = (some**2).sum(1)[:, None] + (others**2).sum(1)[None] - 2 * some @ others.T
    return np.asarray(np.exp(-0.5 * np.maximum(apart, 0.0)))


# Samples.


@dataclass(frozen=True)
class Evidence:
    """What a plan that ran shows about predictions: ratios of its ops, and overhead of stages.

    `stages_ms` has the milliseconds that a stage with work on both processors took beyond its
    parts; it is empty for a plan without such stages.
    """

    ratios: tuple[OpRatio, ...] = ()
    stages_ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, network: Network, run: PlanRun, cost: CostModel, soc: Soc) -> Evidence:
        """The evidence of a run; empty where the plan now lowers to another executable.

        `soc` is the one that plans are lowered for, and `cost` has no corrections.
        """
        executable = lower(network, run.plan, soc, cost.tuning)
        if executable.digest(weights=False) != run.executable:
            return cls()
        of_plan = covered(cost, network)
        ratios = op_ratios(executable, run.totals, of_plan, is_alone=not run.plan.is_split)
        return cls(tuple(ratios), tuple(_stage_ms(executable, run, of_plan)))


def corrected(cost: CostModel, evidence: Iterable[Evidence]) -> CostModel:
    """A cost model with the corrections from the evidence of a network's plans."""
    samples: list[OpRatio] = []
    stages: list[float] = []
    for each in evidence:
        samples += each.ratios
        stages += each.stages_ms
    stage_ms = median(stages) if stages else 0.0
    return cost.corrected(ProfileCorrections(samples).factors, stage_ms)


def _stage_ms(executable: Executable, run: PlanRun, cost: CostModel) -> list[float]:
    """The mean overhead of stages with work on both processors; empty without such stages."""
    profiled = ProfiledTimes.of_totals(executable, run.totals)
    times = profiled.with_all(stage_times(executable, cost))
    both = sum(all(stage.works_ms) for stage in times)
    rest_ms = run.latency_ms - walk(executable, times).latency_ms
    return [max(0.0, rest_ms) / both] if both else []


def op_ratios(
    executable: Executable, totals: Totals, cost: CostModel, *, is_alone: bool = False
) -> list[OpRatio]:
    """Measured over predicted latencies of layers and kernels in a profile.

    Ops that are computed together share one ratio. `cost` has no corrections.
    """
    ratios: list[OpRatio] = []
    for stage in stage_times(executable, cost):
        for processor, measured_ms, expected_ms, ops in _timed(executable, stage, totals, cost):
            if expected_ms > 0 and measured_ms > LEAST * expected_ms:
                ratio = measured_ms / expected_ms
                ratios += [
                    _of_op(processor, text, variant, ratio, is_alone) for text, variant in ops
                ]
    return ratios


#: (processor, measured ms, predicted ms, [(op text, variant), ...]).
Timed = tuple[Processor, float, float, list[tuple[str, str]]]


def _timed(
    executable: Executable, stage: StageTimes, totals: Totals, cost: CostModel
) -> Iterator[Timed]:
    """The separately timed layers and kernels of a stage."""
    for number, net_ms in stage.nets_ms.items():
        net = executable.nets[number]
        taken_ms = totals.get(("net", net.label), 0.0)
        yield from _layers(executable, net, taken_ms, net_ms, totals, cost)
    for number, step_ms in stage.kernels_ms.items():
        step = executable.steps[number]
        if isinstance(step, GpuOp):
            storage = executable.tensors[step.writes.tensor].storage
            adds = [(text, cost.fastest_by_storage(parse(text), "gpu")) for text in step.ops[1:]]
            ops = [(step.ops[0], step.variant)]
            ops += [(text, costs[storage].variant) for text, costs in adds if storage in costs]
            yield "gpu", totals.get(("kernel", step.label), 0.0), step_ms, ops


def _layers(
    executable: Executable,
    net: Net,
    taken_ms: float,
    net_ms: float,
    totals: Totals,
    cost: CostModel,
) -> Iterator[Timed]:
    """The layers of a net, separately if each was timed, else together.

    Calls and packing have their own predictions, which are subtracted from the measured times. The
    slowdown by the other processor applies to layers, calls and packing alike.
    """
    ops = [parse(layer.op) for layer in net.layers]
    call_ms = cost.inside("cpu", library_of(net)).call_ms
    calls_ms = [call_ms * float(cost.turns(np.array(float(op.images)))) for op in ops]
    alone_ms = [
        cost.variant_ms(op, "cpu", layer.variant) - called_ms
        for op, layer, called_ms in zip(ops, net.layers, calls_ms, strict=True)
    ]
    loads, stores = _packing_ms(executable, net, cost)
    whole_ms = sum(alone_ms) + max(calls_ms) + loads + stores
    beside = net_ms / whole_ms if whole_ms > 0 else 1.0
    before, behind = beside * (loads + max(calls_ms)), beside * stores
    texts = [(layer.op, layer.variant) for layer in net.layers]
    layers_ms = [totals.get(("layer", layer.name), 0.0) for layer in net.layers]
    if not all(layers_ms):
        rest_ms = taken_ms - before - behind
        yield "cpu", max(rest_ms, taken_ms / 2), beside * sum(alone_ms), texts
        return
    for at, (ms, expected_ms, text) in enumerate(zip(layers_ms, alone_ms, texts, strict=True)):
        first, last = at == 0, at == len(texts) - 1
        rest_ms = ms - before * first - behind * last
        yield "cpu", max(rest_ms, ms / 2), beside * expected_ms, [text]


def _packing_ms(executable: Executable, net: Net, cost: CostModel) -> tuple[float, float]:
    """Predicted milliseconds of packing the inputs of a net, and of unpacking its outputs."""
    loads_ms = stores_ms = 0.0
    for move in packed(executable, net):
        move_ms = cost.packing_ms(move)
        if move[0] == storing(library_of(net)):
            stores_ms += move_ms
        else:
            loads_ms += move_ms
    return loads_ms, stores_ms


def _of_op(processor: Processor, text: str, name: str, ratio: float, is_alone: bool) -> OpRatio:
    op = parse(text)
    target = registry.target(registry.find(op, name), op)
    return OpRatio(processor, target, op, ratio, is_alone)
