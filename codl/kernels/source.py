"""The OpenCL source of a `KernelPlan`, assembled from `.cl` files as it is compiled.

A source is named by its path relative to this package, such as "conv2d/gpu_direct.cl"; one of
another package as "package:file.cl", relative to that. The package must be imported by then, as a
plugin is: a name that came with an executable imports nothing. A source may `#include` others by
such names, and those beside it by their own. That is expanded here: drivers see no files, and a
program's key in the cache is its whole text.
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
#: Rounds of a loop that `UNROLLED` of the common source writes out at most.
MOST_UNROLLED = 64
#: The version of OpenCL C that sources are written in, and the macro of a plan that asks for more.
STANDARD, VERSION = "-cl-std=CL1.2", "OPENCL_C"
INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def source_text(plan: KernelPlan) -> str:
    """The plan's `.cl` file after what all of them share."""
    return text_of(plan.source)


def text_of(name: str) -> str:
    """The same by the name of the file."""
    return _text((COMMON, name))


def source_digest(plan: KernelPlan) -> str:
    """Changes whenever the text does."""
    return _digest((COMMON, plan.source))


def compile_options(defines: Mapping[str, int | float | str]) -> str:
    """The compiler's options for a plan's macros, of which `VERSION` may be 300."""
    standard = "-cl-std=CL3.0" if defines.get(VERSION) == 300 else STANDARD
    return " ".join([standard, *(f"-D{key}={value}" for key, value in sorted(defines.items()))])


def third_version(opencl_version: str) -> dict[str, int]:
    """The macro that asks for OpenCL C 3.0, on a device of such a version as "OpenCL 3.0".

    Some built-in functions are there with it alone.
    """
    return {VERSION: 300} if _major(opencl_version) >= 3 else {}


def _major(opencl_version: str) -> int:
    """The first number of a version; 0 where there is none."""
    match = re.match(r"OpenCL (\d+)", opencl_version)
    return int(match[1]) if match else 0


@cache
def _text(names: tuple[str, ...]) -> str:
    return "".join(_expanded(name) for name in names)


def _expanded(name: str, includer: str = PACKAGE) -> str:
    """The text of a source, with those that it includes in their places."""
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
    """The package and the path in it of a source that one of the package `includer` names."""
    package, colon, path = name.rpartition(":")
    if colon:
        return package, path
    beside = includer != PACKAGE and resources.files(includer).joinpath(name).is_file()
    return (includer if beside else PACKAGE), name


@cache
def _digest(names: tuple[str, ...]) -> str:
    return digest(_text(names))[:16]


#: The kernel that raises a flag: a count in memory that both processors see while kernels run.
#: Counts go up and are never set back, so nobody can look at one before it is set back, or after.
FLAG_SOURCE, FLAG_KERNEL = "flag.cl", "raise_flag"


@cache
def flag_text() -> str:
    """OpenCL C 2.0: it needs atomics that the host sees, which no macro gives."""
    return resources.files(PACKAGE).joinpath(FLAG_SOURCE).read_text()


def flag_options(opencl_version: str) -> str:
    """The compiler's options for such atomics, on a device of a version such as "OpenCL 3.0"."""
    return "-cl-std=CL2.0" if _major(opencl_version) == 2 else "-cl-std=CL3.0"
