"""The `codl` predictor: linear costs, corrected by an ensemble of sparse Gaussian processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from codl.predict.estimators import LatencyEstimator, RunColumns
from codl.predict.estimators.numerics import Groups, Vector
from codl.predict.estimators.sparse_gp import Ensemble
from codl.predict.features import FeatureSet


@dataclass(frozen=True, kw_only=True, eq=False)
class Codl(LatencyEstimator):
    """Latency = linear block costs (`codl_linear`) x exp(Gaussian process on log features).

    The ensemble mixes in a process on log latency, and boosted trees for many items. Shares come
    from held-out shapes of the training rows.
    """

    name: ClassVar[str] = "codl"
    feature_set: ClassVar[FeatureSet] = "variant"
    ensemble: Ensemble
    run_columns: RunColumns = field(default_factory=RunColumns)

    @classmethod
    def _fit_runs(cls, X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> Codl:
        """Fit with a column for every run, whose kernel length scales the runs' difference."""
        from codl.predict.estimators.gp_fitting import fit_ensemble  # needs SciPy

        columns = RunColumns.of(labels)
        X = columns.beside(X, labels)
        return cls(ensemble=fit_ensemble(X, y, shapes, len(columns.shares)), run_columns=columns)

    def _beside_run(self, X: Vector, runs: Sequence[str] | None) -> Vector:
        return self.run_columns.beside(X, runs)

    def _predict(self, X: Vector) -> Vector:
        return self.ensemble.predict(X)
