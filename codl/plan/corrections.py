"""Learns from plans that ran: corrects predictions of ops, and proposes the next plan to run.

`Evidence` compares a run with predictions, part by part, and `corrected` gives a cost model with
correction factors. `Improver` touches no device: its caller runs plans and passes the measurements.
The improver then proposes the plan that the corrected cost model predicts to be fastest: the best
one with balanced ratios, or a new one from a search.

The logarithm of measured over predicted latency is modelled as a sum of offsets: of the processor,
of the target (a kernel variant), of the layer in any variant, of the layer in this variant, and
noise. Each offset is a Gaussian process, and the variances maximise the likelihood of the profile.
So another cut of a measured layer gets nearly its whole correction, and a variant that did not run
gets the offsets of its processor and layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network, Op, parse
from codl.ir.columns import ColumnsByType
from codl.ir.executable import Executable, GpuOp, Net
from codl.ir.plan import Plan
from codl.ir.records.profile import PlanRun
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.lower.lowering import lower
from codl.lower.nets import library_of, packed
from codl.lower.partition import storing
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.price import ProfiledTimes, StageTimes, Totals, price, stage_times, walk
from codl.plan.search import recut, search
from codl.plan.shards import in_each_library

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
#: A new plan must be predicted to take less than this part of the balanced best plan's latency:
#: predictions of chains that ran are better.
NEW_CHAINS = 0.99
#: Libraries within this factor of the best one are searched again.
PROMISING = 1.1
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class OpRatio:
    """Measured over predicted latency of an op in a target."""

    processor: Processor
    target: str
    op: Op
    ratio: float


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the offsets of a log ratio; the defaults are the prior.

    The offset of the processor is the largest: if one variant is slow, others probably are too.
    """

    processor: float = 0.25
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
        self._sides = {side: _ProcessorFit(own) for side, own in by_side.items() if own}

    def factors(self, processor: Processor, target: str, ops: Sequence[Op]) -> Matrix:
        """The factors of a target's predictions, (ops); 1 for a processor without samples."""
        if processor not in self._sides or not ops:
            return np.ones(len(ops))
        return self._sides[processor].factors(target, ops)


class _ProcessorFit:
    """The offsets of one processor, fitted to samples.

    Repeated ratios of an op in one target, as in equal blocks, count as their mean with less noise,
    and their scatter informs the noise. This is equivalent to using each ratio by itself.
    """

    def __init__(self, samples: Sequence[OpRatio]) -> None:
        by_key: dict[tuple[str, Op], list[float]] = {}
        for sample in samples:
            by_key.setdefault((sample.target, sample.op), []).append(log(sample.ratio))
        logs, count = [np.array(values) for values in by_key.values()], len(by_key)
        self._features = _features([op for _, op in by_key])
        self._targets = np.array([target for target, _ in by_key])
        self._means = np.array([each.mean() for each in logs])
        self._counts = np.array([len(each) for each in logs])
        #: Sums of squared differences of log ratios from their means.
        self._squares = np.array([((each - each.mean()) ** 2).sum() for each in logs])
        under = self._likelihood(np.unique(np.linspace(0, count - 1, FITTED).round().astype(int)))
        self._deviations = USUAL
        least = under(USUAL)[0]
        for _, name in product(range(SWEEPS), vars(USUAL)):
            for tried in TRIED:
                other = replace(self._deviations, **{name: tried})
                value = under(other)[0]
                if value < least:
                    self._deviations, least = other, value
        self._weights = self._likelihood(np.arange(count))(self._deviations)[1]

    def _likelihood(self, at: NDArray[np.intp]) -> Callable[[Deviations], tuple[float, Matrix]]:
        """The negative log likelihood of the means at some places, and the weight of each."""
        counts, means, squares = self._counts[at], self._means[at], float(self._squares[at].sum())
        near = _near(self._features[at], self._features[at])
        same = (self._targets[at, None] == self._targets[None, at]).astype(float)
        more = float((counts - 1).sum())

        def under(deviations: Deviations) -> tuple[float, Matrix]:
            noise = deviations.noise
            covariance = _covariance(deviations, near, same)
            covariance[np.diag_indices_from(covariance)] += noise**2 / counts
            weights = np.linalg.solve(covariance, means)
            half_determinant = np.log(np.diag(np.linalg.cholesky(covariance))).sum()
            scatter = 0.5 * squares / noise**2 + more * log(noise)
            value = 0.5 * means @ weights + half_determinant + scatter + deviations.unlikely
            return float(value), np.asarray(weights)

        return under

    def factors(self, target: str, ops: Sequence[Op]) -> Matrix:
        near = _near(_features(ops), self._features)
        covariance = _covariance(self._deviations, near, (self._targets == target).astype(float))
        return np.asarray(np.exp(covariance @ self._weights))


def _covariance(d: Deviations, near: Matrix, same: Matrix) -> Matrix:
    """The covariance of offsets, from the similarity of ops (`near`) and of targets (`same`)."""
    return np.asarray(d.processor**2 + d.target**2 * same + near * (d.layer**2 + d.op**2 * same))


def _features(ops: Sequence[Op]) -> Matrix:
    """Features of ops in units of length scales, shaped (ops, 5)."""
    inputs, _, outputs, flops = ColumnsByType(ops).amounts
    shapes = np.array([op.output[-3:] for op in ops], np.float64)
    channels, rows, columns = shapes.T
    kept = flops / outputs, inputs / (rows * columns), columns
    logs = [np.log2(1.0 + value) / KEPT for value in kept]
    return np.stack([*logs, np.log2(rows) / CUT, np.log2(channels) / CUT], axis=1)


def _near(some: Matrix, others: Matrix) -> Matrix:
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
        ratios = op_ratios(executable, run.totals, of_plan)
        return cls(tuple(ratios), tuple(_stage_ms(executable, run, of_plan)))


def corrected(cost: CostModel, evidence: Iterable[Evidence]) -> CostModel:
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
    times = profiled.put_in(stage_times(executable, cost))
    both = sum(all(stage.works_ms) for stage in times)
    rest_ms = run.latency_ms - walk(executable, times).latency_ms
    return [max(0.0, rest_ms) / both] if both else []


def op_ratios(executable: Executable, totals: Totals, cost: CostModel) -> list[OpRatio]:
    """Measured over predicted latencies of layers and kernels in a profile.

    Ops that are computed together share one ratio. `cost` has no corrections.
    """
    ratios: list[OpRatio] = []
    for stage in stage_times(executable, cost):
        for processor, measured_ms, expected_ms, ops in _timed(executable, stage, totals, cost):
            if expected_ms > 0 and measured_ms > LEAST * expected_ms:
                for op, variant in ((parse(text), variant) for text, variant in ops):
                    target = registry.target(registry.find(op, variant), op)
                    ratio = measured_ms / expected_ms
                    ratios.append(OpRatio(processor, target, op, ratio))
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
    packing = [(move[0], cost.packing_ms(move)) for move in packed(executable, net)]
    stores = sum(ms for way, ms in packing if way == storing(library_of(net)))
    loads = sum(ms for way, ms in packing if way != storing(library_of(net)))
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


# Proposals.


@dataclass
class Improver:
    """Proposes plans of one network on one SoC.

    `cost` has no corrections, `soc` is the one that plans are lowered for, and `strategy` is the
    name in plans.
    """

    network: Network
    cost: CostModel
    soc: Soc
    strategy: str = "codl"
    runs: dict[str, PlanRun] = field(default_factory=dict)
    _evidence: dict[str, Evidence] = field(default_factory=dict)
    _corrected: CostModel | None = None
    #: The predicted latency of the best plan in each library, from the last searches.
    _found_ms: list[float] = field(default_factory=list)

    def observe(self, runs: Iterable[PlanRun]) -> None:
        for run in runs:
            name = run.plan.fingerprint
            if self.runs.get(name) != run:
                self.runs[name], self._corrected = run, None
                self._evidence[name] = Evidence.of(self.network, run, self.cost, self.soc)

    @property
    def corrected(self) -> CostModel:
        if self._corrected is None:
            self._corrected = corrected(self.cost, self._evidence.values())
        return self._corrected

    @property
    def best(self) -> PlanRun | None:
        split = (run for run in self.runs.values() if run.plan.is_split)
        return min(split, key=lambda run: run.latency_ms, default=None)

    def proposals(self, tried: Collection[str] = ()) -> Iterator[Plan]:
        """Plans that have not run, the one predicted fastest first.

        `tried` are fingerprints of further plans to skip.
        """
        done = {*self.runs, *tried}
        balanced_ms = inf
        if self.best is not None:
            balanced = self.balanced(self.best.plan)
            if balanced.fingerprint not in done:
                done.add(balanced.fingerprint)
                balanced_ms = balanced.predicted_ms or inf
        found = sorted(self._searched(), key=lambda plan: plan.predicted_ms or inf)
        is_due = balanced_ms < inf
        for plan in found:
            if is_due and (plan.predicted_ms or inf) > NEW_CHAINS * balanced_ms:
                is_due = False
                yield balanced
            if plan.fingerprint not in done:
                done.add(plan.fingerprint)
                yield plan
        if is_due:
            yield balanced

    def balanced(self, plan: Plan) -> Plan:
        """The plan with its ratios moved to where both processors end together.

        Chains and dimensions stay. One step moves ratios a little, so steps repeat until they gain
        nothing.
        """
        moved, before = replace(plan, predicted_ms=None), ""
        while moved.fingerprint != before:
            before, moved = moved.fingerprint, recut(moved, self.network, self.corrected)
        return moved

    def _searched(self) -> list[Plan]:
        """The best plan with the CPU in each library, and in several.

        Libraries that were not within `PROMISING` of the best one last time are skipped.
        """
        costs = in_each_library(self.network, self.corrected)
        known = self._found_ms if len(self._found_ms) == len(costs) else [0.0] * len(costs)
        limit_ms, plans = PROMISING * min(known), []
        for at, each in enumerate(costs):
            if known[at] <= limit_ms:
                plan = search(self.network, each, self.strategy)
                plans.append(plan)
                known[at] = plan.predicted_ms or 0.0
        self._found_ms = known
        return plans

    def predicted_ms(self, plan: Plan) -> float:
        """The latency of a plan by the corrected cost model, in milliseconds."""
        executable = lower(self.network, plan, self.soc, self.cost.tuning)
        return price(executable, self.corrected).latency_ms


def waiting(stages: Sequence[StageTimes]) -> float:
    """The part of the time of stages with work on both processors in which one of them waits."""
    both = [stage.works_ms for stage in stages if all(stage.works_ms)]
    longest_ms = sum(max(works) for works in both)
    return sum(max(works) - min(works) for works in both) / longest_ms if longest_ms else 0.0
