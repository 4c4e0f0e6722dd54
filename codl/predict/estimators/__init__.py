"""The estimators behind the predictors, each a fit of latencies in milliseconds to features.

Their names are in `codl.predict`; each passes one common test.
"""
