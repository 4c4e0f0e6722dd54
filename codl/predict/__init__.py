"""Latency predictors: features, estimators, training, and predictors stored for the planner."""

from codl.predict.estimators import ESTIMATORS
from codl.predict.features import mulayer_target, sharing_target
from codl.predict.predictors import Predictors, load
from codl.predict.store import FOLDER
from codl.predict.training import TrainReport, train

__all__ = [
    "ESTIMATORS",
    "FOLDER",
    "Predictors",
    "TrainReport",
    "load",
    "mulayer_target",
    "sharing_target",
    "train",
]
