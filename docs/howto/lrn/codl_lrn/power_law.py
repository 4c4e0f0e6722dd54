from __future__ import annotations

from codl.predict import ESTIMATORS

ESTIMATORS.add_lazy("power_law", f"{__package__}.estimator:PowerLaw")
