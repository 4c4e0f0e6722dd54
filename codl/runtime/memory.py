"""Memory of an executable: host arrays, buffers, images, and shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from codl.errors import DeviceError
from codl.ir import Array
from codl.ir.executable import Buffer, Constant
from codl.ir.types import ConstantArray, ImageSize
from codl.kernels.tiling import fits
from codl.runtime.drivers import as_device_error, cl_module

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
    """An allocated buffer: its kernel argument, and the CPU's flat floats."""

    argument: Any = None
    array: Array | None = None
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
        if buffer.place == "shared":
            # Each side sees the other's results after its kernel or net has ended.
            flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
            shape = (buffer.bytes // 4,)
            array = cl.svm_empty(device.context, flags, shape, np.float32, alignment=ALIGNMENT)
            array.fill(0)
            return DeviceMemory(cl.SVM(array), array)
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
