"""OpenCL source of a `KernelPlan`, assembled from `.cl` files.

A source's name is its path in this package, such as "conv2d/gpu_direct.cl", or "package:file.cl" in
another package. The package must have been imported, as plugins are: a name in an executable
imports nothing. A source may `#include` others by these names, or by file name beside it. Includes
are expanded here, because drivers see no files, and the program cache is keyed by whole text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources

from codl.errors import InvalidFileError
from codl.ir.constants import digest
from codl.kernels.base import KernelPlan

PACKAGE, COMMON = "codl.kernels", "common.cl"
#: The most iterations that `UNROLLED` of the common source unrolls.
MOST_UNROLLED = 64
#: The OpenCL C version of the sources.
STANDARD = "-cl-std=CL1.2"
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@cache
def text_of(name: str) -> str:
    """The text of a source file, with the common source in front."""
    return _expanded(COMMON) + _expanded(name)


def source_digest(plan: KernelPlan) -> str:
    return _digest(plan.source)


@cache
def _digest(name: str) -> str:
    return digest(text_of(name))[:16]


def compile_options(defines: Mapping[str, int | float | str]) -> str:
    return " ".join([STANDARD, *(f"-D{key}={value}" for key, value in sorted(defines.items()))])


def _expanded(name: str, includer: str = PACKAGE) -> str:
    """The text of a source, with its includes expanded."""
    package, path = _located(name, includer)
    if package not in sys.modules:
        raise InvalidFileError(
            name,
            f"the package {package!r} of this kernel source is not imported here; it must be that "
            "of a plugin (CODL_PLUGINS, or installed).",
        )
    try:
        text = resources.files(package).joinpath(path).read_text()
    except (OSError, ImportError) as error:
        raise InvalidFileError(name, f"the kernel source cannot be read: {error}.") from error
    return INCLUDE.sub(lambda match: _expanded(match[1], package), text)


def _located(name: str, includer: str) -> tuple[str, str]:
    """The package and path of a source that a source of the package `includer` names."""
    package, colon, path = name.rpartition(":")
    if colon:
        return package, path
    beside = includer != PACKAGE and resources.files(includer).joinpath(name).is_file()
    return (includer if beside else PACKAGE), name
