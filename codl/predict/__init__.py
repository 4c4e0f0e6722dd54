"""Latency predictors: features, estimators, training, and predictors stored for the planner.

This file only names them: scikit-learn and LightGBM take more than a second to import, which a
command that predicts nothing must not spend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from codl.files import HOME
from codl.registry import Registry

if TYPE_CHECKING:
    from codl.predict.estimators import LatencyEstimator

#: Where predictors are stored, a folder for each SoC.
FOLDER = HOME / "predictors"
#: What plans are timed by, and made by where a strategy is not tied to another.
DEFAULT = "codl"

#: Every predictor's estimator by name, imported when it is asked for.
ESTIMATORS: Registry[type[LatencyEstimator]] = Registry("predictor")
ESTIMATORS.add_lazy("flops_linear", "codl.predict.estimators.linear:FlopsLinear")
ESTIMATORS.add_lazy("codl_linear", "codl.predict.estimators.linear:CodlLinear")
ESTIMATORS.add_lazy("random_forest", "codl.predict.estimators.trees:RandomForest")
ESTIMATORS.add_lazy("gbdt", "codl.predict.estimators.trees:Gbdt")
ESTIMATORS.add_lazy("codl", "codl.predict.estimators.gp_ensemble:Codl")
