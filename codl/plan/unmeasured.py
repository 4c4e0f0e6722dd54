"""Planning where somebody has measured only some kinds of op: the others count as nothing.

A table of other people's measurements has convolutions, say, and no pooling. A network with both
can be planned all the same: what has no latency on either processor costs 0 on both, so it hinders
no chain, and the plan names it as not counted. An op that was measured on one processor runs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codl.ir import Network, Op, Shape
from codl.ir.soc import Soc
from codl.ir.types import PROCESSORS, Direction
from codl.kernels import registry
from codl.plan import roofline as estimated
from codl.plan.around import Around
from codl.plan.cost_model import CostModel
from codl.predict.features import Item, sharing_target

#: Other libraries' latencies on the CPU go from tensor to tensor, so these are part of them.
INCLUDED: tuple[Direction, ...] = ("load", "store")
MOVES: tuple[Direction, ...] = ("to_gpu", "to_cpu")


@dataclass(frozen=True)
class PartlyMeasured(Around):
    """Predictors that answer 0 for targets and directions that nobody has measured."""

    missing: frozenset[str]
    free: frozenset[str]

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.predictors.targets, *sorted(self.missing))

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        return {}

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        if target in self.missing:
            return np.zeros(len(items))
        return super().latency_ms(target, items)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        if direction in self.free:
            return {"copy": np.zeros(len(shapes))}
        return super().sharing_ms(direction, shapes)


def filled(cost: CostModel, network: Network) -> CostModel:
    """The cost model of a replayed SoC, with nothing for what has no predictor.

    On a SoC at hand those ops will run, so they get an estimate.
    """
    if not cost.soc.is_replayed:
        return estimated.filled(cost, network)
    if isinstance(cost.predictors, PartlyMeasured):
        return cost
    known = cost.predictors.targets
    missing: set[str] = set()
    for layer in network.layers:
        own = _targets(layer.op, cost.soc)
        if not own.intersection(known):
            missing |= own
    usual = registry.storages(cost.soc)[0]
    free = {way for way in MOVES if sharing_target(way, usual) not in known}
    partly = PartlyMeasured(cost.predictors, frozenset(missing), frozenset((*free, *INCLUDED)))
    return replace(cost, predictors=partly)


def not_counted(cost: CostModel, network: Network) -> tuple[str, ...]:
    """The layers, by name, and the ways of data sharing that a plan's latency leaves out."""
    predictors = cost.predictors
    if not isinstance(predictors, PartlyMeasured):
        return ()
    layers = [
        layer.name for layer in network.layers if _targets(layer.op, cost.soc) <= predictors.missing
    ]
    ways = [f"data sharing, {way}" for way in MOVES if way in predictors.free]
    return (*layers, *ways)


def _targets(op: Op, soc: Soc) -> set[str]:
    return {
        registry.target(variant, op)
        for processor in PROCESSORS
        for variant in registry.variants(op, processor, soc)
    }
