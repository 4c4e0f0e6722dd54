"""Memory of an executable: host arrays, buffers, images, shared memory, and flags in it.

A flag is a counter in shared memory that a kernel increments and the CPU polls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import DeviceError
from codl.ir import Array
from codl.ir.executable import FLAG_BYTES, Buffer, Constant
from codl.ir.types import ConstantArray, ImageSize
from codl.kernels.tiling import fits
from codl.runtime.drivers import as_device_error, cl_module
from codl.runtime.launch import BoundKernel

if TYPE_CHECKING:
    import pyopencl as cl

    from codl.runtime.opencl import OpenClDevice


#: Alignment in bytes, which makes copies up to twice as fast.
ALIGNMENT = 64


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Float32 zeros in aligned memory; raises `DeviceError` if memory runs out."""
    size = 4 * math.prod(shape)
    try:
        memory = np.zeros(size + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise DeviceError(f"{size} bytes of the CPU's memory are wanted, and not there.") from error
    start = -memory.ctypes.data % ALIGNMENT
    zeros: Array = memory[start : start + size].view(np.float32).reshape(shape)
    return zeros


def dense(view: Array, copies: list[tuple[Array, Array]]) -> Array:
    """Return a contiguous view itself, else a new array, appended to `copies` as (view, array)."""
    if view.flags.c_contiguous:
        return view
    beside = aligned_zeros(view.shape)
    copies.append((view, beside))
    return beside


def shared_zeros(gpu: OpenClDevice, elements: int, *, atomic: bool = False) -> tuple[Any, cl.SVM]:
    """Zeros in memory of both processors, as an array and as a kernel argument.

    Requires `sees_host_memory`. Each side sees the other's float32 results after its kernel or net
    has ended. `atomic` memory holds uint32 words that the CPU sees at once.
    """
    cl = cl_module()
    flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
    if atomic:
        flags |= cl.svm_mem_flags.SVM_ATOMICS
    with as_device_error(f"Allocating {4 * elements} bytes that both processors work on"):
        kind = np.uint32 if atomic else np.float32
        array = cl.svm_empty(gpu.context, flags, (elements,), kind, alignment=ALIGNMENT)
    array.fill(0)
    return array, cl.SVM(array)


class Staging:
    """A buffer that the processors use in turns; the CPU sees flat floats while it is mapped."""

    def __init__(self, gpu: OpenClDevice, size: int) -> None:
        flags = cl_module().mem_flags.READ_WRITE | cl_module().mem_flags.ALLOC_HOST_PTR
        self.buffer = cl_module().Buffer(gpu.context, flags, checked_size(gpu, size))
        self._gpu, self._floats = gpu, size // 4
        self._array: Array | None = None

    def map(self, *, write: bool) -> cl.Event:
        """Start mapping the buffer to read it or to write all of it; the event ends the map."""
        flags = cl_module().map_flags
        access = flags.WRITE_INVALIDATE_REGION if write else flags.READ
        self._array, event = cl_module().enqueue_map_buffer(
            self._gpu.queue, self.buffer, access, 0, (self._floats,), np.float32, is_blocking=False
        )
        return event

    @property
    def array(self) -> Array:
        """The mapped memory; only between `map`'s event and `unmap`."""
        if self._array is None:
            raise RuntimeError("staging memory was used while it was not mapped")
        return self._array

    def unmap(self) -> cl.Event:
        """Return the memory to the GPU."""
        event = self.array.base.release(self._gpu.queue)  # type: ignore[union-attr]
        self._array = None
        return event


@dataclass(frozen=True)
class DeviceMemory:
    """An allocated buffer: its kernel argument, and the CPU's flat floats or a flag's words."""

    argument: Any = None
    array: NDArray[Any] | None = None
    staging: Staging | None = None

    @property
    def flat(self) -> Array:
        """The CPU's flat floats; staging memory must be mapped."""
        array = self.staging.array if self.staging is not None else self.array
        assert array is not None, "the CPU sees no memory of the GPU"
        return array


def allocate(buffer: Buffer, device: OpenClDevice) -> DeviceMemory:
    """Allocate a buffer of zeros; raises `DeviceError` if the device refuses."""
    what = f"{buffer.bytes} bytes of {buffer.place} memory"
    cl = cl_module()
    if buffer.place == "cpu":
        return DeviceMemory(array=aligned_zeros((buffer.bytes // 4,)))
    with as_device_error(f"Allocating {what} on {device.device.name}"):
        if buffer.place in ("shared", "flag"):
            elements = (FLAG_BYTES if buffer.place == "flag" else buffer.bytes) // 4
            array, seen = shared_zeros(device, elements, atomic=buffer.place == "flag")
            return DeviceMemory(seen, array)
        if buffer.place == "staging":
            staging = Staging(device, buffer.bytes)
            # Some drivers allocate memory at the first mapping.
            staging.map(write=True).wait()
            staging.unmap()
            return DeviceMemory(staging.buffer, staging=staging)
        if buffer.image is not None:
            sizes = buffer.image.width, buffer.image.height
            if not fits(device.soc, *sizes):
                limits = device.soc.gpu
                most = f"{limits.max_image_width}x{limits.max_image_height}"
                raise DeviceError(f"{buffer.image} is wanted, {limits.name} has at most {most}.")
            image, zero = make_image(device, buffer.image), np.zeros(4, np.float32)
            cl.enqueue_fill_image(device.queue, image, zero, (0, 0, 0), (*sizes, 1))
            return DeviceMemory(image)
        size = checked_size(device, buffer.bytes)
        memory = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, size)
        cl.enqueue_fill_buffer(device.queue, memory, np.uint8(0), 0, size)
        return DeviceMemory(memory)


def upload(values: Array, constant: Constant, device: OpenClDevice) -> cl.MemoryObject:
    """Device memory with constants, in the layout that kernels read."""
    flags = cl_module().mem_flags.READ_ONLY | cl_module().mem_flags.COPY_HOST_PTR
    with as_device_error(f"Allocating {values.nbytes} bytes of weights on {device.device.name}"):
        if constant.is_image:
            return make_image(device, ImageSize.of(values), values)
        checked_size(device, values.nbytes)
        return cl_module().Buffer(device.context, flags, hostbuf=np.ascontiguousarray(values))


def checked_size(gpu: OpenClDevice, size: int) -> int:
    """A buffer size in bytes; raises `DeviceError` if the device allows none of that size."""
    most = gpu.device.max_mem_alloc_size
    if size > most:
        raise DeviceError(f"A buffer of {size} bytes is wanted, {gpu.device.name} allows {most}.")
    return size


def make_image(gpu: OpenClDevice, size: ImageSize, values: ConstantArray | None = None) -> cl.Image:
    """An image of RGBA texels, with optional `values` shaped (rows, columns, 4)."""
    cl = cl_module()
    half = size.element == "float16"
    channel = cl.channel_type.HALF_FLOAT if half else cl.channel_type.FLOAT
    format_ = cl.ImageFormat(cl.channel_order.RGBA, channel)
    flags, shape = cl.mem_flags, (size.width, size.height)
    if values is None:
        return cl.create_image(gpu.context, flags.READ_WRITE, format_, shape)
    copied = flags.READ_ONLY | flags.COPY_HOST_PTR
    texels = np.ascontiguousarray(values)
    return cl.create_image(gpu.context, copied, format_, shape, hostbuf=texels)


#: Number of values of the wrapping counter; a lead of less than half of them counts as later.
WORDS, HALF = 1 << 32, 1 << 31
#: Polls of a flag between two readings of the clock.
LOOKS = 64
#: Seconds before the queue's status is read, and between two readings.
ASK_S, AGAIN_S = 1.0, 0.01


class Flag:
    """A flag, the kernel that raises it, and its value after all enqueued kernels."""

    def __init__(self, device: OpenClDevice, words: Any, kernel: BoundKernel) -> None:
        self._device, self._kernel = device, kernel
        self._words = memoryview(words)
        self._raised = int(self._words[0])
        self._barrier = Lock()
        #: Whether polling takes a core that the device may need.
        self._rests = device.soc.gpu.is_cpu and not device.waits_apart

    def enqueue(self) -> None:
        """Raise the flag on the queue, after the commands so far."""
        self._device.submit([self._kernel])
        self._raised = (self._raised + 1) % WORDS

    @property
    def is_up(self) -> bool:
        """Whether all enqueued kernels have raised the flag."""
        return (self._words[0] - self._raised) % WORDS < HALF

    def wait(self) -> None:
        """Wait until the flag is up; raises `DeviceError` if the queue fails or ends first."""
        if not self.is_up:
            self._device.queue.flush()
            self._poll()
        with self._barrier:  # a memory barrier: later reads see writes before the flag
            pass

    def _poll(self) -> None:
        begin = perf_counter()
        while perf_counter() - begin < ASK_S:
            for _ in range(LOOKS):
                if self.is_up:
                    return
            if self._rests:
                sleep(0)
        name = self._device.soc.gpu.name
        with as_device_error(f"Waiting for a flag of {name}"):
            marker = cl_module().enqueue_marker(self._device.queue)
            self._device.queue.flush()
            while not (self.is_up or self._device.has_ended(marker)):
                sleep(AGAIN_S)
            if not self.is_up:
                raise DeviceError(
                    f"{name} is done with everything, and the CPU does not see the flag that a "
                    "kernel raised. `codl soc detect` finds out whether it can; without "
                    "`signal: flag` in the SoC file events are waited for."
                )
