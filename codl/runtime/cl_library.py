"""Access to an OpenCL library through ctypes: its typed functions, and its errors.

Functions are exported symbols, or, on Pixel phones, results of `loadOpenCLPointer`. A driver
without exports has them in a table at the start of each platform (extension cl_khr_icd), at the
same places in all drivers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NoReturn

#: Names of error codes, counting down from a first one.
_NAMES: Mapping[int, str] = {
    0: (
        "SUCCESS DEVICE_NOT_FOUND DEVICE_NOT_AVAILABLE COMPILER_NOT_AVAILABLE "
        "MEM_OBJECT_ALLOCATION_FAILURE OUT_OF_RESOURCES OUT_OF_HOST_MEMORY "
        "PROFILING_INFO_NOT_AVAILABLE MEM_COPY_OVERLAP IMAGE_FORMAT_MISMATCH "
        "IMAGE_FORMAT_NOT_SUPPORTED BUILD_PROGRAM_FAILURE MAP_FAILURE "
        "MISALIGNED_SUB_BUFFER_OFFSET EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST "
        "COMPILE_PROGRAM_FAILURE LINKER_NOT_AVAILABLE LINK_PROGRAM_FAILURE "
        "DEVICE_PARTITION_FAILED KERNEL_ARG_INFO_NOT_AVAILABLE"
    ),
    -30: (
        "INVALID_VALUE INVALID_DEVICE_TYPE INVALID_PLATFORM INVALID_DEVICE INVALID_CONTEXT "
        "INVALID_QUEUE_PROPERTIES INVALID_COMMAND_QUEUE INVALID_HOST_PTR INVALID_MEM_OBJECT "
        "INVALID_IMAGE_FORMAT_DESCRIPTOR INVALID_IMAGE_SIZE INVALID_SAMPLER INVALID_BINARY "
        "INVALID_BUILD_OPTIONS INVALID_PROGRAM INVALID_PROGRAM_EXECUTABLE INVALID_KERNEL_NAME "
        "INVALID_KERNEL_DEFINITION INVALID_KERNEL INVALID_ARG_INDEX INVALID_ARG_VALUE "
        "INVALID_ARG_SIZE INVALID_KERNEL_ARGS INVALID_WORK_DIMENSION INVALID_WORK_GROUP_SIZE "
        "INVALID_WORK_ITEM_SIZE INVALID_GLOBAL_OFFSET INVALID_EVENT_WAIT_LIST INVALID_EVENT "
        "INVALID_OPERATION INVALID_GL_OBJECT INVALID_BUFFER_SIZE INVALID_MIP_LEVEL "
        "INVALID_GLOBAL_WORK_SIZE INVALID_PROPERTY INVALID_IMAGE_DESCRIPTOR "
        "INVALID_COMPILER_OPTIONS INVALID_LINKER_OPTIONS INVALID_DEVICE_PARTITION_COUNT"
    ),
    -1001: "PLATFORM_NOT_FOUND_KHR",
}
CODES: Mapping[str, int] = {
    name: first - at for first, names in _NAMES.items() for at, name in enumerate(names.split())
}
NAMES = {code: name for name, code in CODES.items()}


class Error(Exception):
    """A failed OpenCL function; `routine` is its name, `code` its result."""

    def __init__(self, routine: str, code: int, message: str = "") -> None:
        name = NAMES.get(code, f"code {code}")
        super().__init__(f"{routine} failed: {name}{' - ' if message else ''}{message}")
        self.routine, self.code = routine, code


class RuntimeError(Error):
    """A failure of the driver."""


class MemoryError(Error):
    """The device has no memory left."""


class LogicError(Error):
    """An invalid request to the driver."""


# Callers catch these classes, and messages name them, as errors of pyopencl.
for _kind in (Error, RuntimeError, MemoryError, LogicError):
    _kind.__module__ = "pyopencl"


def error_of(routine: str, code: int, message: str = "") -> Error:
    """The error of a code, in pyopencl's class."""
    if code == CODES["MEM_OBJECT_ALLOCATION_FAILURE"]:
        return MemoryError(routine, code, message)
    kind = LogicError if code <= CODES["INVALID_VALUE"] else RuntimeError
    return kind(routine, code, message)


#: ctypes of the argument letters below; bit fields have 64 bits.
TYPES = {
    "p": pointer,
    "i": c_int32,
    "u": c_uint32,
    "f": c_uint64,
    "z": c_size_t,
    "s": c_char_p,
}
#: Functions by name: place in a platform's table, and letters of the arguments. A function returns
#: a code; with the last letter `E`, it returns an object, and that argument points to the code.
FUNCTIONS: Mapping[str, tuple[int, str]] = {
    "clGetPlatformIDs": (0, "upp"),
    "clGetPlatformInfo": (1, "puzpp"),
    "clGetDeviceIDs": (2, "pfupp"),
    "clGetDeviceInfo": (3, "puzpp"),
    "clCreateContext": (4, "pupppE"),
    "clReleaseContext": (7, "p"),
    "clCreateCommandQueue": (9, "ppfE"),
    "clReleaseCommandQueue": (11, "p"),
    "clCreateBuffer": (14, "pfzpE"),
    "clReleaseMemObject": (18, "p"),
    "clGetMemObjectInfo": (20, "puzpp"),
    "clCreateProgramWithSource": (26, "puppE"),
    "clCreateProgramWithBinary": (27, "puppppE"),
    "clReleaseProgram": (29, "p"),
    "clBuildProgram": (30, "pupspp"),
    "clGetProgramInfo": (32, "puzpp"),
    "clGetProgramBuildInfo": (33, "ppuzpp"),
    "clCreateKernel": (34, "psE"),
    "clReleaseKernel": (37, "p"),
    "clSetKernelArg": (38, "puzp"),
    "clGetKernelInfo": (39, "puzpp"),
    "clGetKernelWorkGroupInfo": (40, "ppuzpp"),
    "clWaitForEvents": (41, "up"),
    "clGetEventInfo": (42, "puzpp"),
    "clReleaseEvent": (44, "p"),
    "clGetEventProfilingInfo": (45, "puzpp"),
    "clFlush": (46, "p"),
    "clFinish": (47, "p"),
    "clEnqueueReadBuffer": (48, "ppuzzpupp"),
    "clEnqueueWriteBuffer": (49, "ppuzzpupp"),
    "clEnqueueMapBuffer": (56, "ppufzzuppE"),
    "clEnqueueUnmapMemObject": (58, "pppupp"),
    "clEnqueueNDRangeKernel": (59, "ppupppupp"),
    "clCreateImage": (96, "pfpppE"),
    "clEnqueueFillBuffer": (102, "pppzzzupp"),
    "clEnqueueFillImage": (103, "pppppupp"),
    "clEnqueueMarkerWithWaitList": (105, "pupp"),
    "clCreateCommandQueueWithProperties": (123, "pppE"),
    "clSetKernelArgSVMPointer": (134, "pup"),
}
#: Functions that an inference calls.
OFTEN = (
    *("clEnqueueNDRangeKernel", "clEnqueueMapBuffer", "clEnqueueUnmapMemObject"),
    *("clFlush", "clWaitForEvents", "clGetEventInfo", "clReleaseEvent"),
)
#: Zero, converted for functions without argument conversion.
ZERO = c_uint32.from_param(0)
#: Functions that return no code.
ALLOCATE, FREE = "clSVMAlloc", "clSVMFree"
SVM_FUNCTIONS: Mapping[str, tuple[int, str]] = {ALLOCATE: (126, "pfzu"), FREE: (127, "pp")}
Address = Callable[[str], int]


class Library:
    """An OpenCL driver or loader, loaded from a file; its attributes are OpenCL's functions.

    A function raises the error of its code; one that makes an object returns it. The constructor
    raises `LogicError` for a file that cannot be loaded or is not OpenCL.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = ctypes.CDLL(path)
        except OSError as error:
            raise _no_platform(str(error)) from error
        self._address = self._resolver(path)
        if not self._address("clGetPlatformIDs"):
            raise _no_platform(f"{path} shows no function")

    def _resolver(self, path: str) -> Address:
        file = self._file
        if hasattr(file, "clGetPlatformIDs"):
            return lambda name: ctypes.cast(getattr(file, name, 0), pointer).value or 0
        if hasattr(file, "loadOpenCLPointer"):  # a Pixel's
            file.enableOpenCL()
            load = file.loadOpenCLPointer
            load.restype, load.argtypes = pointer, [c_char_p]
            return lambda name: load(name.encode()) or 0
        if hasattr(file, "clGetExtensionFunctionAddress"):
            return self._table()
        raise _no_platform(f"{path} is no OpenCL library")

    def _table(self) -> Address:
        """A look-up of functions in the table of the first platform."""
        find = self._file.clGetExtensionFunctionAddress
        find.restype, find.argtypes = pointer, [c_char_p]
        address = find(b"clIcdGetPlatformIDsKHR")
        if not address:
            raise _no_platform("the driver shows no function")
        platform, count = pointer(), c_uint32()
        listing = CFUNCTYPE(c_int32, c_uint32, pointer, pointer)(address)
        code = listing(1, byref(platform), byref(count))
        if code or not count.value:
            raise error_of("clIcdGetPlatformIDsKHR", code or CODES["PLATFORM_NOT_FOUND_KHR"])
        assert platform.value is not None
        entries = ctypes.cast(platform.value, POINTER(POINTER(pointer))).contents
        places = {**FUNCTIONS, **SVM_FUNCTIONS}
        return lambda name: entries[places[name][0]] or 0

    def __getattr__(self, name: str) -> Any:
        """The OpenCL function of a name; it is looked up once, at the first access."""
        if name.startswith("_"):
            raise AttributeError(name)
        function = self._function(name)
        setattr(self, name, function)
        return function

    @cached_property
    def calls(self) -> SimpleNamespace:
        """The functions of an inference, which take ctypes values without converting them.

        They raise the errors of their codes, except for functions that make objects.
        """
        makes = {name: FUNCTIONS[name][1].endswith("E") for name in OFTEN}
        made = {n: CFUNCTYPE(pointer if makes[n] else c_int32)(self._found(n)) for n in OFTEN}
        return SimpleNamespace(
            **{n: f if makes[n] else self._checked(n, f) for n, f in made.items()}
        )

    def _checked(self, name: str, function: Any) -> Any:
        """A function that raises the error of its code."""
        if not name.startswith("clRelease"):  # called by the garbage collector
            function.restype = _Codes(name).__getitem__
        return function

    def _function(self, name: str) -> Any:
        if name in SVM_FUNCTIONS:
            result = pointer if name == ALLOCATE else None
            return self._made(name, result, SVM_FUNCTIONS[name][1])
        _, arguments = FUNCTIONS[name]
        if arguments.endswith("E"):
            return _creating(name, self._made(name, pointer, arguments[:-1] + "p"))
        return self._checked(name, self._made(name, c_int32, arguments))

    def _made(self, name: str, result: Any, arguments: str) -> Any:
        return CFUNCTYPE(result, *(TYPES[letter] for letter in arguments))(self._found(name))

    def _found(self, name: str) -> int:
        if not (address := self._address(name)):
            raise error_of(name, CODES["INVALID_OPERATION"], "the driver has no such function")
        return address


def launch_arguments(
    kernel: int,
    global_size: Sequence[int],
    local_size: Sequence[int] | None,
    offset: Sequence[int] | None,
) -> tuple[Any, ...]:
    """Arguments of `clEnqueueNDRangeKernel` between queue and event, converted once."""
    begin, size, group = (
        None if values is None else byref((c_size_t * len(values))(*values))
        for values in (offset, global_size, local_size)
    )
    dimensions = c_uint32.from_param(len(global_size))
    return pointer.from_param(kernel), dimensions, begin, size, group, ZERO, None


def _creating(name: str, function: Any) -> Callable[..., int]:
    """A function that makes an object, or raises an error."""

    def create(*arguments: Any) -> int:
        code = c_int32()
        made = function(*arguments, byref(code))
        if code.value or not made:
            raise error_of(name, code.value or CODES["OUT_OF_RESOURCES"])
        return int(made)

    return create


class _Codes(dict[int, int]):
    """Checks a code by look-up: success runs no Python code, and any other code raises."""

    def __init__(self, routine: str) -> None:
        super().__init__({0: 0})
        self._routine = routine

    def __missing__(self, code: int) -> NoReturn:
        raise error_of(self._routine, code)


def _no_platform(why: str) -> Error:
    return error_of("clGetPlatformIDs", CODES["PLATFORM_NOT_FOUND_KHR"], why)
