"""Strategies: ways to make a plan.

Importing this package adds codl's own strategies to `base.STRATEGIES`. The planners are imported
when one of them is first used: a run of a given plan needs none.
"""

from codl.plan.strategies import ideal
from codl.plan.strategies.base import STRATEGIES, Context, Strategy

OWN = ("cpu", "gpu", "gpu-buffer", "gpu-image", "mulayer", "codl-buffer", "codl-paper", "codl")
for own in OWN:
    STRATEGIES.add_lazy(own, "codl.plan.strategies.planners")

#: The default strategy.
DEFAULT = "codl"


def find(name: str) -> Strategy:
    """A strategy by name; `ideal` is a bound and cannot be planned."""
    return STRATEGIES.find(name)


__all__ = ["DEFAULT", "STRATEGIES", "Context", "Strategy", "find", "ideal"]
