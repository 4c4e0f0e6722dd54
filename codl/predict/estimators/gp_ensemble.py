"""The `codl` predictor: linear costs, corrected by an ensemble of sparse Gaussian processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from codl.predict.estimators import LatencyEstimator, floors_of
from codl.predict.estimators.numerics import Groups, Vector
from codl.predict.estimators.run_effects import RunColumns, RunTerm
from codl.predict.estimators.sparse_gp import Ensemble
from codl.predict.features import FeatureSet


@dataclass(frozen=True, kw_only=True, eq=False)
class Codl(LatencyEstimator):
    """Latency = what the blocks cost (`codl_linear`) x exp(Gaussian process on their logs).

    Blended with processes on the latency's logarithm itself, one on the features, one on the
    directions in which they spread, and where there are very many items with boosted trees, by the
    shares that did best on shapes held out within the training rows. Their errors give the
    intervals.
    """

    name: ClassVar[str] = "codl"
    feature_set: ClassVar[FeatureSet] = "variant"
    ensemble: Ensemble
    run_columns: RunColumns = field(default_factory=RunColumns)

    @classmethod
    def _fit_runs(cls, X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> Codl:
        """Fit with a column for every run: the kernels' lengths say how far runs are apart.

        What stands at a run's floor is fitted like the rest, since ops near it take hardly more.
        """
        columns = RunColumns.of(labels)
        if not columns.shares:
            return cls._fit_terms(X, y, shapes, labels)
        terms = {
            label: RunTerm(floor_ms=floor)
            for label, floor in floors_of(X, y, shapes, labels).items()
        }
        fitted, _ = cls._fit_rows(columns.beside(X, labels), y, shapes, terms, columns)
        return replace(fitted, runs=terms)

    @classmethod
    def _fit_rows(
        cls,
        X: Vector,
        y: Vector,
        groups: Groups,
        terms: Mapping[str, RunTerm],
        columns: RunColumns | None = None,
    ) -> tuple[Codl, Vector]:
        from codl.predict.estimators.gp_fitting import fit_ensemble  # it needs SciPy

        columns = columns or RunColumns()
        ensemble, predicted = fit_ensemble(
            X, y, groups, len(columns.shares), beside_terms=bool(terms)
        )
        return cls(ensemble=ensemble, run_columns=columns), predicted

    def _beside_run(self, X: Vector, runs: Sequence[str] | None) -> Vector:
        return self.run_columns.beside(X, runs)

    def _predict(self, X: Vector) -> Vector:
        return self.ensemble.predict(X)

    def _bounds(self, X: Vector, coverage: float) -> tuple[Vector, Vector]:
        return self.ensemble.bounds(X, coverage)
