"""Estimates for ops without a predictor, and cost models without some terms.

Predictors are trained on the kinds of op in some models. Another model may have a softmax, a gather
or an ONNX subgraph without a predictor, or with one that has seen few shapes. On a measured SoC,
such an op gets a roofline estimate from the SoC's rates of computing and of moving bytes, and the
plan lists it (`estimated`). Estimates are pessimistic, so that unmeasured ops do not move work
between processors: the rates are those of the slowest probe, and the GPU's estimates are doubled.
An op that stands for others (attention: two products and a softmax) takes the sum of theirs.

A replayed SoC has published measurements, for example of convolutions and of no pooling. An op that
was measured on neither processor costs 0 on both, and the plan lists it (`not_counted`). An op that
was measured on one processor runs there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network, Op, Shape, parse, to_text
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Direction, Processor
from codl.kernels import registry
from codl.kernels.cpu import CPU_OPENVINO
from codl.plan.cost_model import CostModel, LatencyPredictors
from codl.predict.features import Item, sharing_target
from codl.predict.in_network_cost import InNetworkCosts

#: Ops that every dataset covers, from which a processor's rates are derived: two that compute, two
#: that move bytes, and `TINY`, which measures the overhead of an op.
PROBES = (
    "conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1",
    "conv2d in=1x256x14x14 oc=256 kernel=1x1",
    "pooling in=1x64x56x56 kernel=2x2 stride=2",
    "eltwise in=1x64x56x56,1x64x56x56",
)
TINY = "conv2d in=1x8x2x2 oc=8 kernel=1x1"
#: At least this part of a probe's latency is its own work, and not overhead.
OWN_PART = 0.5
#: Factors on estimates; docs/decisions.md has their errors on a host's CPU and OpenCL device.
SAFETY: Mapping[Processor, float] = {"cpu": 1.0, "gpu": 2.0}
#: Matrix products reach about half of a convolution's rate.
PRODUCTS_SHARE = 0.5
#: Functions, sums and comparisons have no multiply-adds.
OTHERS_SHARE = 1 / 16
#: Published CPU latencies include packing and unpacking of tensors.
INCLUDED: tuple[Direction, ...] = ("load", "store")
MOVES: tuple[Direction, ...] = ("to_gpu", "to_cpu")
#: Part of the target names of a library that may be missing on a device.
OPTIONAL = f"_{CPU_OPENVINO}"


@dataclass(frozen=True)
class AdjustedPredictors:
    """Predictors with some answers replaced.

    Targets in `without` are missing. Targets in `zero` and transfers in the directions `free` take
    0. `costs` replaces coefficients of the costs inside a network.
    """

    predictors: LatencyPredictors
    without: frozenset[str] = frozenset()
    zero: frozenset[str] = frozenset()
    free: frozenset[Direction] = frozenset()
    costs: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.predictors.name

    @cached_property
    def targets(self) -> tuple[str, ...]:
        measured = (target for target in self.predictors.targets if target not in self.without)
        return (*measured, *sorted(self.zero))

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        return self.predictors.few

    @cached_property
    def inside(self) -> InNetworkCosts:
        measured = self.predictors.inside
        return {side: replace(side_costs, **self.costs) for side, side_costs in measured.items()}

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        if target in self.zero:
            return np.zeros(len(items))
        return self.predictors.latency_ms(target, items)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        if direction in self.free:
            return {"copy": np.zeros(len(shapes))}
        return self.predictors.sharing_ms(direction, shapes)


class ReplayPredictors(AdjustedPredictors):
    """Predictors of a replayed SoC: unmeasured ops and transfers take 0."""

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        return {}


def without_winograd(predictors: LatencyPredictors) -> AdjustedPredictors:
    """Predictors without targets of Winograd variants, and without muLayer's targets.

    A target of muLayer covers all variants of a kind of op.
    """
    unknown = (x for x in predictors.targets if "_winograd" in x or x.startswith("mulayer_"))
    return AdjustedPredictors(predictors, without=frozenset(unknown))


@dataclass(frozen=True)
class EstimatingPredictors(AdjustedPredictors):
    """Estimates from rates where a predictor is missing or has too few measurements."""

    #: The rates by estimated target.
    rates: Mapping[str, Rates] = field(kw_only=True)
    soc: Soc = field(kw_only=True)

    @cached_property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.predictors.targets, *sorted(self.rates))))

    @cached_property
    def _examples(self) -> dict[str, list[tuple[Op, float]]]:
        examples = {}
        for target in self.rates.keys() & self.predictors.few.keys():
            ops = [parse(text) for text in sorted(self.predictors.few[target])]
            latencies = self.predictors.latency_ms(target, ops).tolist()
            examples[target] = list(zip(ops, latencies, strict=True))
        return examples

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        return {}

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        if target not in self.rates:
            return super().latency_ms(target, items)
        ops = [op for op in items if isinstance(op, Op)]
        estimates = self._estimates(self.rates[target], ops)
        if target not in self.predictors.targets:
            return estimates
        own_ms = self.predictors.latency_ms(target, items)
        examples, measured = self._examples[target], self.predictors.few[target]
        most_ms = np.array([_most_ms(op, examples) for op in ops])
        is_known = np.array([to_text(op) in measured for op in ops])
        return np.where(is_known, own_ms, np.maximum(np.minimum(estimates, most_ms), own_ms))

    def _estimates(self, rates: Rates, ops: Sequence[Op]) -> NDArray[np.float64]:
        """Estimates from rates, or the sum over the ops that an op stands for."""
        estimates: NDArray[np.float64] = np.array([rates.latency_ms(op) for op in ops])
        parts = [(at, part) for at, op in enumerate(ops) for part in op.stands_for]
        if parts:
            places = [at for at, _ in parts]
            estimates[places] = 0.0
            np.add.at(estimates, places, self._fastest_ms(rates, [part for _, part in parts]))
        return estimates

    def _fastest_ms(self, rates: Rates, ops: Sequence[Op]) -> NDArray[np.float64]:
        """Milliseconds of ops in the fastest variant with a target, or else from rates."""
        asked: dict[str, list[int]] = {}
        for at, op in enumerate(ops):
            for target in _targets(op, self.soc, rates.processor):
                asked.setdefault(target, []).append(at)
        fastest = np.full(len(ops), np.inf)
        for target in set(asked).intersection(self.targets):
            latencies = self.latency_ms(target, [ops[at] for at in asked[target]])
            np.minimum.at(fastest, asked[target], latencies)
        by_rates = [rates.latency_ms(op) for op in ops]
        return np.where(np.isfinite(fastest), fastest, by_rates)


def _most_ms(op: Op, examples: Sequence[tuple[Op, float]]) -> float:
    """An upper bound for an op: the nearest smaller measured op, scaled by work, or infinity.

    Within one kernel, latency grows at most linearly with work. On a large GPU the rates of the
    probes are too low, because the probes do not fill it.
    """
    times = [
        (max(op.flops / max(example.flops, 1), op.bytes / example.bytes), latency_ms)
        for example, latency_ms in examples
    ]
    more, latency_ms = min((example for example in times if example[0] >= 1), default=(inf, 1.0))
    return more * latency_ms


def covered(cost: CostModel, network: Network) -> CostModel:
    """The cost model with a prediction of each op: missing ones are estimated, or 0 if replayed.

    A target with too few measurements predicts those ops. For other ops, the estimate is at most
    that of a measured op scaled by work, and at least the target's own prediction.
    """
    if isinstance(cost.predictors, ReplayPredictors | EstimatingPredictors):
        return cost
    if not cost.soc.is_replayed:
        rates: dict[str, Rates] = {}
        for processor in PROCESSORS:
            poor = sorted(set(_poorly_covered(cost, network, processor)))
            side_rates = rates_of(processor, cost.predictors, cost.soc) if poor else None
            if side_rates is not None:
                rates |= dict.fromkeys(poor, side_rates)
        if not rates:
            return cost
        predictors = EstimatingPredictors(cost.predictors, rates=rates, soc=cost.soc)
        return replace(cost, predictors=predictors)
    measured = cost.predictors.targets
    missing: set[str] = set()
    for layer in network.layers:
        targets = _targets(layer.op, cost.soc)
        if not targets.intersection(measured):
            missing |= targets
    usual = registry.storages(cost.soc)[0]
    free = {way for way in MOVES if sharing_target(way, usual) not in measured}
    partly = ReplayPredictors(
        cost.predictors, zero=frozenset(missing), free=frozenset((*free, *INCLUDED))
    )
    return replace(cost, predictors=partly)


def estimated(cost: CostModel, network: Network) -> tuple[str, ...]:
    predictors = cost.predictors
    if not isinstance(predictors, EstimatingPredictors):
        return ()
    known = {op: _targets(op, cost.soc) for op in {layer.op for layer in network.layers}}
    ops = {op for op, targets in known.items() if not targets.isdisjoint(predictors.rates)}
    return tuple(layer.name for layer in network.layers if layer.op in ops)


def rates_of(processor: Processor, predictors: LatencyPredictors, soc: Soc) -> Rates | None:
    """The rates of a processor from its predictors; None if no probe has a predictor."""

    def fastest_ms(op: Op) -> float:
        measured = set(_targets(op, soc, processor)).intersection(predictors.targets)
        latencies = (float(predictors.latency_ms(target, [op])[0]) for target in measured)
        return min(latencies, default=inf)

    probes = {op: ms for op in map(parse, PROBES) if (ms := fastest_ms(op)) < inf}
    if not probes:
        return None
    least_ms = min(fastest_ms(parse(TINY)), *probes.values())
    own_ms = {op: max(ms - least_ms, OWN_PART * ms) for op, ms in probes.items()}
    products = [op for op in probes if op.is_product] or list(probes)
    movers = [op for op in probes if not op.is_product] or list(probes)
    return Rates(
        flops_per_ms=min(op.flops / own_ms[op] for op in products),
        bytes_per_ms=min(op.bytes / own_ms[op] for op in movers),
        least_ms=least_ms,
        processor=processor,
        safety=SAFETY[processor],
    )


def _poorly_covered(cost: CostModel, network: Network, processor: Processor) -> Iterator[str]:
    few = set(cost.predictors.few)
    measured = set(cost.predictors.targets) - few
    ops = dict.fromkeys(layer.op for layer in network.layers)
    for op in dict.fromkeys(each for layer_op in ops for each in (layer_op, *layer_op.stands_for)):
        targets = _targets(op, cost.soc, processor)
        # An optional library is available only if it was measured.
        is_there = {x for x in targets if x in cost.predictors.targets or OPTIONAL not in x}
        yield from is_there if measured.isdisjoint(targets) else few.intersection(targets)


def not_counted(cost: CostModel, network: Network) -> tuple[str, ...]:
    """The names of layers, and the directions of data sharing, that count as 0."""
    predictors = cost.predictors
    if not isinstance(predictors, ReplayPredictors):
        return ()
    layers = [
        layer.name for layer in network.layers if _targets(layer.op, cost.soc) <= predictors.zero
    ]
    ways = [f"data sharing, {way}" for way in MOVES if way in predictors.free]
    return (*layers, *ways)


@dataclass(frozen=True)
class Rates:
    """The rates of a processor, and the least latency of an op; estimates are `safety` times it."""

    flops_per_ms: float
    bytes_per_ms: float
    least_ms: float
    processor: Processor
    safety: float = 1.0

    def latency_ms(self, op: Op) -> float:
        share = PRODUCTS_SHARE if op.is_product else OTHERS_SHARE
        computing_ms = op.flops / (share * self.flops_per_ms)
        return self.safety * (self.least_ms + max(computing_ms, op.bytes / self.bytes_per_ms))


def _targets(op: Op, soc: Soc, *processors: Processor) -> set[str]:
    """The targets of an op's variants on some processors; all processors by default."""
    return {
        registry.target(variant, op)
        for processor in processors or PROCESSORS
        for variant in registry.variants(op, processor, soc)
    }


def without(
    cost: CostModel,
    *,
    targets: Collection[str] = (),
    ways: Collection[Direction] = (),
    inside: Mapping[str, float] | None = None,
) -> CostModel:
    """A cost model without some terms.

    `targets` are missing, transfers in the directions `ways` take 0, and the costs `inside` a
    network have these coefficients.
    """
    overlay = AdjustedPredictors(
        cost.predictors, without=frozenset(targets), free=frozenset(ways), costs=inside or {}
    )
    return replace(cost, predictors=overlay)
