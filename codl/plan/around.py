"""Predictors around others, to which they leave what they have no answer of their own to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.ir import Shape
from codl.ir.types import Direction
from codl.plan.op_costs import LatencyPredictors
from codl.predict.features import Item


@dataclass(frozen=True)
class Around:
    """What `predictors` say, of all that they know; milliseconds."""

    predictors: LatencyPredictors

    @property
    def name(self) -> str:
        return self.predictors.name

    @property
    def targets(self) -> tuple[str, ...]:
        return self.predictors.targets

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        return self.predictors.few

    def latency_ms(self, target: str, items: Sequence[Item]) -> NDArray[np.float64]:
        return self.predictors.latency_ms(target, items)

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]:
        return self.predictors.sharing_ms(direction, shapes)
