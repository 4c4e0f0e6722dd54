"""The one place that imports pyopencl: only once the loader's environment is set."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any


@cache
def cl_module() -> Any:
    """pyopencl; call it first inside `drivers.loaded`."""
    import pyopencl

    # Drivers chat on success too; what they say about a failure is in its exception.
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl
