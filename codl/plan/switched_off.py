"""Cost models in which some terms count as nothing: what a plan would take without them.

Of sharing and launches that can be said of a stage's times (`codl.plan.price.StageTimes`); these
terms are part of what nets and kernels take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Shape
from codl.ir.types import Direction
from codl.plan.cost_model import CostModel
from codl.plan.coverage import Delegating

CostTerm: TypeAlias = Literal["layouts", "contention"]
#: The targets that predict contention, and the ways in which tensors change their layout.
CONTENTION = ("contention_cpu", "contention_gpu")
LAYOUTS: tuple[Direction, ...] = ("load", "store", "relayout")


@dataclass(frozen=True)
class SwitchedOff(Delegating):
    """Predictors that know nothing of contention, or for which a change of layout takes 0."""

    terms: frozenset[CostTerm]

    @cached_property
    def targets(self) -> tuple[str, ...]:
        off = CONTENTION if "contention" in self.terms else ()
        return tuple(target for target in self.predictors.targets if target not in off)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        if "layouts" in self.terms and direction in LAYOUTS:
            return {"copy": np.zeros(len(shapes))}
        return super().sharing_ms(direction, shapes)


def without(cost: CostModel, *terms: CostTerm) -> CostModel:
    """The same cost model in which these terms count as nothing."""
    return cost.with_predictors(SwitchedOff(cost.predictors, frozenset(terms)))
