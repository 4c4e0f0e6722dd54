"""Strategies: ways to make a plan.

Importing this package imports every module in it, and each adds its strategies to
`base.STRATEGIES`.
"""

from codl.plan.strategies import ideal
from codl.plan.strategies.base import STRATEGIES, Context, Strategy
from codl.registry import import_modules

#: The default strategy.
DEFAULT = "codl"


def find(name: str) -> Strategy:
    """A strategy by name; `ideal` is a bound and cannot be planned."""
    return STRATEGIES.find(name)


import_modules(__name__)

__all__ = ["DEFAULT", "STRATEGIES", "Context", "Strategy", "find", "ideal"]
