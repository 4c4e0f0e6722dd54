"""Planning without some kernel variants: what has no predictor is never chosen."""

from __future__ import annotations

from codl.plan.around import Around


class WithoutWinograd(Around):
    """Predictors that know nothing of Winograd variants.

    Nor of muLayer's targets, which do not tell variants apart.
    """

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(
            name
            for name in self.predictors.targets
            if "_winograd" not in name and not name.startswith("mulayer_")
        )
