"""The estimators behind the predictors: scikit-learn regressors of latencies in milliseconds.

All of them take features shaped (items, features) and positive latencies, predict positive
latencies, and can write their learned state as plain JSON values and read it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, ClassVar, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import check_is_fitted, validate_data

from codl.errors import CodlError, UnknownNameError
from codl.predict.features import FeatureSet

Vector = NDArray[np.float64]
State = Mapping[str, Any]
E = TypeVar("E", bound="LatencyEstimator")

#: No prediction is below this share of the smallest latency that was fitted.
FLOOR = 0.1
#: Latencies below one microsecond differ by noise alone, so errors there do not count for more.
RESOLUTION_MS = 1e-3


class LatencyEstimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What all estimators share: checks, the floor, and reading and writing the learned state."""

    name: ClassVar[str]
    feature_set: ClassVar[FeatureSet]
    floor_: float
    n_features_in_: int

    def fit(self: E, X: ArrayLike, y: ArrayLike) -> E:
        """Fit features (items, features) to latencies (items), which must be positive."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
        if not (y > 0).all():
            raise ValueError(f"Latencies must be positive, got {y.min():g}.")
        self.floor_ = float(FLOOR * y.min())
        self._fit(X, y)
        return self

    def predict(self, X: ArrayLike) -> Vector:
        """Latencies in milliseconds, shaped (items); at least `floor_`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.maximum(self._predict(np.asarray(X, np.float64)), self.floor_)

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        """The learned state as JSON values; `names` are the features in the order of fitting."""
        check_is_fitted(self)
        return {"floor_ms": self.floor_, **self._write(names)}

    @classmethod
    def from_state(cls: type[E], state: State, names: Sequence[str]) -> E:
        """The fitted estimator again; raises `ValueError` with the key and value at fault."""
        estimator = cls()
        estimator.n_features_in_ = len(names)
        estimator.floor_ = _number(state, "floor_ms")
        if estimator.floor_ <= 0:
            raise ValueError(f"floor_ms must be positive, got {estimator.floor_:g}.")
        estimator._read(state, names)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _fit(self, X: Vector, y: Vector) -> None:
        raise NotImplementedError

    def _predict(self, X: Vector) -> Vector:
        raise NotImplementedError

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _read(self, state: State, names: Sequence[str]) -> None:
        raise NotImplementedError


class _Linear(LatencyEstimator):
    """Latency = overhead + sum of coefficient x feature."""

    coef_: Vector
    intercept_: float
    is_non_negative: ClassVar[bool] = False

    def _predict(self, X: Vector) -> Vector:
        return X @ self.coef_ + self.intercept_

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        coefficients = dict(zip(names, self.coef_.tolist(), strict=True))
        return {"overhead_ms": self.intercept_, "coefficients_ms": coefficients}

    def _read(self, state: State, names: Sequence[str]) -> None:
        coefficients = state.get("coefficients_ms")
        if not isinstance(coefficients, Mapping):
            raise ValueError(f"coefficients_ms must be a mapping, got {coefficients!r}.")
        for name in coefficients:
            if name not in names:
                reason = UnknownNameError("feature", str(name), names)
                raise ValueError(f"coefficients_ms: {reason}")
        self.intercept_ = _number(state, "overhead_ms", non_negative=self.is_non_negative)
        values = [_number(coefficients, n, non_negative=self.is_non_negative) for n in names]
        self.coef_ = np.array(values, np.float64)


class FlopsLinear(_Linear):
    """muLayer's predictor: ordinary linear regression on FLOPs and sizes."""

    name: ClassVar[str] = "flops_linear"
    feature_set: ClassVar[FeatureSet] = "flops"

    def _fit(self, X: Vector, y: Vector) -> None:
        scale = _scale(X)
        fitted = LinearRegression().fit(X / scale, y)
        self.coef_ = np.asarray(fitted.coef_, np.float64) / scale
        self.intercept_ = float(fitted.intercept_)


class CodlLinear(_Linear):
    """The paper's predictor (section 5.2): every block that runs costs its part, never less than 0.

    Minimises the sum of squared relative errors under non-negative coefficients and overhead, so
    that small parts, where a chain's ratio is decided, count as much as large ones.
    """

    name: ClassVar[str] = "codl_linear"
    feature_set: ClassVar[FeatureSet] = "variant"
    is_non_negative: ClassVar[bool] = True
    #: Picks one of many equally good solutions where features are multiples of each other.
    ridge: ClassVar[float] = 1e-6

    def _fit(self, X: Vector, y: Vector) -> None:
        unit = np.maximum(y, RESOLUTION_MS)
        relative = np.column_stack([X, np.ones_like(y)]) / unit[:, None]
        scale = _scale(relative) * np.sqrt(len(y))
        size = relative.shape[1]
        rows = np.vstack([relative / scale, self.ridge * np.eye(size)])
        wanted = np.concatenate([y / unit, np.zeros(size)])
        fitted = LinearRegression(positive=True, fit_intercept=False).fit(rows, wanted)
        coefficients = np.asarray(fitted.coef_, np.float64) / scale
        self.coef_, self.intercept_ = coefficients[:-1], float(coefficients[-1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on features that latency falls with
        return tags


class _Booster(Protocol):
    """What is used of a LightGBM model."""

    def predict(self, data: Vector, *, num_threads: int) -> Vector: ...
    def model_to_string(self) -> str: ...
    def feature_name(self) -> list[str]: ...


class Gbdt(LatencyEstimator):
    """Gradient-boosted trees (LightGBM) on the features and the base of `codl_linear`.

    The trees are fitted to log(latency / base), so that what they cannot do, following a law past
    the largest op that was measured, is left to the base.
    """

    name: ClassVar[str] = "gbdt"
    feature_set: ClassVar[FeatureSet] = "variant"
    base_: CodlLinear
    booster_: _Booster

    def __init__(
        self, *, rounds: int = 200, learning_rate: float = 0.05, leaves: int = 8, leaf_rows: int = 4
    ) -> None:
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.leaf_rows = leaf_rows

    def _fit(self, X: Vector, y: Vector) -> None:
        lightgbm = _lightgbm()

        parameters = {
            "objective": "regression",
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.leaf_rows,
            "min_data_in_bin": 1,
            "feature_pre_filter": False,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "seed": 0,
            "verbosity": -1,
        }
        self.base_ = CodlLinear().fit(X, y)
        target = np.log(np.maximum(y, RESOLUTION_MS) / self.base_.predict(X))
        data = lightgbm.Dataset(X, target, params=parameters)
        self.booster_ = lightgbm.train(parameters, data, num_boost_round=self.rounds)

    def _predict(self, X: Vector) -> Vector:
        return self.base_.predict(X) * np.exp(self.booster_.predict(X, num_threads=1))

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        """The base, and LightGBM's text up to its last tree with the features' own names."""
        text = self.booster_.model_to_string()
        lines = [*text[: text.index(_END)].splitlines(), _END]
        at = next(i for i, line in enumerate(lines) if line.startswith("feature_names="))
        lines[at] = "feature_names=" + " ".join(names)
        base = self.base_.state(names)
        return {"base": base, "model_sha256": _digest(lines), "model": lines}

    def _read(self, state: State, names: Sequence[str]) -> None:
        lightgbm = _lightgbm()

        base, lines = state.get("base"), state.get("model")
        if not isinstance(base, Mapping):
            raise ValueError(f"base must be a mapping, got {base!r}.")
        self.base_ = CodlLinear.from_state(base, names)
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError("model must be a list of the lines of a LightGBM model.")
        if state.get("model_sha256") != _digest(lines):
            wanted, got = state.get("model_sha256"), _digest(lines)
            raise ValueError(f"model must have the SHA-256 {wanted}, got {got}: it was changed.")
        try:
            text = "\n".join(lines) + "\n"
            self.booster_ = lightgbm.Booster(model_str=text)
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(f"model is not one of LightGBM: {error}.") from error
        if self.booster_.feature_name() != list(names):
            known = ", ".join(self.booster_.feature_name())
            raise ValueError(f"model has the features {known}, expected {', '.join(names)}.")


_END = "end of trees"

#: Every predictor by name; a new one is added here and passes the common test.
ESTIMATORS: Mapping[str, type[LatencyEstimator]] = {
    cls.name: cls for cls in (FlopsLinear, CodlLinear, Gbdt)
}


def _digest(lines: Sequence[str]) -> str:
    """Checked before LightGBM reads a model: on one that was changed it may crash or never end."""
    return sha256("\n".join(lines).encode()).hexdigest()


def _scale(X: Vector) -> Vector:
    """The largest size of every column, 1 for a column of zeros: keeps the solver well posed."""
    largest = np.abs(X).max(axis=0)
    return cast(Vector, np.where(largest > 0, largest, 1.0))


def _number(values: State, key: str, *, non_negative: bool = False) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{key} must be a finite number, got {value!r}.")
    if non_negative and value < 0:
        raise ValueError(f"{key} must not be negative, got {value!r}.")
    return float(value)


def _lightgbm() -> Any:
    """LightGBM, imported where it is first needed; it needs a library of the system."""
    try:
        import lightgbm
    except OSError as error:
        raise CodlError(
            f"LightGBM cannot be loaded: {error}. It needs the GNU OpenMP runtime (libgomp1 on "
            "Debian and Ubuntu). The other predictors do without."
        ) from error
    return lightgbm
