"""The kernel that raises a flag: a count in memory that both processors see while kernels run.

Counts go up and are never set back, so nobody can look at one before it is set back, or after.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from codl.kernels.source import PACKAGE

SOURCE, KERNEL = "flag.cl", "raise_flag"


@cache
def flag_text() -> str:
    """OpenCL C 2.0: it needs atomics that the host sees, which no macro gives."""
    return resources.files(PACKAGE).joinpath(SOURCE).read_text()


def flag_options(opencl_version: str) -> str:
    """The compiler's options for such atomics, on a device of a version such as "OpenCL 3.0"."""
    words = opencl_version.split()
    is_second = len(words) > 1 and words[1].startswith("2")
    return "-cl-std=CL2.0" if is_second else "-cl-std=CL3.0"
