"""The text of a plan's kernels, as it is compiled.

A source may `#include "conv2d/other.cl"`, by the path relative to this package. That is expanded
here: drivers see no files, and a program's key in the cache is its whole text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from codl.ir.digest import digest
from codl.kernels.base import KernelPlan

COMMON = "common.cl"
#: The version of OpenCL C that sources are written in.
STANDARD = "-cl-std=CL1.2"
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def source_text(plan: KernelPlan) -> str:
    """The plan's `.cl` file after what all of them share."""
    return _text((COMMON, plan.source))


def source_digest(plan: KernelPlan) -> str:
    """Changes whenever the text does."""
    return _digest((COMMON, plan.source))


def compile_options(defines: Mapping[str, int | float | str]) -> str:
    """The compiler's options for a plan's macros."""
    return " ".join([STANDARD, *(f"-D{key}={value}" for key, value in sorted(defines.items()))])


@cache
def _text(names: tuple[str, ...]) -> str:
    return "".join(_expanded(name) for name in names)


def _expanded(name: str) -> str:
    text = resources.files("codl.kernels").joinpath(name).read_text()
    return INCLUDE.sub(lambda match: _expanded(match[1]), text)


@cache
def _digest(names: tuple[str, ...]) -> str:
    return digest(_text(names))[:16]
