from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.predict.estimators import LatencyEstimator
from codl.predict.estimators.numerics import Vector
from codl.predict.features import FeatureSet

#: Pull of the powers towards 0, for each row.
RIDGE = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerLaw(LatencyEstimator):
    """The logarithm of a latency as a linear function of the logarithms of its features."""

    name: ClassVar[str] = "power_law"
    feature_set: ClassVar[FeatureSet] = "variant"
    powers: Vector

    @classmethod
    def _fit(cls, X: Vector, y: Vector) -> PowerLaw:
        A = columns(X)
        penalty = RIDGE * len(A) * np.eye(A.shape[1])
        return cls(powers=np.linalg.solve(A.T @ A + penalty, A.T @ np.log(y)))

    def _predict(self, X: Vector) -> Vector:
        # One row at a time, as a prediction must not depend on which others are asked for.
        return np.exp([float((row * self.powers).sum()) for row in columns(X)])


def columns(X: Vector) -> Vector:
    return np.column_stack([np.ones(len(X)), np.log1p(np.maximum(X, 0.0))])
