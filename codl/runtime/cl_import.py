"""The one place that imports pyopencl: only once the loader's environment is set."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import Any

from codl.optional import explained

_NO_CACHE = "PYOPENCL_NO_CACHE"


@cache
def cl_module() -> Any:
    """pyopencl; call it first inside `drivers.loaded`. Raises `MissingPackageError`."""
    process_of_drivers()
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

    return pyopencl


@cache
def process_of_drivers() -> int:
    """The process that loads OpenCL: one forked from it has the drivers without their threads."""
    return os.getpid()


def build_program(program: Any, options: str | Sequence[str]) -> None:
    """Build without a warning: drivers chat on success too.

    What they say about a failure is in its exception.
    """
    with _quiet():
        program.build(options=options)


def make_kernel(program: Any, name: str) -> Any:
    """A kernel; those with as many arguments and the same name share functions that set them.

    Without its cache pyopencl writes and compiles them for every kernel object: that is a
    millisecond each, and Python keeps the texts for ever. Where a version does it in another way it
    is left alone.
    """
    with _written_once():
        return cl_module().Kernel(program, name)


class _Replaced:
    """A function of a module is another as long as somebody is inside.

    The rest of the process, which may use the module too, has its usual one again afterwards.
    """

    def __init__(self, module: Any, name: str, other: Callable[[Any], Any]) -> None:
        self._module, self._name = module, name
        self._usual = getattr(module, name, None)
        self._other = other(self._usual)
        self._lock, self._inside = Lock(), 0

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *error: object) -> None:
        self._change(-1)

    def _change(self, by: int) -> None:
        if self._usual is None:
            return
        with self._lock:
            self._inside += by
            setattr(self._module, self._name, self._other if self._inside else self._usual)


@cache
def _quiet() -> _Replaced:
    return _Replaced(cl_module(), "compiler_output", lambda usual: lambda text: None)


@cache
def _written_once() -> _Replaced:
    return _Replaced(cl_module().invoker, "_generate_enqueue_and_set_args_module", cache)
