"""Loading of OpenCL drivers and of an OpenCL binding, and conversion of their errors.

The binding is pyopencl, or `cl_ctypes` as its stand-in. pyopencl's loader finds drivers by `.icd`
files. Wheels' files hold placeholder paths, and their drivers need libraries of other wheels. So
codl writes an ICD folder, preloads these libraries and sets the loader's environment before
importing pyopencl. Drivers that no loader can enter need the stand-in.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

from codl.errors import DeviceError, MissingPackageError, UnknownNameError
from codl.errors import explained as missing_extra_explained
from codl.machine.driver_search import FILENAMES, MADE_BY_CODL, VENDORS, Driver

if TYPE_CHECKING:
    from codl.runtime.cl_library import Library

#: Variable that names the binding; by default pyopencl, or its stand-in if pyopencl is missing.
BINDING = "CODL_OPENCL"
BINDINGS = ("pyopencl", "ctypes")
#: Variable for the CPU that Intel's runtime compiles for, and vector widths of narrow CPUs.
TARGET = "CL_CONFIG_CPU_TARGET_ARCH"
TARGET_FLOATS = {"corei7": 4, "corei7-avx": 8, "core-avx2": 8}
#: Variables for the number of workers of CPU drivers.
COUNTS = ("DPCPP_CPU_NUM_CUS", "POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")
LOADER_ENTRY, FUNCTION_ENTRY = "clIcdGetPlatformIDsKHR", "clGetPlatformIDs"


def needs_stand_in(driver: Driver) -> bool:
    """Load a driver, which may crash; returns whether OpenCL's loader finds no entry in it.

    Such a driver exports its functions, or, on Pixels, a function that returns each of them. Raises
    `DeviceError` for other libraries.
    """
    if not driver.library:
        raise DeviceError(f"{driver.file} names no library: remove it, or write one's path to it.")
    named = f" ({driver.file} names it)" if driver.file else ""
    try:
        library = ctypes.CDLL(driver.library)
    except OSError as error:
        raise DeviceError(f"It cannot be loaded: {error}{named}.") from error
    if hasattr(library, LOADER_ENTRY):
        return False
    if hasattr(library, "clGetExtensionFunctionAddress"):
        address_of = library.clGetExtensionFunctionAddress
        address_of.argtypes, address_of.restype = [ctypes.c_char_p], ctypes.c_void_p
        if address_of(LOADER_ENTRY.encode()):
            return False
    if hasattr(library, "loadOpenCLPointer") or hasattr(library, FUNCTION_ENTRY):
        return True
    raise DeviceError(
        f"{driver.library} is no OpenCL driver{named}: it has neither {LOADER_ENTRY} nor "
        f"{FUNCTION_ENTRY}."
    )


@contextmanager
def loaded(wanted: Sequence[Driver], *, cores: Sequence[int]) -> Iterator[None]:
    """Context in which the first request for platforms finds exactly the drivers `wanted`.

    `cores` are the host cores of a CPU device, empty for a GPU. The device's context and queue must
    be made inside, since drivers read their settings late. The loader searches once per process;
    later contexts find the same drivers.
    """
    # One worker per core, as the waiting thread takes no part in kernels.
    settings = dict.fromkeys(COUNTS, str(len(cores))) if cores else {}
    with (
        TemporaryDirectory(prefix=MADE_BY_CODL) as folder,
        _environment({VENDORS: folder, FILENAMES: "", **settings}),
    ):
        for library in (path for driver in wanted for path in driver.preload):
            with suppress(OSError):  # the driver reports libraries that it really needs
                ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        binding = os.environ.get(BINDING, "")
        for index, driver in enumerate(wanted):
            with suppress(DeviceError):
                if needs_stand_in(driver):
                    binding = binding or "ctypes"
                (Path(folder) / f"{index}.icd").write_text(driver.library + "\n")
        with _environment({BINDING: binding} if binding else {}):
            yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables inside, and restore them afterwards for child processes, which choose anew."""
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


@cache
def cl_module() -> Any:
    """The OpenCL binding; call it inside `loaded` first. Raises `CodlError` if it is missing."""
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
    """Whether the binding is the stand-in for pyopencl."""
    return bool(cl_module().__name__ != "pyopencl")


@cache
def loader() -> Library:
    """The functions of pyopencl's loader; raises `LogicError` if it exports none."""
    from codl.runtime.cl_library import Library  # needed beside a GPU alone

    return Library(cl_module()._cl.__file__)


def _pyopencl() -> Any:
    # pyopencl would cache binaries beside those of `device.programs`. It reads the variable once.
    with _environment({"PYOPENCL_NO_CACHE": "1"}), missing_extra_explained():
        import pyopencl
        import pyopencl.invoker

    return pyopencl


@cache
def process_of_drivers() -> int:
    """Id of the process that loads OpenCL; its forks have the drivers without their threads."""
    return os.getpid()


def build_program(program: Any, options: str | Sequence[str]) -> None:
    """Build a program without pyopencl's warning of compiler output; errors contain this output."""
    with _replaced():
        program.build(options=options)


def make_kernel(program: Any, name: str) -> Any:
    """A kernel whose argument-setting functions are shared by kernels with the same signature.

    Otherwise pyopencl writes and compiles such functions for every kernel object: a millisecond
    each, and Python keeps their texts. Other versions of pyopencl are left unchanged.
    """
    with _replaced():
        return cl_module().Kernel(program, name)


class _Replaced:
    """Replaces functions of pyopencl while any thread is inside, and restores them afterwards."""

    def __init__(self) -> None:
        cl, generate = cl_module(), "_generate_enqueue_and_set_args_module"
        self._lock, self._inside = Lock(), 0
        invoker = getattr(cl, "invoker", None)
        #: Module and name of each function, with the usual one and codl's.
        self._functions: list[tuple[Any, str, Any, Any]] = []
        if hasattr(cl, "compiler_output"):
            self._functions.append((cl, "compiler_output", cl.compiler_output, lambda text: None))
        if usual := getattr(invoker, generate, None):
            self._functions.append((invoker, generate, usual, cache(usual)))

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *error: object) -> None:
        self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._inside += by
            for module, name, usual, own in self._functions:
                setattr(module, name, own if self._inside else usual)


@cache
def _replaced() -> _Replaced:
    return _Replaced()


#: Meanings of OpenCL's error codes.
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
    """Turn a driver's error into a `DeviceError` with the action, the code and its meaning."""
    try:
        yield
    except Exception as error:
        if not any(kind.__module__.startswith("pyopencl") for kind in type(error).__mro__):
            raise
        code = getattr(error, "code", None)
        reason = str(error) if code is None else describe(code)
        raise DeviceError(f"{action} failed ({reason}).") from error


def describe(code: int) -> str:
    """OpenCL's name of an error code, such as OUT_OF_RESOURCES, with its meaning."""
    name = str(cl_module().status_code.to_string(code, "code %d"))
    return f"{name}: {_MEANINGS[name]}" if name in _MEANINGS else name
