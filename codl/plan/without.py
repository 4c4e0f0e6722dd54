"""Planning without some kernel variants: what has no predictor is never chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Direction
from codl.ops import Shape
from codl.plan.op_costs import LatencyPredictors
from codl.predict.features import Item


@dataclass(frozen=True)
class WithoutWinograd:
    """Predictors that know nothing of Winograd variants.

    Nor of muLayer's targets, which do not tell variants apart.
    """

    predictors: LatencyPredictors

    @property
    def name(self) -> str:
        return self.predictors.name

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(
            name
            for name in self.predictors.targets
            if "_winograd" not in name and not name.startswith("mulayer_")
        )

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        return self.predictors.few

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        return self.predictors.latency_ms(target, items)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        return self.predictors.sharing_ms(direction, shapes)
