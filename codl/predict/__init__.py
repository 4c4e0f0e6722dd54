"""Latency predictors: features, estimators, training, and predictors stored for the planner.

Estimators are registered by import path: importing scikit-learn and LightGBM takes over a second,
and commands without predictions skip it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from codl.files import HOME
from codl.registry import Registry

if TYPE_CHECKING:
    from codl.predict.estimators import LatencyEstimator

#: Root folder of stored predictors, with one subfolder for each SoC.
FOLDER = HOME / "predictors"
#: The predictor of plan latencies, and of planning unless a strategy fixes another one.
DEFAULT = "codl"

#: Estimator classes by predictor name, imported on first lookup.
ESTIMATORS: Registry[type[LatencyEstimator]] = Registry("predictor")
ESTIMATORS.add_lazy("flops_linear", "codl.predict.estimators:FlopsLinear")
ESTIMATORS.add_lazy("codl_linear", "codl.predict.estimators:CodlLinear")
ESTIMATORS.add_lazy("gbdt", "codl.predict.estimators.trees:Gbdt")
ESTIMATORS.add_lazy("codl", "codl.predict.estimators.gp_ensemble:Codl")
