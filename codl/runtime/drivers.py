"""OpenCL drivers and pyopencl: drivers are made loadable, pyopencl, or what stands in for it, is
imported once that is done, and errors of drivers become a `DeviceError`.

The loader finds a driver through `.icd` files. Those of wheels hold placeholder paths and need
libraries of other wheels, so codl writes an ICD folder of its own, preloads those libraries and
sets the loader's environment. All of that must happen before pyopencl is imported. A driver that no
loader can enter is one for the stand-in, which needs no loader.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from codl.boundary import MissingPackageError
from codl.boundary import explained as missing_extra_explained
from codl.errors import DeviceError, UnknownNameError
from codl.runtime.cl_library import Library
from codl.runtime.driver_search import FILENAMES, MADE_BY_CODL, VENDORS, Driver, ways_of

#: Names what calls OpenCL; without it pyopencl, or where that is not installed what stands in
#: for it.
BINDING = "CODL_OPENCL"
BINDINGS = ("pyopencl", "ctypes")
#: Where Intel's runtime is told which CPU to compile for, and the floats in vectors of those that
#: have narrower ones than most.
TARGET = "CL_CONFIG_CPU_TARGET_ARCH"
TARGET_FLOATS = {"corei7": 4, "corei7-avx": 8, "core-avx2": 8}
#: Where drivers for a CPU are told how many workers to have.
COUNTS = ("DPCPP_CPU_NUM_CUS", "POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")


@contextmanager
def loaded(wanted: Sequence[Driver], *, cores: Sequence[int]) -> Iterator[None]:
    """A context in which pyopencl, asked for its platforms for the first time, finds `wanted`.

    `cores`: the host cores of a CPU device; empty for a GPU. Its context and its queue are made
    inside, too: drivers look for such settings when they first need them. The loader looks only
    once in a process: where it has, it finds what it did.
    """
    # One worker a core, and the thread that waits takes no part in the kernels.
    settings = dict.fromkeys(COUNTS, str(len(cores))) if cores else {}
    with (
        TemporaryDirectory(prefix=MADE_BY_CODL) as folder,
        _environment({VENDORS: folder, FILENAMES: "", **settings}),
    ):
        for library in (path for driver in wanted for path in driver.preload):
            with suppress(OSError):  # the driver reports what it really misses
                ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        ways = ways_of(wanted)
        for index, driver in enumerate(ways):
            (Path(folder) / f"{index}.icd").write_text(driver.library + "\n")
        needs_none = any(entry != "loader" for entry in ways.values())
        with _environment({BINDING: os.environ.get(BINDING) or "ctypes"} if needs_none else {}):
            yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """This process's environment with these values inside: programs that it starts have their own
    OpenCL.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_NO_CACHE = "PYOPENCL_NO_CACHE"


@cache
def cl_module() -> Any:
    """pyopencl or its stand-in; call it first inside `loaded`.

    Raises `CodlError` where `BINDING` names something else, or what is not installed.
    """
    process_of_drivers()
    wanted = os.environ.get(BINDING, "")
    if wanted and wanted not in BINDINGS:
        raise UnknownNameError(f"{BINDING} names", wanted, BINDINGS)
    try:
        if wanted != "ctypes":
            return _pyopencl()
    except MissingPackageError:
        if wanted:
            raise
    from codl.runtime import cl_ctypes

    return cl_ctypes


@cache
def is_stand_in() -> bool:
    """Whether the module is not pyopencl itself."""
    return bool(cl_module().__name__ != "pyopencl")


def binding() -> str:
    """What calls OpenCL in this process; "" where nothing does yet."""
    if not cl_module.cache_info().currsize:
        return ""
    return "ctypes" if is_stand_in() else "pyopencl"


@cache
def loader() -> Library:
    """The functions of the loader that pyopencl uses; raises `LogicError` where it shows none."""
    return Library(cl_module()._cl.__file__)


def _pyopencl() -> Any:
    before = os.environ.get(_NO_CACHE)
    # It would keep binaries of its own; `device.programs` has the only ones. It looks just once.
    os.environ[_NO_CACHE] = "1"
    try:
        with missing_extra_explained():
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
    with _replaced("compiler_output"):
        program.build(options=options)


def make_kernel(program: Any, name: str) -> Any:
    """A kernel; those with as many arguments and the same name share functions that set them.

    Without its cache pyopencl writes and compiles them for every kernel object: that is a
    millisecond each, and Python keeps the texts for ever. Where a version does it in another way it
    is left alone.
    """
    with _replaced("invoker"):
        return cl_module().Kernel(program, name)


class _Replaced:
    """A function of a module is another as long as somebody is inside.

    The rest of the process, which may use the module too, has its usual one again afterwards.
    """

    def __init__(self, module: Any, name: str, other: Callable[[Any], Any]) -> None:
        self._module, self._name = module, name
        self._usual = getattr(module, name, None)
        self._other = None if self._usual is None else other(self._usual)
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
def _replaced(name: str) -> _Replaced:
    cl = cl_module()
    if name == "invoker":
        module = getattr(cl, "invoker", None)
        return _Replaced(module, "_generate_enqueue_and_set_args_module", cache)
    return _Replaced(cl, name, lambda usual: lambda text: None)


#: What OpenCL's codes say to somebody who does not know them by heart.
_MEANINGS = {
    "OUT_OF_RESOURCES": "a work-group needs more registers or local memory than the device has, "
    "or another process took them",
    "OUT_OF_HOST_MEMORY": "the host has too little memory left",
    "MEM_OBJECT_ALLOCATION_FAILURE": "the device has too little memory left",
    "INVALID_BUFFER_SIZE": "a buffer is larger than the device allows",
    "INVALID_IMAGE_SIZE": "an image is larger than the device allows",
    "INVALID_WORK_GROUP_SIZE": "a work-group is larger than the kernel allows, or does not divide "
    "the global size",
    "INVALID_WORK_ITEM_SIZE": "a work-group is longer in one dimension than the device allows",
    "INVALID_KERNEL_NAME": "the built program has no such kernel: its source defines none, or the "
    "driver's compiler lost it",
    "INVALID_KERNEL_ARGS": "an argument is missing or is not what the kernel declares",
    "DEVICE_NOT_AVAILABLE": "the device is gone, or its driver was reset",
    "INVALID_COMMAND_QUEUE": "the device is gone, or its driver was reset",
}


@contextmanager
def as_device_error(action: str) -> Iterator[None]:
    """Turn what a driver raises inside into a `DeviceError`: what failed, the code, its meaning."""
    try:
        yield
    except Exception as error:
        if not any(kind.__module__.startswith("pyopencl") for kind in type(error).__mro__):
            raise
        code = getattr(error, "code", None)
        reason = str(error) if code is None else describe(code)
        raise DeviceError(f"{action} failed ({reason}).") from error


def describe(code: int) -> str:
    """OpenCL's name of an error's code, such as OUT_OF_RESOURCES, and what it means."""
    name = code_name(code)
    return f"{name}: {_MEANINGS[name]}" if name in _MEANINGS else name


def code_name(code: int) -> str:
    return str(cl_module().status_code.to_string(code, "code %d"))
