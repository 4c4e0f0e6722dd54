"""Planning with ops that nobody has measured on a SoC whose other ops were: latencies by rates.

Predictors are trained on the kinds of op in some models. Another model may have a softmax or a
gather, or an ONNX subgraph, for which there is none. What such an op takes is then estimated by how
fast the SoC's predictors say that it computes and moves bytes; the plan names those ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Direction
from codl.kernels import registry
from codl.kernels.base import PROCESSORS, Processor
from codl.ops import Network, Op, Shape, parse
from codl.plan.cost import CostModel, LatencyPredictors
from codl.predict.features import Item
from codl.soc import Soc

#: Ops of kinds that are always measured, by which a processor is judged: two that compute, two that
#: move bytes, one that does hardly anything.
PROBES = (
    "conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1",
    "conv2d in=1x256x14x14 oc=256 kernel=1x1",
    "pooling in=1x64x56x56 kernel=2x2 stride=2",
    "eltwise in=1x64x56x56,1x64x56x56",
    "conv2d in=1x8x2x2 oc=8 kernel=1x1",
)
#: Kinds that multiply matrices; these reach about half of a convolution's rate.
PRODUCTS = ("conv2d", "conv_transpose2d", "fc", "matmul")
PRODUCTS_SHARE = 0.5
#: Functions, sums and comparisons have no multiply-adds to keep a core's units busy.
OTHERS_SHARE = 1 / 16


@dataclass(frozen=True)
class Rates:
    """A processor's operations and bytes in a millisecond, and what any op takes at least."""

    flops_per_ms: float
    bytes_per_ms: float
    least_ms: float

    def latency_ms(self, op: Op) -> float:
        share = PRODUCTS_SHARE if op.kind in PRODUCTS else OTHERS_SHARE
        computing_ms = op.flops / (share * self.flops_per_ms)
        return self.least_ms + max(computing_ms, op.bytes / self.bytes_per_ms)


@dataclass(frozen=True)
class Estimated:
    """Predictors that estimate the targets that they lack, by the rates of their processors."""

    predictors: LatencyPredictors
    #: The rates for every target that is estimated.
    rates: dict[str, Rates]
    targets: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        targets = dict.fromkeys((*self.predictors.targets, *sorted(self.rates)))
        object.__setattr__(self, "targets", tuple(targets))

    @property
    def name(self) -> str:
        return self.predictors.name

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        if target not in self.rates:
            return self.predictors.latency_ms(target, items)
        return np.array([self.rates[target].latency_ms(op) for op in items if isinstance(op, Op)])

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        return self.predictors.sharing_ms(direction, shapes)


def filled(cost: CostModel, network: Network) -> CostModel:
    """The cost model with estimates for ops that have no predictor on a processor."""
    if isinstance(cost.predictors, Estimated):
        return cost
    rates: dict[str, Rates] = {}
    for processor in PROCESSORS:
        missing = sorted({t for op, p in _missing(cost, network) if p == processor
                          for t in _targets(op, processor, cost.soc)})  # fmt: skip
        own = rates_of(processor, cost.predictors, cost.soc) if missing else None
        if own is not None:
            rates |= dict.fromkeys(missing, own)
    return replace(cost, predictors=Estimated(cost.predictors, rates)) if rates else cost


def estimated(cost: CostModel, network: Network) -> tuple[str, ...]:
    """The layers, by name, whose latency on some processor is an estimate."""
    predictors = cost.predictors
    if not isinstance(predictors, Estimated):
        return ()
    return tuple(
        layer.name
        for layer in network.layers
        if any(t in predictors.rates for p in PROCESSORS for t in _targets(layer.op, p, cost.soc))
    )


def rates_of(processor: Processor, predictors: LatencyPredictors, soc: Soc) -> Rates | None:
    """How fast a processor is by its predictors; None where there are none for the probes."""
    found = [
        (op, float(predictors.latency_ms(target, [op])[0]))
        for op in map(parse, PROBES)
        for target in _targets(op, processor, soc)
        if target in predictors.targets
    ]
    if not found:
        return None
    return Rates(
        flops_per_ms=max(op.flops / ms for op, ms in found),
        bytes_per_ms=max(op.bytes / ms for op, ms in found),
        least_ms=min(ms for _, ms in found),
    )


def _missing(cost: CostModel, network: Network) -> Iterable[tuple[Op, Processor]]:
    """Ops that a processor has variants for, and no predictor for any of them."""
    known = set(cost.predictors.targets)
    for op in dict.fromkeys(layer.op for layer in network.layers):
        for processor in PROCESSORS:
            own = _targets(op, processor, cost.soc)
            if own and known.isdisjoint(own):
                yield op, processor


def _targets(op: Op, processor: Processor, soc: Soc) -> list[str]:
    return [registry.target(variant, op) for variant in registry.variants(op, processor, soc)]
