"""Latency predictors: features, estimators, training, and predictors stored for the planner.

Nothing is imported here: scikit-learn takes more than a second, which a command that predicts
nothing must not spend.
"""
