"""The text of a plan's kernels, as it is compiled."""

from __future__ import annotations

from functools import cache
from importlib import resources

from codl.cache import digest
from codl.kernels.base import KernelPlan

COMMON = "common.cl"


def source_text(plan: KernelPlan) -> str:
    """The plan's `.cl` file after what all of them share."""
    return _text((COMMON, plan.source))


def source_digest(plan: KernelPlan) -> str:
    """Changes whenever the text does."""
    return _digest((COMMON, plan.source))


@cache
def _text(names: tuple[str, ...]) -> str:
    folder = resources.files("codl.kernels")
    return "".join(folder.joinpath(name).read_text() for name in names)


@cache
def _digest(names: tuple[str, ...]) -> str:
    return digest(_text(names))[:16]
