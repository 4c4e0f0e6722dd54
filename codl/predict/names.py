"""What predictors are called and where they lie, without the libraries that make them."""

from __future__ import annotations

from pathlib import Path

#: Where predictors are stored, a folder for each SoC.
FOLDER = Path("predictors")
#: Every estimator's name; `estimators.ESTIMATORS` has them by these.
NAMES = ("flops_linear", "codl_linear", "random_forest", "gbdt", "codl")
#: What plans are timed by, and made by where a strategy is not tied to another.
DEFAULT = "codl"
