"""Tensors in the GPU's memory, and memory that both processors see in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from codl.errors import DeviceError
from codl.ir import Array, Region, Shape, Span
from codl.ir.types import PLANAR, Constant, ImageSize, Storage
from codl.kernels.image import image_refusal
from codl.runtime.cl_errors import explained
from codl.runtime.cl_import import cl_module

if TYPE_CHECKING:
    import pyopencl as cl

    from codl.runtime.opencl import OpenClDevice


#: Memory that begins at a multiple of so many bytes is copied up to twice as fast.
ALIGNMENT = 64


@dataclass(frozen=True)
class GpuTensor:
    """A region of a tensor of some shape in memory of its own.

    Where channels lie in blocks of `block`, the region starts at a whole block; rows lie densely.
    """

    memory: cl.MemoryObject | cl.SVM
    shape: Shape
    region: Region
    storage: Storage
    block: int

    @classmethod
    def allocate(
        cls, gpu: OpenClDevice, shape: Shape, region: Region, storage: Storage
    ) -> GpuTensor:
        """Allocate a region of a tensor, its channels rounded to whole blocks, filled with zeros.

        Lanes beyond the last channel must be finite from the start.
        """
        empty = cls.without_memory(gpu, shape, region, storage)
        memory = _image(gpu, empty) if storage.layout == "image" else _buffer(gpu, empty)
        return replace(empty, memory=memory)

    @classmethod
    def without_memory(
        cls, gpu: OpenClDevice, shape: Shape, region: Region, storage: Storage
    ) -> GpuTensor:
        block = {"blocked": gpu.soc.gpu.vector_width, "planar": 1, "image": 4}[storage.layout]
        return cls(None, shape, region, storage, block)

    @staticmethod
    def fits(gpu: OpenClDevice, shape: Shape, region: Region, storage: Storage) -> bool:
        """Whether `allocate` can make this: images have a largest size."""
        return storage.layout != "image" or not image_refusal(gpu.soc, [region.shape(shape)])

    @property
    def blocks(self) -> int:
        return -(-self.region.channels.size // self.block)

    @property
    def pixels(self) -> int:
        """Pixels of one channel, or block of channels, of one image."""
        return self.region.rows.size * self.shape.w

    @property
    def image_stride(self) -> int:
        """Pixels from an image to the next, of all blocks of channels; not of an `image`."""
        return self.blocks * self.pixels

    @property
    def bytes(self) -> int:
        """Bytes of the images held, with their last blocks whole."""
        elements = self.region.images.size * self.blocks * self.block * self.pixels
        return self.storage.element_bytes * elements

    def lead(self, part: Region) -> int:
        """Channels of the first block of `part` that lie before it."""
        return (part.channels.start - self.region.channels.start) % self.block

    def blocks_around(self, part: Region, block: int | None = None) -> Region:
        """The region of whole blocks (or of `block` channels) that `part` lies in."""
        block, (first, last) = block or self.block, self.region.channels
        begin = part.channels.start - (part.channels.start - first) % block
        end = part.channels.stop + (first - part.channels.stop) % block
        return part._replace(channels=Span(begin, min(end, last)))

    def is_whole_blocks(self, part: Region, block: int | None = None) -> bool:
        return self.blocks_around(part, block) == part

    def view(
        self, part: Region, image: int = 0
    ) -> tuple[cl.MemoryObject | cl.SVM, np.int32, np.int32]:
        """The three kernel arguments that name one image of `part`, counted from its first."""
        inner = part.within(self.region)
        image += inner.images.start
        if inner.channels.start % self.block:
            raise ValueError(f"{part} does not begin at a block of {self.block} channels")
        first = inner.channels.start // self.block
        if self.storage.layout == "image":
            row = image * self.region.rows.size + inner.rows.start
            return self.memory, np.int32(first * self.shape.w), np.int32(row)
        offset = (image * self.blocks + first) * self.pixels + inner.rows.start * self.shape.w
        return self.memory, np.int32(offset), np.int32(self.pixels)


class TensorPool:
    """The GPU's memory of one engine: tensors take it in turns, as they are needed.

    What is given back may be taken at once: commands run in the order in which they are enqueued.
    Memory that is taken again holds what was there; that is finite too.
    """

    def __init__(self, gpu: OpenClDevice) -> None:
        self._gpu = gpu
        self._free: list[cl.Buffer] = []
        self._free_images: dict[Hashable, list[cl.Image]] = {}
        #: All that was ever allocated.
        self.bytes = 0

    def tensor(self, shape: Shape, region: Region, storage: Storage) -> GpuTensor:
        """As `OpenClDevice.tensor`."""
        wanted = GpuTensor.without_memory(self._gpu, shape, region, storage)
        if storage.layout == "image":
            own = self._free_images.get(_image_key(wanted), [])
            memory = own.pop() if own else self._new(wanted.bytes, lambda: _new(self._gpu, wanted))
        else:
            memory = self._buffer(wanted.bytes, lambda: _new(self._gpu, wanted))
        return replace(wanted, memory=memory)

    def scratch(self, size: int, allocate: Callable[[], cl.Buffer]) -> cl.Buffer:
        """A buffer of at least so many bytes; `allocate` makes one where none is free."""
        return self._buffer(size, allocate)

    def give(self, tensor: GpuTensor) -> None:
        """Nothing that is enqueued from now on uses this tensor."""
        if tensor.storage.layout == "image":
            self._free_images.setdefault(_image_key(tensor), []).append(tensor.memory)
        else:
            self._free.append(tensor.memory)

    def give_scratch(self, buffer: cl.Buffer) -> None:
        self._free.append(buffer)

    def _buffer(self, size: int, allocate: Callable[[], cl.Buffer]) -> cl.Buffer:
        """The smallest free one that is large enough."""
        fitting = [i for i, buffer in enumerate(self._free) if buffer.size >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].size))
        return self._new(size, allocate)

    def _new(self, size: int, allocate: Callable[[], cl.MemoryObject]) -> cl.MemoryObject:
        self.bytes += size
        return allocate()


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Zeros in memory that begins at a multiple of `ALIGNMENT`."""
    size = 4 * math.prod(shape)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    zeros: Array = memory[start : start + size].view(np.float32).reshape(shape)
    return zeros


def _image_key(tensor: GpuTensor) -> Hashable:
    return (*_image_size(tensor), tensor.storage.element)


def _new(gpu: OpenClDevice, tensor: GpuTensor) -> cl.MemoryObject:
    return gpu.tensor(tensor.shape, tensor.region, tensor.storage).memory


def seen_zeros(gpu: OpenClDevice, elements: int) -> tuple[Array, cl.SVM]:
    """Floats in memory that both processors work on as it is, and the same as a kernel argument.

    Only where `gpu.sees_host_memory`. Each side sees what the other has written once the other's
    kernel or net has ended.
    """
    cl = cl_module()
    with explained(f"Allocating {4 * elements} bytes that both processors work on"):
        array: Array = cl.fsvm_empty(gpu.context, (elements,), np.float32, alignment=ALIGNMENT)
    array.fill(0.0)
    return array, cl.SVM(array)


def seen_array(gpu: OpenClDevice, shape: Shape, region: Region) -> tuple[Array, GpuTensor]:
    """A region of a tensor in such memory.

    As an array shaped (images, channels, rows, columns), and as a planar float32 tensor.
    """
    part = region.shape(shape)
    array, seen = seen_zeros(gpu, part.elements)
    return array.reshape(part), GpuTensor(seen, shape, region, PLANAR, 1)


class Staging:
    """A buffer that both processors see in turns: the CPU as flat floats, while it is mapped."""

    def __init__(self, gpu: OpenClDevice, size: int) -> None:
        flags = cl_module().mem_flags.READ_WRITE | cl_module().mem_flags.ALLOC_HOST_PTR
        self.buffer = cl_module().Buffer(gpu.context, flags, checked_size(gpu, size))
        self._gpu, self._floats = gpu, size // 4
        self._array: Array | None = None

    def map(self, *, write: bool) -> cl.Event:
        """Begin to map for reading, or for writing everything; the event says when it is done."""
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
        """Hand the memory back to the GPU."""
        event = self.array.base.release(self._gpu.queue)  # type: ignore[union-attr]
        self._array = None
        return event


class SharedBuffer:
    """A region of a tensor in memory that both processors see in turns.

    The GPU sees it as the planar float32 `tensor`; the CPU, while it is mapped, as `array`, shaped
    (images, channels, rows, columns).
    """

    def __init__(self, gpu: OpenClDevice, shape: Shape, region: Region) -> None:
        flags = cl_module().mem_flags.READ_WRITE | cl_module().mem_flags.ALLOC_HOST_PTR
        self._shape = region.shape(shape)
        size = checked_size(gpu, self._shape.bytes)
        with explained(f"Allocating {size} bytes that both processors see"):
            self.buffer = cl_module().Buffer(gpu.context, flags, size)
        self.tensor = GpuTensor(self.buffer, shape, region, PLANAR, 1)
        self._gpu = gpu
        self._array: Array | None = None

    def map(self, *, write: bool) -> cl.Event:
        """Begin to map for reading, or for writing everything; the event says when it is done."""
        flags = cl_module().map_flags
        access = flags.WRITE_INVALIDATE_REGION if write else flags.READ
        self._array, event = cl_module().enqueue_map_buffer(
            self._gpu.queue, self.buffer, access, 0, self._shape, np.float32, is_blocking=False
        )
        return event

    @property
    def array(self) -> Array:
        """The mapped memory; only between `map`'s event and `unmap`."""
        if self._array is None:
            raise RuntimeError("a shared buffer was used while it was not mapped")
        return self._array

    def unmap(self) -> cl.Event:
        """Hand the memory back to the GPU."""
        event = self.array.base.release(self._gpu.queue)  # type: ignore[union-attr]
        self._array = None
        return event


def checked_size(gpu: OpenClDevice, size: int) -> int:
    """A buffer's size in bytes; raises `DeviceError` where the device allows none so large."""
    most = gpu.device.max_mem_alloc_size
    if size > most:
        raise DeviceError(f"A buffer of {size} bytes is wanted, {gpu.device.name} allows {most}.")
    return size


def _buffer(gpu: OpenClDevice, tensor: GpuTensor) -> cl.Buffer:
    size, flags = checked_size(gpu, tensor.bytes), cl_module().mem_flags.READ_WRITE
    buffer = cl_module().Buffer(gpu.context, flags, size)
    cl_module().enqueue_fill_buffer(gpu.queue, buffer, np.uint8(0), 0, tensor.bytes)
    return buffer


def _image(gpu: OpenClDevice, tensor: GpuTensor) -> cl.Image:
    refusal = image_refusal(gpu.soc, [tensor.region.shape(tensor.shape)])
    if refusal is not None:
        raise DeviceError(f"{tensor.region} of {tensor.shape} cannot be an image: {refusal}.")
    cl = cl_module()
    size = _image_size(tensor)
    image = make_image(gpu, ImageSize(*size, tensor.storage.element))
    cl.enqueue_fill_image(gpu.queue, image, np.zeros(4, np.float32), (0, 0, 0), (*size, 1))
    return image


def _image_size(tensor: GpuTensor) -> tuple[int, int]:
    """Texels of all images of a tensor side by side and one below the other."""
    rows = tensor.region.images.size * tensor.region.rows.size
    return tensor.blocks * tensor.shape.w, rows


def make_image(gpu: OpenClDevice, size: ImageSize, values: Constant | None = None) -> cl.Image:
    """An image of RGBA texels, with `values` shaped (rows, columns, 4) where they are given."""
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
