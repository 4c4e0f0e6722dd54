"""Gradient-boosted trees on the base of the linear predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, Protocol

import numpy as np

from codl.errors import CodlError
from codl.predict.estimators.base import RESOLUTION_MS, Groups, LatencyEstimator, State, Vector
from codl.predict.estimators.linear import CodlLinear
from codl.predict.features import FeatureSet

_END = "end of trees"


class _Booster(Protocol):
    """What is used of a LightGBM model."""

    def predict(self, data: Vector, *, num_threads: int) -> Vector: ...
    def model_to_string(self) -> str: ...
    def feature_name(self) -> list[str]: ...


class Gbdt(LatencyEstimator):
    """Gradient-boosted trees (LightGBM) on the features and the base of `codl_linear`.

    The trees are fitted to log(latency / base), so that what they cannot do, following a law past
    the largest op that was measured, is left to the base.

    With `monotone`, no prediction falls as a feature grows, since every feature is a cost. It costs
    accuracy (docs/predictors.md): what the base puts too high can no longer be put lower.
    """

    name: ClassVar[str] = "gbdt"
    feature_set: ClassVar[FeatureSet] = "variant"
    base_: CodlLinear
    booster_: _Booster

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
        if self.monotone:
            parameters["monotone_constraints"] = [1] * X.shape[1]
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


def _digest(lines: Sequence[str]) -> str:
    """Checked before LightGBM reads a model: on one that was changed it may crash or never end."""
    return sha256("\n".join(lines).encode()).hexdigest()


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
