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
            import pyopencl.invoker
    finally:
        if before is None:
            del os.environ[_NO_CACHE]
        else:
            os.environ[_NO_CACHE] = before

    _write_functions_once(pyopencl)
    # Drivers chat on success too; what they say about a failure is in its exception.
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl


def _write_functions_once(pyopencl: Any) -> None:
    """Let kernels with as many arguments and the same name share the functions that set them.

    Without its cache pyopencl writes and compiles them for every kernel object: that is a
    millisecond each, and Python keeps the texts for ever. Where a version does it in another way it
    is left alone.
    """
    name, invoker = "_generate_enqueue_and_set_args_module", pyopencl.invoker
    if hasattr(invoker, name):
        setattr(invoker, name, cache(getattr(invoker, name)))
