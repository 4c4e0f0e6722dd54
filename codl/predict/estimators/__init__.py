"""The estimators behind the predictors: scikit-learn regressors of latencies in milliseconds.

All of them take features shaped (items, features) and positive latencies, predict positive
latencies, and can write their learned state as plain JSON values and read it back. Their names are
in `codl.predict`; each passes one common test.
"""

from __future__ import annotations

from codl.optional import explained

with explained():
    from codl.predict.estimators.base import LatencyEstimator
    from codl.predict.estimators.forest import RandomForest
    from codl.predict.estimators.gbdt import Gbdt
    from codl.predict.estimators.gp_ensemble import Codl
    from codl.predict.estimators.linear import CodlLinear, FlopsLinear

__all__ = [
    "Codl",
    "CodlLinear",
    "FlopsLinear",
    "Gbdt",
    "LatencyEstimator",
    "RandomForest",
]
