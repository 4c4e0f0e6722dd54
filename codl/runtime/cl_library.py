"""An OpenCL library by ctypes: its functions with their types, and its errors.

Functions are symbols of a library; or, of Pixel phones, what `loadOpenCLPointer` gives; or, of a
driver that shows none, entries of the table that each of its platforms begins with (the extension
cl_khr_icd): their places there are the same in all drivers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NoReturn

CODES: Mapping[str, int] = {
    "SUCCESS": 0,
    "DEVICE_NOT_FOUND": -1,
    "DEVICE_NOT_AVAILABLE": -2,
    "COMPILER_NOT_AVAILABLE": -3,
    "MEM_OBJECT_ALLOCATION_FAILURE": -4,
    "OUT_OF_RESOURCES": -5,
    "OUT_OF_HOST_MEMORY": -6,
    "PROFILING_INFO_NOT_AVAILABLE": -7,
    "MEM_COPY_OVERLAP": -8,
    "IMAGE_FORMAT_MISMATCH": -9,
    "IMAGE_FORMAT_NOT_SUPPORTED": -10,
    "BUILD_PROGRAM_FAILURE": -11,
    "MAP_FAILURE": -12,
    "MISALIGNED_SUB_BUFFER_OFFSET": -13,
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST": -14,
    "COMPILE_PROGRAM_FAILURE": -15,
    "LINKER_NOT_AVAILABLE": -16,
    "LINK_PROGRAM_FAILURE": -17,
    "DEVICE_PARTITION_FAILED": -18,
    "KERNEL_ARG_INFO_NOT_AVAILABLE": -19,
    "INVALID_VALUE": -30,
    "INVALID_DEVICE_TYPE": -31,
    "INVALID_PLATFORM": -32,
    "INVALID_DEVICE": -33,
    "INVALID_CONTEXT": -34,
    "INVALID_QUEUE_PROPERTIES": -35,
    "INVALID_COMMAND_QUEUE": -36,
    "INVALID_HOST_PTR": -37,
    "INVALID_MEM_OBJECT": -38,
    "INVALID_IMAGE_FORMAT_DESCRIPTOR": -39,
    "INVALID_IMAGE_SIZE": -40,
    "INVALID_SAMPLER": -41,
    "INVALID_BINARY": -42,
    "INVALID_BUILD_OPTIONS": -43,
    "INVALID_PROGRAM": -44,
    "INVALID_PROGRAM_EXECUTABLE": -45,
    "INVALID_KERNEL_NAME": -46,
    "INVALID_KERNEL_DEFINITION": -47,
    "INVALID_KERNEL": -48,
    "INVALID_ARG_INDEX": -49,
    "INVALID_ARG_VALUE": -50,
    "INVALID_ARG_SIZE": -51,
    "INVALID_KERNEL_ARGS": -52,
    "INVALID_WORK_DIMENSION": -53,
    "INVALID_WORK_GROUP_SIZE": -54,
    "INVALID_WORK_ITEM_SIZE": -55,
    "INVALID_GLOBAL_OFFSET": -56,
    "INVALID_EVENT_WAIT_LIST": -57,
    "INVALID_EVENT": -58,
    "INVALID_OPERATION": -59,
    "INVALID_GL_OBJECT": -60,
    "INVALID_BUFFER_SIZE": -61,
    "INVALID_MIP_LEVEL": -62,
    "INVALID_GLOBAL_WORK_SIZE": -63,
    "INVALID_PROPERTY": -64,
    "INVALID_IMAGE_DESCRIPTOR": -65,
    "INVALID_COMPILER_OPTIONS": -66,
    "INVALID_LINKER_OPTIONS": -67,
    "INVALID_DEVICE_PARTITION_COUNT": -68,
    "PLATFORM_NOT_FOUND_KHR": -1001,
}
NAMES = {code: name for name, code in CODES.items()}


class Error(Exception):
    """A function of OpenCL failed; `routine` is its name, `code` what it returned."""

    def __init__(self, routine: str, code: int, message: str = "") -> None:
        name = NAMES.get(code, f"code {code}")
        super().__init__(f"{routine} failed: {name}{' - ' if message else ''}{message}")
        self.routine, self.code = routine, code


class RuntimeError(Error):
    """The driver could not."""


class MemoryError(Error):
    """The device has no memory left."""


class LogicError(Error):
    """The driver was asked for what cannot be."""


# Users catch them, and messages call them, by the name of what they stand in for.
for _kind in (Error, RuntimeError, MemoryError, LogicError):
    _kind.__module__ = "pyopencl"


def error_of(routine: str, code: int, message: str = "") -> Error:
    """The error of a code, of the class that pyopencl has for it."""
    if code == CODES["MEM_OBJECT_ALLOCATION_FAILURE"]:
        return MemoryError(routine, code, message)
    kind = LogicError if code <= CODES["INVALID_VALUE"] else RuntimeError
    return kind(routine, code, message)


#: Letters for the types of arguments: bit fields have 64 bits.
TYPES = {
    "p": pointer,
    "i": c_int32,
    "u": c_uint32,
    "f": c_uint64,
    "z": c_size_t,
    "s": c_char_p,
}
#: By the name of a function its place in the table of a platform, and its arguments. It returns a
#: code; or, where its last argument is `E`, an object, and the code goes where that points to.
FUNCTIONS: Mapping[str, tuple[int, str]] = {
    "clGetPlatformIDs": (0, "upp"),
    "clGetPlatformInfo": (1, "puzpp"),
    "clGetDeviceIDs": (2, "pfupp"),
    "clGetDeviceInfo": (3, "puzpp"),
    "clCreateContext": (4, "pupppE"),
    "clReleaseContext": (7, "p"),
    "clGetContextInfo": (8, "puzpp"),
    "clCreateCommandQueue": (9, "ppfE"),
    "clReleaseCommandQueue": (11, "p"),
    "clGetCommandQueueInfo": (12, "puzpp"),
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
#: Those that an inference calls.
OFTEN = (
    *("clEnqueueNDRangeKernel", "clEnqueueMapBuffer", "clEnqueueUnmapMemObject"),
    *("clFlush", "clWaitForEvents", "clGetEventInfo", "clReleaseEvent"),
)
#: What they take as numbers and as addresses costs them least in this form.
ZERO = c_uint32.from_param(0)
#: Those that return something else.
ALLOCATE, FREE = "clSVMAlloc", "clSVMFree"
SVM_FUNCTIONS: Mapping[str, tuple[int, str]] = {ALLOCATE: (126, "pfzu"), FREE: (127, "pp")}
Address = Callable[[str], int]


class Library:
    """A driver, or a loader of drivers, by its file: OpenCL's functions are its attributes.

    They raise what their codes mean; those that make objects return them. Raises `LogicError` where
    the file cannot be loaded, or is no OpenCL.
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
        if hasattr(self._file, "clGetPlatformIDs"):
            return self._symbol
        if hasattr(self._file, "loadOpenCLPointer"):
            return self._pixel()
        if hasattr(self._file, "clGetExtensionFunctionAddress"):
            return self._table()
        raise _no_platform(f"{path} is no OpenCL library")

    def _symbol(self, name: str) -> int:
        function = getattr(self._file, name, None)
        return 0 if function is None else ctypes.cast(function, pointer).value or 0

    def _pixel(self) -> Address:
        self._file.enableOpenCL()
        load = self._file.loadOpenCLPointer
        load.restype, load.argtypes = pointer, [c_char_p]
        return lambda name: load(name.encode()) or 0

    def _table(self) -> Address:
        """Of its first platform."""
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
        """A function, looked up when it is first called."""
        if name.startswith("_"):
            raise AttributeError(name)
        function = self._function(name)
        setattr(self, name, function)
        return function

    @cached_property
    def calls(self) -> SimpleNamespace:
        """What an inference calls: functions that take values of `ctypes` alone, and convert none
        of them. They raise what their codes mean, but for those that make an object.
        """
        return SimpleNamespace(**{name: self._unconverted(name) for name in OFTEN})

    def _unconverted(self, name: str) -> Any:
        if FUNCTIONS[name][1].endswith("E"):
            return CFUNCTYPE(pointer)(self._found(name))
        return self._checked(name, CFUNCTYPE(c_int32)(self._found(name)))

    def _checked(self, name: str, function: Any) -> Any:
        """A function that returns a code, raising what the code means."""
        if not name.startswith("clRelease"):  # which Python does when nobody listens
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
    """What `clEnqueueNDRangeKernel` takes between the queue and the event, converted once."""
    begin, size, group = (
        None if values is None else byref((c_size_t * len(values))(*values))
        for values in (offset, global_size, local_size)
    )
    dimensions = c_uint32.from_param(len(global_size))
    return pointer.from_param(kernel), dimensions, begin, size, group, ZERO, None


def _creating(name: str, function: Any) -> Callable[..., int]:
    """A function that makes an object; raises where it made none."""

    def create(*arguments: Any) -> int:
        code = c_int32()
        made = function(*arguments, byref(code))
        if code.value or not made:
            raise error_of(name, code.value or CODES["OUT_OF_RESOURCES"])
        return int(made)

    return create


class _Codes(dict[int, int]):
    """Looks up what a function returned: no line of Python runs, and all but a success raises."""

    def __init__(self, routine: str) -> None:
        super().__init__({0: 0})
        self._routine = routine

    def __missing__(self, code: int) -> NoReturn:
        raise error_of(self._routine, code)


def _no_platform(why: str) -> Error:
    return error_of("clGetPlatformIDs", CODES["PLATFORM_NOT_FOUND_KHR"], why)
