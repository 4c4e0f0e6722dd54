"""The text of a kernel source, as it is compiled.

A source may `#include "conv2d/other.cl"`, by the path relative to this package. That is expanded
here: drivers see no files, and a program's key in the cache is its whole text.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from codl.cache import digest

INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@cache
def source_text(name: str) -> str:
    """A `.cl` file by its path relative to this package, after what all of them share."""
    return _expanded("common.cl") + _expanded(name)


def _expanded(name: str) -> str:
    text = resources.files("codl.kernels").joinpath(name).read_text()
    return INCLUDE.sub(lambda match: _expanded(match[1]), text)


@cache
def source_digest(name: str) -> str:
    """Changes whenever the text does."""
    return digest(source_text(name))[:16]
