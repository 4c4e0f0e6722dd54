"""A stand-in for pyopencl through ctypes, with the parts that codl uses under the same names.

It needs no compiler to install, and loads the drivers of the folder OCL_ICD_VENDORS itself. So it
serves devices without a pyopencl wheel, and drivers that no loader finds.
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

from codl.runtime.cl_library import (
    CODES,
    NAMES,
    ZERO,
    Error,
    Library,
    LogicError,
    MemoryError,
    RuntimeError,
    error_of,
    launch_arguments,
)

#: Names of another module that callers use through this one.
__all__ = ["LogicError", "MemoryError", "RuntimeError"]
Sizes: TypeAlias = tuple[int, ...]
#: Arguments for functions without argument conversion: one, and a query of an event's status.
ONE = c_uint32.from_param(1)
STATUS = c_uint32.from_param(0x11D3), c_size_t.from_param(4)


mem_flags = SimpleNamespace(
    READ_WRITE=1, WRITE_ONLY=2, READ_ONLY=4, ALLOC_HOST_PTR=16, COPY_HOST_PTR=32
)
svm_mem_flags = SimpleNamespace(READ_WRITE=1, SVM_FINE_GRAIN_BUFFER=1 << 10)
map_flags = SimpleNamespace(READ=1, WRITE=2, WRITE_INVALIDATE_REGION=4)
device_type = SimpleNamespace(CPU=2, GPU=4, ALL=0xFFFFFFFF)
device_svm_capabilities = SimpleNamespace(FINE_GRAIN_BUFFER=2, FINE_GRAIN_SYSTEM=4)
command_queue_properties = SimpleNamespace(OUT_OF_ORDER_EXEC_MODE_ENABLE=1, PROFILING_ENABLE=2)
command_execution_status = SimpleNamespace(COMPLETE=0, RUNNING=1, SUBMITTED=2, QUEUED=3)
channel_order = SimpleNamespace(RGBA=0x10B5)
channel_type = SimpleNamespace(HALF_FLOAT=0x10DD, FLOAT=0x10DE)
program_info = SimpleNamespace(BINARY_SIZES=0x1165, BINARIES=0x1166)
kernel_work_group_info = SimpleNamespace(
    WORK_GROUP_SIZE=0x11B0, LOCAL_MEM_SIZE=0x11B2, PREFERRED_WORK_GROUP_SIZE_MULTIPLE=0x11B3
)
status_code = SimpleNamespace(
    **CODES, to_string=lambda code, unknown="<unknown %d>": NAMES.get(code) or unknown % code
)

#: Number and type of each attribute of an object, by name.
Infos: TypeAlias = Mapping[str, tuple[int, Any]]
PLATFORM: Infos = {"version": (0x0901, str), "name": (0x0902, str), "vendor": (0x0903, str)}
DEVICE: Infos = {
    "type": (0x1000, c_uint64),
    "max_compute_units": (0x1002, c_uint32),
    "max_work_group_size": (0x1004, c_size_t),
    "max_work_item_sizes": (0x1005, [c_size_t]),
    "max_mem_alloc_size": (0x1010, c_uint64),
    "image2d_max_width": (0x1011, c_size_t),
    "image2d_max_height": (0x1012, c_size_t),
    "image_support": (0x1016, c_uint32),
    "global_mem_cache_size": (0x101E, c_uint64),
    "local_mem_size": (0x1023, c_uint64),
    "name": (0x102B, str),
    "vendor": (0x102C, str),
    "driver_version": (0x102D, str),
    "version": (0x102F, str),
    "extensions": (0x1030, str),
    "host_unified_memory": (0x1035, c_uint32),
    "native_vector_width_float": (0x103A, c_uint32),
    "svm_capabilities": (0x1053, c_uint64),
    "compute_capability_major_nv": (0x4000, c_uint32),
    "compute_capability_minor_nv": (0x4001, c_uint32),
}
KERNEL: Infos = {"function_name": (0x1190, str), "num_args": (0x1191, c_uint32)}
MEMORY: Infos = {"type": (0x1100, c_uint32), "size": (0x1102, c_size_t)}


def _info(function: Any, arguments: tuple[Any, ...], kind: Any) -> Any:
    """An attribute read through an OpenCL function, as the type `kind`; `[type]` means a list."""
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
    """An OpenCL object, released by the garbage collector.

    `int_ptr` is its address, `handle` the same for functions without argument conversion.
    """

    #: Names of the functions that read its attributes and release it.
    INFO: ClassVar[str] = ""
    RELEASE: ClassVar[str] = ""
    INFOS: ClassVar[Infos] = {}

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
        return _info(getattr(self.library, self.INFO), (self.int_ptr, number), kind)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.int_ptr == self.int_ptr

    def __hash__(self) -> int:
        return hash(self.int_ptr)


class Platform(_Object):
    INFO, INFOS = "clGetPlatformInfo", PLATFORM

    def get_devices(self) -> list[Device]:
        count = c_uint32()
        list_devices = self.library.clGetDeviceIDs
        try:
            list_devices(self.int_ptr, device_type.ALL, 0, None, byref(count))
        except Error as error:
            if error.code != CODES["DEVICE_NOT_FOUND"]:
                raise
            return []
        devices = (pointer * count.value)()
        list_devices(self.int_ptr, device_type.ALL, count, devices, None)
        return [Device(self, address) for address in devices if address]


class Device(_Object):
    INFO, INFOS = "clGetDeviceInfo", DEVICE

    def __init__(self, platform: Platform, address: int) -> None:
        super().__init__(platform.library, address)
        self.platform = platform


@cache
def _libraries(folder: str) -> tuple[Library, ...]:
    """Loadable libraries of a folder's ICD files, in order; raises the last error without any."""
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
    """Platforms of the drivers in OCL_ICD_VENDORS, searched once per process."""
    platforms: list[Platform] = []
    for library in _libraries(os.environ.get("OCL_ICD_VENDORS", "")):
        count = c_uint32()
        library.clGetPlatformIDs(0, None, byref(count))
        found = (pointer * count.value)()
        library.clGetPlatformIDs(count, found, None)
        platforms += [Platform(library, address) for address in found if address]
    return tuple(platforms)


class Context(_Object):
    RELEASE = "clReleaseContext"

    def __init__(self, devices: Sequence[Device], properties: Iterable[int] = ()) -> None:
        """A context on `devices`; `properties` are numbers and values, without a final zero."""
        library, values = devices[0].library, [*properties, 0]
        wanted = (ctypes.c_ssize_t * len(values))(*values) if len(values) > 1 else None
        addresses = (pointer * len(devices))(*(device.int_ptr for device in devices))
        made = library.clCreateContext(wanted, len(devices), addresses, None, None)
        super().__init__(library, made)
        self.devices = list(devices)


class CommandQueue(_Object):
    RELEASE = "clReleaseCommandQueue"

    def __init__(
        self,
        context: Context,
        device: Device | None = None,
        properties: int | Sequence[int] = 0,
    ) -> None:
        """A queue with flags, or with alternating numbers and values of properties."""
        library, on = context.library, device or context.devices[0]
        if isinstance(properties, int):
            made = library.clCreateCommandQueue(context.int_ptr, on.int_ptr, properties)
        else:
            values = (c_uint64 * (len(properties) + 1))(*properties, 0)
            made = library.clCreateCommandQueueWithProperties(context.int_ptr, on.int_ptr, values)
        super().__init__(library, made)
        self.context, self.device, self.calls = context, on, library.calls
        self.event, self.flush = _event_class(library), partial(self.calls.clFlush, self.handle)
        #: Takes `launch_arguments` and the address of an event.
        self.enqueue = partial(self.calls.clEnqueueNDRangeKernel, self.handle)

    def launch(self, arguments: tuple[Any, ...]) -> Event:
        """Enqueue a kernel with `launch_arguments`."""
        event = self.event()
        self.enqueue(*arguments, byref(event))
        return event

    def finish(self) -> None:
        self.library.clFinish(self.int_ptr)


# Memory.


class MemoryObject(_Object):
    INFO, RELEASE, INFOS = "clGetMemObjectInfo", "clReleaseMemObject", MEMORY

    def pass_to(self, kernel: Kernel, index: int) -> None:
        value = pointer(self.int_ptr)
        self.library.clSetKernelArg(kernel.int_ptr, index, ctypes.sizeof(value), byref(value))


class Buffer(MemoryObject):
    def __init__(
        self, context: Context, flags: int, size: int = 0, hostbuf: NDArray[Any] | None = None
    ) -> None:
        """A buffer of a size in bytes, or with the content of an array."""
        host = None if hostbuf is None else hostbuf.ctypes.data
        size = size if hostbuf is None else hostbuf.nbytes
        made = context.library.clCreateBuffer(context.int_ptr, flags, size, host)
        super().__init__(context.library, made)


#: Kind of an image in its description.
IMAGE2D = 0x10F1


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
    """A two-dimensional image; `shape` is (width, height)."""

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
    """An image, with the texels of an optional array."""
    description = _ImageDescription(IMAGE2D, *shape)
    host = None if hostbuf is None else hostbuf.ctypes.data
    made = context.library.clCreateImage(
        context.int_ptr, flags, byref(format), byref(description), host
    )
    return Image(context.library, made, shape)


class SVMAllocation:
    """Memory for arrays that host and kernels share, aligned to 64 bytes."""

    def __init__(self, context: Context, flags: int, shape: Sizes, dtype: np.dtype[Any]) -> None:
        self._context, self._free = context, context.library.clSVMFree
        size = prod(shape) * dtype.itemsize
        self._address = context.library.clSVMAlloc(context.int_ptr, flags, size, 64)
        if not self._address:
            raise error_of("clSVMAlloc", CODES["MEM_OBJECT_ALLOCATION_FAILURE"])
        place = {"shape": shape, "typestr": dtype.str, "data": (self._address, False)}
        self.__array_interface__ = {**place, "version": 3}

    def __del__(self) -> None:
        if self.__dict__.get("_address"):
            self._free(self._context.int_ptr, self._address)


def svm_empty(
    context: Context, flags: int, shape: Sizes, dtype: Any, alignment: int = 64
) -> NDArray[Any]:
    """An array in memory shared by host and kernels, aligned to 64 bytes."""
    return np.asarray(SVMAllocation(context, flags, shape, np.dtype(dtype)))


class SVM:
    """An array in shared memory as a kernel argument."""

    def __init__(self, mem: NDArray[Any]) -> None:
        self.mem = mem

    def pass_to(self, kernel: Kernel, index: int) -> None:
        kernel.library.clSetKernelArgSVMPointer(kernel.int_ptr, index, self.mem.ctypes.data)


# Programs.


class Program(_Object):
    RELEASE = "clReleaseProgram"

    def __init__(
        self,
        context: Context,
        source: str | Sequence[Device],
        binaries: Sequence[bytes] = (),
    ) -> None:
        """A program for the context's first device, of a source text or of its binary."""
        library, self.device = context.library, context.devices[0]
        if isinstance(source, str):
            text = source.encode()
            made = library.clCreateProgramWithSource(
                context.int_ptr, 1, byref(c_char_p(text)), byref(c_size_t(len(text)))
            )
        else:
            (blob,) = binaries
            size, text_of, state = c_size_t(len(blob)), c_char_p(blob), c_int32()
            made = library.clCreateProgramWithBinary(
                context.int_ptr,
                1,
                byref(pointer(self.device.int_ptr)),
                byref(size),
                byref(text_of),
                byref(state),
            )
        super().__init__(library, made)

    def build(self, options: str | Sequence[str] = ()) -> Program:
        """Compile and link; raises `RuntimeError` with the log."""
        text = options if isinstance(options, str) else " ".join(options)
        device = self.device.int_ptr
        try:
            self.library.clBuildProgram(
                self.int_ptr, 1, byref(pointer(device)), text.encode(), None, None
            )
        except Error as error:
            log = _info(self.library.clGetProgramBuildInfo, (self.int_ptr, device, 0x1183), str)
            message = f"\n\nBuild on {self.device.name}:\n\n{log.strip()}\n(options: {text})"
            raise error_of("clBuildProgram", error.code, message) from None
        return self

    def get_info(self, number: int) -> list[bytes]:
        """The program's BINARIES, one for its device."""
        assert number == program_info.BINARIES
        ask = self.library.clGetProgramInfo
        size = _info(ask, (self.int_ptr, program_info.BINARY_SIZES), c_size_t)
        blob = ctypes.create_string_buffer(max(size, 1))
        place = pointer(ctypes.addressof(blob))
        ask(self.int_ptr, number, ctypes.sizeof(place), byref(place), None)
        return [blob.raw]


class Kernel(_Object):
    INFO, RELEASE, INFOS = "clGetKernelInfo", "clReleaseKernel", KERNEL

    def __init__(self, program: Program, name: str) -> None:
        library = program.library
        super().__init__(library, library.clCreateKernel(program.int_ptr, name.encode()))

    def set_args(self, *values: Any) -> None:
        """Set all arguments, memory or NumPy scalars; raises OpenCL's error for a wrong one."""
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
        kind = c_uint64 if number == kernel_work_group_info.LOCAL_MEM_SIZE else c_size_t
        arguments = self.int_ptr, device.int_ptr, number
        return _info(self.library.clGetKernelWorkGroupInfo, arguments, kind)


# Commands.


class Event(pointer):
    """The event of one command, as a pointer for functions without argument conversion.

    `_event_class` binds it to a library. `held` is the memory that the command uses.
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
    def profile(self) -> SimpleNamespace:
        """When the command was queued, submitted, started and ended, in device nanoseconds."""
        ask, names = self.library.clGetEventProfilingInfo, ("queued", "submit", "start", "end")
        times = {n: _info(ask, (self, 0x1280 + at), c_uint64) for at, n in enumerate(names)}
        return SimpleNamespace(**times)


@cache
def _event_class(library: Library) -> type[Event]:
    return type("Event", (Event,), {"library": library, "calls": library.calls})


class MemoryMap:
    """A mapped part of a buffer, as the base of its array; `release` unmaps it."""

    _address: int | None = None

    def __init__(self, queue: CommandQueue, buffer: Buffer, address: int, array: Any) -> None:
        self._queue, self._buffer, self._address = queue, buffer, address
        shape, kind = array
        place = {"shape": shape, "typestr": kind, "data": (address, False), "version": 3}
        self.__array_interface__ = place

    def release(self, queue: CommandQueue | None = None) -> Event:
        """Unmap the memory on `queue`, by default the queue that mapped it."""
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
    """Fill `size` bytes from `offset` on by repeating a pattern."""
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
    """Arguments of a map of memory, and its array type; cached, as few combinations occur."""
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
    """Copy a buffer to an array, or an array to a buffer; blocks until done."""
    event, writes = queue.event(), isinstance(src, np.ndarray)
    buffer, array = (dest, src) if writes else (src, dest)
    if not array.flags.c_contiguous:
        raise ValueError("an array must be contiguous to be copied to or from a device")
    copy = queue.library.clEnqueueWriteBuffer if writes else queue.library.clEnqueueReadBuffer
    size, data = array.nbytes, array.ctypes.data
    copy(queue.int_ptr, buffer.int_ptr, 1, 0, size, data, 0, None, byref(event))
    return event
