"""The one place that imports pyopencl: only once the loader's environment is set."""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any

from codl.optional import explained

_NO_CACHE = "PYOPENCL_NO_CACHE"


@cache
def cl_module() -> Any:
    """pyopencl; call it first inside `drivers.loaded`. Raises `MissingPackageError`."""
    before = os.environ.get(_NO_CACHE)
    # It would keep binaries of its own; `device.programs` has the only ones. It looks just once.
    os.environ[_NO_CACHE] = "1"
    try:
        with explained():
            import pyopencl
    finally:
        if before is None:
            del os.environ[_NO_CACHE]
        else:
            os.environ[_NO_CACHE] = before

    # Drivers chat on success too; what they say about a failure is in its exception.
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl
