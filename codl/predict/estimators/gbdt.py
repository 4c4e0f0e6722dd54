"""Gradient-boosted trees on the base of the linear predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from codl.predict.estimators.base import (
    Groups,
    LatencyEstimator,
    State,
    Vector,
)
from codl.predict.estimators.least_squares import RESOLUTION_MS
from codl.predict.estimators.linear import CodlLinear
from codl.predict.estimators.trees import Trees
from codl.predict.features import FeatureSet


class Gbdt(LatencyEstimator):
    """Gradient-boosted trees (LightGBM) on the features and the base of `codl_linear`.

    The trees are fitted to log(latency / base), so that what they cannot do, following a law past
    the largest op that was measured, is left to the base.

    With `monotone`, no prediction falls as a feature grows, since every feature is a cost. It costs
    accuracy: what the base puts too high can no longer be put lower.
    """

    name: ClassVar[str] = "gbdt"
    feature_set: ClassVar[FeatureSet] = "variant"
    takes_terms: ClassVar[bool] = True
    base_: CodlLinear
    trees_: Trees

    def __init__(
        self,
        *,
        rounds: int = 80,
        learning_rate: float = 0.1,
        leaves: int = 8,
        leaf_rows: int = 4,
        monotone: bool = False,
    ) -> None:
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.leaf_rows = leaf_rows
        self.monotone = monotone

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        parameters: dict[str, Any] = {
            "objective": "regression",
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.leaf_rows,
        }
        if self.monotone:
            parameters["monotone_constraints"] = [1] * X.shape[1]
        self.base_ = CodlLinear.of(X, y)
        target = np.log(np.maximum(y, RESOLUTION_MS) / self.base_.typical(X))
        self.trees_ = Trees.fit(X, target, rounds=self.rounds, parameters=parameters)

    def _predict(self, X: Vector) -> Vector:
        return self.base_.typical(X) * np.exp(self.trees_.predict(X))

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        return {"base": self.base_.state(names), "trees": self.trees_.state()}

    def _read(self, state: State, names: Sequence[str]) -> None:
        base = state.get("base")
        if not isinstance(base, Mapping):
            raise ValueError(f"base must be a mapping, got {base!r}.")
        self.base_ = CodlLinear.from_state(base, names)
        self.trees_ = Trees.from_state(state.get("trees"), len(names))
