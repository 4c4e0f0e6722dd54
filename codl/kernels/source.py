"""The text of a kernel source, as it is compiled."""

from __future__ import annotations

from functools import cache
from importlib import resources

from codl.cache import digest


@cache
def source_text(name: str) -> str:
    """A `.cl` file by its path relative to this package, after what all of them share."""
    folder = resources.files("codl.kernels")
    return "".join(folder.joinpath(part).read_text() for part in ("common.cl", name))


@cache
def source_digest(name: str) -> str:
    """Changes whenever the text does."""
    return digest(source_text(name))[:16]
