"""Gradient-boosted trees (LightGBM) as text that is checked before it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from codl.errors import CodlError
from codl.predict.estimators.arrays import Vector

_END = "end of trees"
#: What LightGBM writes about a tree and does not need to predict; sizes would be those of before.
_UNUSED = (
    "tree_sizes=",
    "split_gain=",
    "leaf_weight=",
    "leaf_count=",
    "internal_value=",
    "internal_weight=",
    "internal_count=",
)
#: What every fit has in common: one thread, and the same trees every time.
_COMMON = {
    "min_data_in_bin": 1,
    "feature_pre_filter": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "seed": 0,
    "verbosity": -1,
}


class _Booster(Protocol):
    """What is used of a LightGBM model."""

    def predict(self, data: Vector, *, num_threads: int) -> Vector: ...
    def model_to_string(self) -> str: ...
    def feature_name(self) -> list[str]: ...


@dataclass(frozen=True)
class Trees:
    """A fitted model; its text names the features that it was fitted to."""

    booster: _Booster

    @classmethod
    def fit(cls, X: Vector, t: Vector, *, rounds: int, parameters: Mapping[str, Any]) -> Trees:
        """Fit features (rows, features) to targets (rows) with LightGBM's `parameters`."""
        lightgbm = _lightgbm()
        own = {**_COMMON, **parameters}
        data = lightgbm.Dataset(X, t, params=own)
        return cls(lightgbm.train(own, data, num_boost_round=rounds))

    def predict(self, X: Vector) -> Vector:
        return self.booster.predict(X, num_threads=1)

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        """LightGBM's text up to its last tree with the features' own names, and its digest."""
        text = self.booster.model_to_string()
        lines = [*text[: text.index(_END)].splitlines(), _END]
        lines = [line for line in lines if not line.startswith(_UNUSED)]
        at = next(i for i, line in enumerate(lines) if line.startswith("feature_names="))
        lines[at] = "feature_names=" + " ".join(names)
        return {"model_sha256": _digest(lines), "model": lines}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], names: Sequence[str]) -> Trees:
        """Read back; raises `ValueError` with what is wrong."""
        lightgbm, lines = _lightgbm(), state.get("model")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError("model must be a list of the lines of a LightGBM model.")
        if state.get("model_sha256") != _digest(lines):
            wanted, got = state.get("model_sha256"), _digest(lines)
            raise ValueError(f"model must have the SHA-256 {wanted}, got {got}: it was changed.")
        try:
            found = cls(lightgbm.Booster(model_str="\n".join(lines) + "\n"))
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(f"model is not one of LightGBM: {error}.") from error
        if found.booster.feature_name() != list(names):
            known = ", ".join(found.booster.feature_name())
            raise ValueError(f"model has the features {known}, expected {', '.join(names)}.")
        return found


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
