"""Prediction intervals by split conformal prediction, with a local scale.

The score of a held-out row i is e_i = log(measured / predicted) / s_i, and the interval of a new
item is predicted * exp(q s) between two quantiles q of the scores: Lei et al., *Distribution-Free
Predictive Inference for Regression*, JASA 113 (2018), algorithm 2 and, with a local scale s,
section 5.2. With n groups, the levels of quantiles are further out by (n + 1) / n. The scale is
linear, with weights of at least 0, in what tells of errors: the disagreement of an ensemble's
members, and the distance from what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import norm

from codl.predict.estimators.json_arrays import Vector, from_rows, rounded, to_rows
from codl.predict.estimators.rowwise import rowwise_dot

#: The quantiles that are stored; those between are interpolated.
TAIL = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
LEVELS = np.array([*TAIL, 0.5, *(1 - t for t in reversed(TAIL))])
#: Without anything held out, errors are taken to be this large, in logarithms.
UNKNOWN = 0.25
#: The least scale, as a share of the mean error.
LEAST = 0.3


@dataclass(frozen=True)
class ErrorQuantiles:
    """Quantiles of the scaled errors at `LEVELS`, and the scale as weights of (1, signs)."""

    scale: Vector
    quantiles: Vector

    @classmethod
    def unknown(cls, signs: int) -> ErrorQuantiles:
        return cls(np.eye(signs + 1)[0], rounded(UNKNOWN * norm.ppf(LEVELS)))

    @classmethod
    def fit(cls, errors: Vector, signs: Vector, groups: NDArray[np.intp]) -> ErrorQuantiles:
        """From held-out errors (rows) and what may tell of their size (rows, signs).

        Few groups say little about the next one, so their quantiles are taken further out.
        """
        if len(errors) < 2:
            return cls.unknown(signs.shape[1])
        columns = np.column_stack([np.ones(len(errors)), signs])
        usual = float(np.mean(np.abs(errors))) + 1e-6
        scale, _ = nnls(columns, np.minimum(np.abs(errors), 6 * usual))
        scale[0] = max(scale[0], LEAST * usual)
        scale = rounded(scale)
        scaled = errors / (columns @ scale)
        count = len(np.unique(groups))
        out = np.clip(0.5 + (LEVELS - 0.5) * (count + 1) / count, 0, 1)
        quantiles = np.quantile(scaled, out)
        # The held-out rows have chosen between fits, and few groups cannot show the tails.
        wider = 1 + 1 / np.sqrt(count)
        middle = quantiles[len(LEVELS) // 2]
        quantiles = middle + (quantiles - middle) * wider
        return cls(scale, rounded(quantiles))

    def bounds(self, signs: Vector, coverage: float) -> tuple[Vector, Vector]:
        """Lowest and highest logarithm of measured over predicted, each shaped (items)."""
        low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], LEVELS, self.quantiles)
        scale = rowwise_dot(np.column_stack([np.ones(len(signs)), signs]), self.scale)
        return low * scale, high * scale

    def state(self) -> dict[str, Any]:
        return {"scale": to_rows(self.scale), "quantiles": to_rows(self.quantiles)}

    @classmethod
    def from_state(cls, state: Any, signs: int) -> ErrorQuantiles:
        if not isinstance(state, Mapping):
            raise ValueError(f"errors must be a mapping, got {state!r:.80}.")
        scale = from_rows(state, "scale", rows=1, columns=signs + 1)[0]
        quantiles = from_rows(state, "quantiles", rows=1, columns=len(LEVELS))[0]
        if (np.diff(quantiles) < 0).any():
            raise ValueError("quantiles must not fall.")
        if (scale < 0).any() or scale[0] <= 0:
            raise ValueError(f"scale must be positive, got {state['scale']!r:.80}.")
        return cls(scale, quantiles)
