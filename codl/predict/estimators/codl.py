"""codl's own predictor: a physical base times what a Gaussian process has learned about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from codl.predict.estimators.base import RESOLUTION_MS, LatencyEstimator, State, Vector
from codl.predict.estimators.gaussian import GaussianProcess
from codl.predict.estimators.linear import CodlLinear
from codl.predict.features import FeatureSet


class Codl(LatencyEstimator):
    """Latency = what the blocks cost (`codl_linear`) x exp(Gaussian process on their logarithms)."""

    name: ClassVar[str] = "codl"
    feature_set: ClassVar[FeatureSet] = "variant"
    base_: CodlLinear
    center_: Vector
    spread_: Vector
    offset_: float
    process_: GaussianProcess

    def _fit(self, X: Vector, y: Vector) -> None:
        self.base_ = CodlLinear().fit(X, y)
        target = np.log(np.maximum(y, RESOLUTION_MS) / self.base_.predict(X))
        logs = np.log1p(np.abs(X))
        self.center_, spread = logs.mean(0), logs.std(0)
        self.spread_ = np.where(spread > 1e-9, spread, np.inf)
        self.offset_ = float(target.mean())
        self.process_ = GaussianProcess.fit(self._scaled(X), target - self.offset_)

    def _scaled(self, X: Vector) -> Vector:
        scaled: Vector = (np.log1p(np.abs(X)) - self.center_) / self.spread_
        return scaled

    def _predict(self, X: Vector) -> Vector:
        residual = self.offset_ + self.process_.predict(self._scaled(X))
        return self.base_.predict(X) * np.exp(residual)

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _read(self, state: State, names: Sequence[str]) -> None:
        raise NotImplementedError
