"""Strategies: ways to make a plan.

Importing this package adds codl's own strategies to `base.STRATEGIES`.
"""

from codl.plan.strategies import ideal, planners
from codl.plan.strategies.base import STRATEGIES, Context, Strategy

#: The default strategy.
DEFAULT = "codl"


def find(name: str) -> Strategy:
    """A strategy by name; `ideal` is a bound and cannot be planned."""
    return STRATEGIES.find(name)


__all__ = ["DEFAULT", "STRATEGIES", "Context", "Strategy", "find", "ideal", "planners"]
