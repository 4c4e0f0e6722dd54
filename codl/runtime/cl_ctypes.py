"""A stand-in for pyopencl by ctypes: what codl uses of it, under the same names.

It compiles nothing when it is installed, and loads drivers by itself: those that the folder
OCL_ICD_VENDORS names, as an ICD loader would. So it is what a device has that pyopencl has no wheel
for and whose driver no loader finds.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.runtime import cl_constants
from codl.runtime.cl_constants import (
    channel_order,
    channel_type,
    command_execution_status,
    command_queue_properties,
    device_svm_capabilities,
    device_type,
    kernel_work_group_info,
    map_flags,
    mem_flags,
    mem_object_type,
    program_build_info,
    program_info,
    status_code,
    svm_mem_flags,
)
from codl.runtime.cl_library import (
    CODES,
    ZERO,
    Error,
    Library,
    LogicError,
    MemoryError,
    RuntimeError,
    error_of,
    launch_arguments,
)

#: What users have of other modules by this one.
__all__ = [
    "LogicError",
    "MemoryError",
    "RuntimeError",
    "channel_order",
    "channel_type",
    "command_execution_status",
    "command_queue_properties",
    "device_svm_capabilities",
    "map_flags",
    "mem_flags",
    "status_code",
]
Sizes: TypeAlias = tuple[int, ...]
#: What functions that convert nothing take.
ONE = c_uint32.from_param(1)
STATUS = c_uint32.from_param(cl_constants.STATUS), c_size_t.from_param(4)


def _told(function: Any, arguments: tuple[Any, ...], kind: Any) -> Any:
    """What a function for information tells, of a type; `[type]` is several."""
    is_text, several = kind is str, isinstance(kind, list)
    if not is_text and not several:
        value = kind()
        function(*arguments, ctypes.sizeof(value), byref(value), None)
        return value.value
    size = c_size_t()
    function(*arguments, 0, None, byref(size))
    raw = ctypes.create_string_buffer(max(size.value, 1))
    function(*arguments, size.value, raw, None)
    if is_text:
        return raw.value.decode(errors="replace")
    (item,) = kind
    return list((item * (size.value // ctypes.sizeof(item))).from_buffer(raw))


class _Object:
    """An object of OpenCL; `int_ptr` is its address, `handle` the same as functions take it that
    convert nothing. It is released when Python lets it go.
    """

    #: Of the functions that give information and that release.
    INFO: ClassVar[str] = ""
    RELEASE: ClassVar[str] = ""
    INFOS: ClassVar[cl_constants.Infos] = {}

    def __init__(self, library: Library, address: int) -> None:
        self.library, self.int_ptr, self.handle = library, address, pointer.from_param(address)
        self._release = getattr(library, self.RELEASE) if self.RELEASE else None

    def __del__(self) -> None:
        release = self.__dict__.get("_release")
        if release is not None:
            release(self.int_ptr)

    def __getattr__(self, name: str) -> Any:
        if name not in self.INFOS:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        number, kind = self.INFOS[name]
        return _told(getattr(self.library, self.INFO), (self.int_ptr, number), kind)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.int_ptr == self.int_ptr

    def __hash__(self) -> int:
        return hash(self.int_ptr)


def _addresses(objects: Sequence[_Object]) -> Any:
    return (pointer * len(objects))(*(item.int_ptr for item in objects))


class Platform(_Object):
    INFO, INFOS = "clGetPlatformInfo", cl_constants.PLATFORM

    def get_devices(self, device_type: int = device_type.ALL) -> list[Device]:
        """Its devices of a type; none is an empty list."""
        count = c_uint32()
        list_devices = self.library.clGetDeviceIDs
        try:
            list_devices(self.int_ptr, device_type, 0, None, byref(count))
        except Error as error:
            if error.code != CODES["DEVICE_NOT_FOUND"]:
                raise
            return []
        devices = (pointer * count.value)()
        list_devices(self.int_ptr, device_type, count, devices, None)
        return [Device(self.library, address) for address in devices if address]


class Device(_Object):
    INFO, INFOS = "clGetDeviceInfo", cl_constants.DEVICE

    @property
    def platform(self) -> Platform:
        told = _told(self.library.clGetDeviceInfo, (self.int_ptr, 0x1031), pointer)
        return Platform(self.library, told)


@cache
def _libraries(folder: str) -> tuple[Library, ...]:
    """Those that the files of a folder name, in order; what cannot be loaded is left out.

    Raises the last one's error where none can.
    """
    files = sorted(Path(folder).glob("*.icd")) if folder else []
    libraries, problem = [], error_of("clGetPlatformIDs", CODES["PLATFORM_NOT_FOUND_KHR"])
    for file in files:
        try:
            libraries.append(Library(file.read_text().strip()))
        except Error as error:
            problem = error
    if not libraries:
        raise problem
    return tuple(libraries)


@cache
def get_platforms() -> tuple[Platform, ...]:
    """The platforms of the drivers that OCL_ICD_VENDORS names; it looks only once in a process."""
    platforms: list[Platform] = []
    for library in _libraries(os.environ.get("OCL_ICD_VENDORS", "")):
        count = c_uint32()
        library.clGetPlatformIDs(0, None, byref(count))
        found = (pointer * count.value)()
        library.clGetPlatformIDs(count, found, None)
        platforms += [Platform(library, address) for address in found if address]
    return tuple(platforms)


class Context(_Object):
    INFO, RELEASE = "clGetContextInfo", "clReleaseContext"

    def __init__(self, devices: Sequence[Device], properties: Iterable[int] = ()) -> None:
        """On some devices; `properties` are numbers and values, without the zero at the end."""
        library, values = devices[0].library, [*properties, 0]
        wanted = (ctypes.c_ssize_t * len(values))(*values) if len(values) > 1 else None
        addresses = _addresses(devices)
        made = library.clCreateContext(wanted, len(devices), addresses, None, None)
        super().__init__(library, made)

    @property
    def devices(self) -> list[Device]:
        told = _told(self.library.clGetContextInfo, (self.int_ptr, 0x1081), [pointer])
        return [Device(self.library, address) for address in told]


class CommandQueue(_Object):
    INFO, RELEASE = "clGetCommandQueueInfo", "clReleaseCommandQueue"

    def __init__(
        self,
        context: Context,
        device: Device | None = None,
        properties: int | Sequence[int] = 0,
    ) -> None:
        """With flags, or with a list of numbers of properties and their values."""
        library, on = context.library, device or context.devices[0]
        if isinstance(properties, int):
            made = library.clCreateCommandQueue(context.int_ptr, on.int_ptr, properties)
        else:
            values = (c_uint64 * (len(properties) + 1))(*properties, 0)
            made = library.clCreateCommandQueueWithProperties(context.int_ptr, on.int_ptr, values)
        super().__init__(library, made)
        self.context, self.device, self.calls = context, on, library.calls
        self.event, self.flush = _event_class(library), partial(self.calls.clFlush, self.handle)
        #: Takes `launch_arguments` and where an event goes.
        self.enqueue = partial(self.calls.clEnqueueNDRangeKernel, self.handle)

    def launch(self, arguments: tuple[Any, ...]) -> Event:
        """Enqueue a kernel, by `launch_arguments`."""
        event = self.event()
        self.enqueue(*arguments, byref(event))
        return event

    def finish(self) -> None:
        self.library.clFinish(self.int_ptr)


# Memory.


class MemoryObject(_Object):
    INFO, RELEASE, INFOS = "clGetMemObjectInfo", "clReleaseMemObject", cl_constants.MEMORY

    def pass_to(self, kernel: Kernel, index: int) -> None:
        value = pointer(self.int_ptr)
        self.library.clSetKernelArg(kernel.int_ptr, index, ctypes.sizeof(value), byref(value))


class Buffer(MemoryObject):
    def __init__(
        self, context: Context, flags: int, size: int = 0, hostbuf: NDArray[Any] | None = None
    ) -> None:
        """Of a size in bytes, or with what an array holds."""
        host = None if hostbuf is None else hostbuf.ctypes.data
        size = size if hostbuf is None else hostbuf.nbytes
        made = context.library.clCreateBuffer(context.int_ptr, flags, size, host)
        super().__init__(context.library, made)


class ImageFormat(ctypes.Structure):
    _fields_ = (("channel_order", c_uint32), ("channel_data_type", c_uint32))


class _ImageDescription(ctypes.Structure):
    _fields_ = (
        ("type", c_uint32),
        *((name, c_size_t) for name in ("width", "height", "depth", "array_size")),
        *((name, c_size_t) for name in ("row_pitch", "slice_pitch")),
        *((name, c_uint32) for name in ("mip_levels", "samples")),
        ("buffer", pointer),
    )


class Image(MemoryObject):
    """Two-dimensional, `shape` is (width, height)."""

    def __init__(self, library: Library, address: int, shape: Sizes) -> None:
        super().__init__(library, address)
        self.shape = shape


def create_image(
    context: Context,
    flags: int,
    format: ImageFormat,
    shape: Sizes,
    hostbuf: NDArray[Any] | None = None,
) -> Image:
    """An image, with the texels of an array where there is one."""
    description = _ImageDescription(mem_object_type.IMAGE2D, *shape)
    host = None if hostbuf is None else hostbuf.ctypes.data
    made = context.library.clCreateImage(
        context.int_ptr, flags, byref(format), byref(description), host
    )
    return Image(context.library, made, shape)


class SVMAllocation:
    """Memory that host and kernels share, which arrays are made on."""

    def __init__(self, context: Context, flags: int, array: Mapping[str, Any]) -> None:
        allocate, self._free = context.library.clSVMAlloc, context.library.clSVMFree
        size = prod(array["shape"]) * np.dtype(array["typestr"]).itemsize
        self._context = context
        self._address = allocate(context.int_ptr, flags, size, 64)
        if not self._address:
            raise error_of("clSVMAlloc", CODES["MEM_OBJECT_ALLOCATION_FAILURE"])
        self.__array_interface__ = {**array, "data": (self._address, False), "version": 3}

    def __del__(self) -> None:
        if self.__dict__.get("_address"):
            self._free(self._context.int_ptr, self._address)


def svm_empty(
    context: Context, flags: int, shape: Sizes, dtype: Any, alignment: int = 64
) -> NDArray[Any]:
    """An array in memory that host and kernels share, on a boundary of 64 bytes."""
    array = {"shape": shape, "typestr": np.dtype(dtype).str}
    return np.asarray(SVMAllocation(context, flags, array))


def fsvm_empty(context: Context, shape: Sizes, dtype: Any, alignment: int = 64) -> NDArray[Any]:
    """The same, seen by both without maps."""
    flags = svm_mem_flags.READ_WRITE | svm_mem_flags.SVM_FINE_GRAIN_BUFFER
    return svm_empty(context, flags, shape, dtype, alignment)


class SVM:
    """An array in shared memory as an argument of a kernel."""

    def __init__(self, mem: NDArray[Any]) -> None:
        self.mem = mem

    def pass_to(self, kernel: Kernel, index: int) -> None:
        kernel.library.clSetKernelArgSVMPointer(kernel.int_ptr, index, self.mem.ctypes.data)


# Programs.


class Program(_Object):
    INFO, RELEASE = "clGetProgramInfo", "clReleaseProgram"

    def __init__(
        self,
        context: Context,
        source: str | Sequence[Device],
        binaries: Sequence[bytes] | None = None,
    ) -> None:
        """Of a source text, or of devices and a binary for each."""
        library = context.library
        if isinstance(source, str):
            devices, text = context.devices, source.encode()
            made = library.clCreateProgramWithSource(
                context.int_ptr, 1, byref(c_char_p(text)), byref(c_size_t(len(text)))
            )
        else:
            devices, blobs = list(source), binaries or ()
            lengths = (c_size_t * len(blobs))(*map(len, blobs))
            texts, states = (c_char_p * len(blobs))(*blobs), (c_int32 * len(blobs))()
            made = library.clCreateProgramWithBinary(
                context.int_ptr, len(blobs), _addresses(devices), lengths, texts, states
            )
        super().__init__(library, made)
        self.devices = devices

    def build(self, options: str | Sequence[str] = ()) -> Program:
        """Compile and link it for its devices; raises `RuntimeError` with the compiler's log."""
        text = options if isinstance(options, str) else " ".join(options)
        build = self.library.clBuildProgram
        addresses = _addresses(self.devices)
        try:
            build(self.int_ptr, len(self.devices), addresses, text.encode(), None, None)
        except Error as error:
            logs = "".join(f"\n\nBuild on {d.name}:\n\n{self._log(d)}" for d in self.devices)
            raise error_of("clBuildProgram", error.code, f"{logs}\n(options: {text})") from None
        return self

    def _log(self, device: Device) -> str:
        arguments = self.int_ptr, device.int_ptr, program_build_info.LOG
        return str(_told(self.library.clGetProgramBuildInfo, arguments, str)).strip()

    def get_info(self, number: int) -> list[bytes]:
        """Its BINARIES, one a device."""
        if number != program_info.BINARIES:
            raise error_of("clGetProgramInfo", CODES["INVALID_VALUE"])
        ask, sizes = self.library.clGetProgramInfo, program_info.BINARY_SIZES
        blobs = [
            ctypes.create_string_buffer(max(size, 1))
            for size in _told(ask, (self.int_ptr, sizes), [c_size_t])
        ]
        places = (pointer * len(blobs))(*map(ctypes.addressof, blobs))
        ask(self.int_ptr, number, ctypes.sizeof(places), places, None)
        return [blob.raw for blob in blobs]


class Kernel(_Object):
    INFO, RELEASE, INFOS = "clGetKernelInfo", "clReleaseKernel", cl_constants.KERNEL

    def __init__(self, program: Program, name: str) -> None:
        library = program.library
        super().__init__(library, library.clCreateKernel(program.int_ptr, name.encode()))

    def set_args(self, *values: Any) -> None:
        """Memory or a NumPy scalar each; raises what OpenCL finds wrong with one."""
        for index, value in enumerate(values):
            try:
                self.set_arg(index, value)
            except Error as error:
                what = f"argument {index} ({type(value).__name__})"
                raise error_of("clSetKernelArg", error.code, what) from None

    def set_arg(self, index: int, value: Any) -> None:
        if hasattr(value, "pass_to"):
            value.pass_to(self, index)
        elif isinstance(value, np.generic):
            raw = value.tobytes()
            self.library.clSetKernelArg(self.int_ptr, index, len(raw), raw)
        else:
            raise TypeError(f"a kernel takes no {type(value).__name__}, got {value!r}")

    def get_work_group_info(self, number: int, device: Device) -> Any:
        info = kernel_work_group_info
        sizes = info.LOCAL_MEM_SIZE, info.PRIVATE_MEM_SIZE
        kinds = {**dict.fromkeys(sizes, c_uint64), info.COMPILE_WORK_GROUP_SIZE: [c_size_t]}
        arguments = self.int_ptr, device.int_ptr, number
        kind = kinds.get(number, c_size_t)
        return _told(self.library.clGetKernelWorkGroupInfo, arguments, kind)


# Commands.


class _Profile:
    """When a command was queued, submitted, started and ended: nanoseconds of the device."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def __getattr__(self, name: str) -> int:
        number, kind = cl_constants.PROFILE[name]
        function = self._event.library.clGetEventProfilingInfo
        return int(_told(function, (self._event, number), kind))


class Event(pointer):
    """Of one command, as functions take it that convert nothing; `_event_class` knows those.

    `held` is what the command works on.
    """

    library: ClassVar[Library]
    calls: ClassVar[SimpleNamespace]
    held: object = None

    def __del__(self) -> None:
        if self:
            self.calls.clReleaseEvent(self)

    def wait(self) -> None:
        self.calls.clWaitForEvents(ONE, byref(self))

    @property
    def command_execution_status(self) -> int:
        status = c_int32()
        self.calls.clGetEventInfo(self, *STATUS, byref(status), None)
        return status.value

    @property
    def profile(self) -> _Profile:
        return _Profile(self)


@cache
def _event_class(library: Library) -> type[Event]:
    return type("Event", (Event,), {"library": library, "calls": library.calls})


class MemoryMap:
    """What is mapped of a buffer: the base of the array, which `release` hands back."""

    _address: int | None = None

    def __init__(self, queue: CommandQueue, buffer: Buffer, address: int, array: Any) -> None:
        self._queue, self._buffer, self._address = queue, buffer, address
        shape, kind = array
        place = {"shape": shape, "typestr": kind, "data": (address, False), "version": 3}
        self.__array_interface__ = place

    def release(self, queue: CommandQueue | None = None) -> Event:
        """Unmap it, on the queue that it was mapped on unless another is named."""
        on = queue or self._queue
        event = on.event()
        self._unmap(on, event)
        event.held = self
        return event

    def _unmap(self, on: CommandQueue, event: Event) -> None:
        address, self._address = pointer(self._address), None
        unmap = on.calls.clEnqueueUnmapMemObject
        unmap(on.handle, self._buffer.handle, address, ZERO, None, byref(event))

    def __del__(self) -> None:
        if self._address:
            with suppress(Error):
                self._unmap(self._queue, self._queue.event())


def _sizes(values: Sizes) -> Any:
    return (c_size_t * len(values))(*values)


def enqueue_nd_range_kernel(
    queue: CommandQueue,
    kernel: Kernel,
    global_size: Sizes,
    local_size: Sizes | None,
    offset: Sizes | None = None,
) -> Event:
    return queue.launch(launch_arguments(kernel.int_ptr, global_size, local_size, offset))


def enqueue_marker(queue: CommandQueue) -> Event:
    event = queue.event()
    queue.library.clEnqueueMarkerWithWaitList(queue.int_ptr, 0, None, byref(event))
    return event


def enqueue_fill_buffer(
    queue: CommandQueue, mem: Buffer, pattern: Any, offset: int, size: int
) -> Event:
    """Fill `size` bytes from `offset` on with the bytes of a pattern."""
    event, raw = queue.event(), pattern if isinstance(pattern, bytes) else pattern.tobytes()
    queue.library.clEnqueueFillBuffer(
        queue.int_ptr, mem.int_ptr, raw, len(raw), offset, size, 0, None, byref(event)
    )
    return event


def enqueue_fill_image(
    queue: CommandQueue, mem: Image, color: NDArray[Any], origin: Sizes, region: Sizes
) -> Event:
    """Fill a region with a colour of four values."""
    event = queue.event()
    queue.library.clEnqueueFillImage(
        queue.int_ptr,
        mem.int_ptr,
        color.ctypes.data,
        _sizes(origin),
        _sizes(region),
        0,
        None,
        byref(event),
    )
    return event


@lru_cache(4096)
def _place(flags: int, offset: int, shape: Sizes, dtype: Any) -> tuple[Any, Any]:
    """What a map of memory takes, and its array: the same few come again and again."""
    kind = np.dtype(dtype)
    begin, size = c_size_t.from_param(offset), c_size_t.from_param(prod(shape) * kind.itemsize)
    return (c_uint64.from_param(flags), begin, size), (shape, kind.str)


def enqueue_map_buffer(
    queue: CommandQueue,
    buffer: Buffer,
    flags: int,
    offset: int,
    shape: Sizes,
    dtype: Any,
    is_blocking: bool = True,
) -> tuple[NDArray[Any], Event]:
    """An array in the buffer's memory, whose `base.release` unmaps it, and the event of the map."""
    (place, array), event, code = _place(flags, offset, shape, dtype), queue.event(), c_int32()
    blocking = ONE if is_blocking else ZERO
    address = queue.calls.clEnqueueMapBuffer(
        queue.handle, buffer.handle, blocking, *place, ZERO, None, byref(event), byref(code)
    )
    if code.value:
        raise error_of("clEnqueueMapBuffer", code.value)
    return np.asarray(MemoryMap(queue, buffer, address, array)), event


def enqueue_copy(queue: CommandQueue, dest: Any, src: Any) -> Event:
    """Copy a buffer to an array, or an array to a buffer; done when it returns."""
    event, writes = queue.event(), isinstance(src, np.ndarray)
    buffer, array = (dest, src) if writes else (src, dest)
    if not array.flags.c_contiguous:
        raise ValueError("an array must be contiguous to be copied to or from a device")
    copy = queue.library.clEnqueueWriteBuffer if writes else queue.library.clEnqueueReadBuffer
    size, data = array.nbytes, array.ctypes.data
    copy(queue.int_ptr, buffer.int_ptr, 1, 0, size, data, 0, None, byref(event))
    return event
