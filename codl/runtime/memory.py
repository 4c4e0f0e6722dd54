"""Memory: host arrays, images, what both processors see at once or by turns, and flags in it.

A flag is a count in shared memory that a kernel raises and the CPU looks at. Before it looks all
the time, the thread sleeps for a part of what such waits took before, so that a phone's core does
not burn power to learn nothing. It never sleeps where it was late the last time, nor where the GPU
is cores of the CPU: those are the thread's own and the device's, and a sleep would only let the
clock fall.
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
from codl.kernels.image import fits
from codl.runtime.drivers import cl_module, describe, explained
from codl.runtime.launch import BoundKernel

if TYPE_CHECKING:
    import pyopencl as cl

    from codl.runtime.opencl import OpenClDevice


#: Memory that begins at a multiple of this many bytes is copied up to twice as fast.
ALIGNMENT = 64


def aligned_zeros(shape: tuple[int, ...]) -> Array:
    """Zeros in memory that begins at a multiple of `ALIGNMENT`.

    Raises `DeviceError` where there is no such amount of it.
    """
    size = 4 * math.prod(shape)
    try:
        memory = np.zeros(size + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise DeviceError(f"{size} bytes of the CPU's memory are wanted, and not there.") from error
    start = -memory.ctypes.data % ALIGNMENT
    zeros: Array = memory[start : start + size].view(np.float32).reshape(shape)
    return zeros


def seen_zeros(gpu: OpenClDevice, elements: int) -> tuple[Array, cl.SVM]:
    """Floats in memory that both processors work on as it is, and the same as a kernel argument.

    Only where the SoC's GPU `sees_host_memory`. Each side sees what the other has written once the
    other's kernel or net has ended.
    """
    cl = cl_module()
    with explained(f"Allocating {4 * elements} bytes that both processors work on"):
        array: Array = cl.fsvm_empty(gpu.context, (elements,), np.float32, alignment=ALIGNMENT)
    array.fill(0.0)
    return array, cl.SVM(array)


def flag_words(gpu: OpenClDevice) -> tuple[NDArray[np.uint32], cl.SVM]:
    """Words that kernels write while the CPU looks at them, and the same as a kernel argument."""
    cl = cl_module()
    kinds = cl.svm_mem_flags
    flags = kinds.READ_WRITE | kinds.SVM_FINE_GRAIN_BUFFER | kinds.SVM_ATOMICS
    with explained(f"Allocating {FLAG_BYTES} bytes for a flag on {gpu.device.name}"):
        words: NDArray[np.uint32] = cl.svm_empty(
            gpu.context, flags, (FLAG_BYTES // 4,), np.uint32, alignment=ALIGNMENT
        )
    words.fill(0)
    return words, cl.SVM(words)


class Staging:
    """A buffer that both processors see in turns: the CPU as flat floats, while it is mapped."""

    def __init__(self, gpu: OpenClDevice, size: int) -> None:
        flags = cl_module().mem_flags.READ_WRITE | cl_module().mem_flags.ALLOC_HOST_PTR
        self.buffer = cl_module().Buffer(gpu.context, flags, checked_size(gpu, size))
        self._gpu, self._floats = gpu, size // 4
        self._array: Array | None = None

    def touch(self) -> None:
        """Map it once: some drivers allocate only then, which an inference would wait for."""
        self.map(write=True).wait()
        self.unmap()

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


@dataclass(frozen=True)
class DeviceMemory:
    """One buffer: what kernels take as an argument, and what the CPU sees of it as flat floats.

    A staging buffer is seen only while it is mapped.
    """

    argument: Any = None
    array: Array | None = None
    staging: Staging | None = None
    #: The words of a flag.
    words: NDArray[np.uint32] | None = None

    @property
    def flat(self) -> Array:
        """What the CPU sees; of staging memory only while it is mapped."""
        array = self.staging.array if self.staging is not None else self.array
        assert array is not None, "the CPU sees no memory of the GPU"
        return array


def allocate(buffer: Buffer, device: OpenClDevice) -> DeviceMemory:
    """Memory that begins as zeros."""
    what = f"{buffer.bytes} bytes of {buffer.place} memory"
    cl = cl_module()
    if buffer.place == "cpu":
        return DeviceMemory(array=aligned_zeros((buffer.bytes // 4,)))
    with explained(f"Allocating {what} on {device.device.name}"):
        if buffer.place == "shared":
            array, seen = seen_zeros(device, buffer.bytes // 4)
            return DeviceMemory(seen, array)
        if buffer.place == "flag":
            words, seen = flag_words(device)
            return DeviceMemory(seen, words=words)
        if buffer.place == "staging":
            staging = Staging(device, buffer.bytes)
            staging.touch()
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
    """Memory that kernels read these values from."""
    flags = cl_module().mem_flags.READ_ONLY | cl_module().mem_flags.COPY_HOST_PTR
    with explained(f"Allocating {values.nbytes} bytes of weights on {device.device.name}"):
        if constant.is_image:
            return make_image(device, ImageSize.of(values), values)
        checked_size(device, values.nbytes)
        return cl_module().Buffer(device.context, flags, hostbuf=np.ascontiguousarray(values))


def checked_size(gpu: OpenClDevice, size: int) -> int:
    """A buffer's size in bytes; raises `DeviceError` where the device allows none so large."""
    most = gpu.device.max_mem_alloc_size
    if size > most:
        raise DeviceError(f"A buffer of {size} bytes is wanted, {gpu.device.name} allows {most}.")
    return size


def make_image(gpu: OpenClDevice, size: ImageSize, values: ConstantArray | None = None) -> cl.Image:
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


#: Counts are unsigned words that begin anew behind the last one; of two the one that is less than
#: half of them ahead is the later one.
WORDS, HALF = 1 << 32, 1 << 31
#: Of what a wait took before, the part that is slept, and the least sleep: systems wake
#: a thread up to a tenth of a millisecond late.
SLEPT, LEAST_S = 0.7, 0.0005
#: How fast the usual wait follows longer ones; it follows shorter ones at once.
FOLLOWS = 0.125
#: Looks at a flag between two looks at the clock.
LOOKS = 64
#: A flag that is not raised by then may never be: the queue is asked, now and then.
ASK_S, AGAIN_S = 1.0, 0.01


@dataclass
class Pace:
    """How long to sleep before looking: learned from the waits so far, in seconds."""

    usual_s: float = 0.0

    @property
    def sleep_s(self) -> float:
        slept = SLEPT * self.usual_s
        return slept if slept >= LEAST_S else 0.0

    def waited(self, seconds: float, *, was_late: bool) -> None:
        """Learn from a wait; it was late where the flag was up when the thread woke up."""
        if was_late:
            self.usual_s = min(self.usual_s, seconds) / 2
        else:
            self.usual_s += (seconds - self.usual_s) * (FOLLOWS if seconds > self.usual_s else 1.0)


class Flag:
    """A flag, the kernel that raises it, and how far it will have been raised."""

    def __init__(self, device: OpenClDevice, words: Any, kernel: BoundKernel) -> None:
        self._device, self._kernel = device, kernel
        self._words = memoryview(words)
        self._raised = int(self._words[0])
        self._pace, self._barrier = Pace(), Lock()

    def enqueue(self) -> None:
        """Let the queue raise it when all before is done."""
        self._device.submit([self._kernel])
        self._raised = (self._raised + 1) % WORDS

    @property
    def is_up(self) -> bool:
        """Whether all that was enqueued has raised it."""
        return (self._words[0] - self._raised) % WORDS < HALF

    def wait(self) -> None:
        """Until it is up; raises `DeviceError` where the queue failed or is done without."""
        begin = perf_counter()
        slept_s = 0.0
        if not self.is_up:
            self._device.queue.flush()
            slept_s = 0.0 if self._device.soc.gpu.is_cpu else self._pace.sleep_s
            if slept_s:
                sleep(slept_s)
        was_late = slept_s > 0 and self.is_up
        self._look(begin)
        self._pace.waited(perf_counter() - begin, was_late=was_late)
        with self._barrier:  # what is read from now on was written before the flag was
            pass

    def _look(self, begin: float) -> None:
        rests = self._device.soc.gpu.is_cpu and not self._device.waits_apart
        while not self.is_up:
            for _ in range(LOOKS):
                if self.is_up:
                    return
            if rests:  # the device may need this very core
                sleep(0)
            if perf_counter() - begin > ASK_S:
                self._ask()

    def _ask(self) -> None:
        """Go on looking, now and then, until the queue is done with all of it."""
        cl, name = cl_module(), self._device.soc.gpu.name
        with explained(f"Waiting for a flag of {name}"):
            marker = cl.enqueue_marker(self._device.queue)
            self._device.queue.flush()
            while (
                not self.is_up
                and (now := _status_of(marker)) != cl.command_execution_status.COMPLETE
            ):
                if now < cl.command_execution_status.COMPLETE:
                    raise DeviceError(f"A command failed on {name} ({describe(now)}).")
                sleep(AGAIN_S)
            if not self.is_up:
                raise DeviceError(
                    f"{name} is done with everything, and the CPU does not see the flag that a "
                    "kernel raised. `codl soc detect` finds out whether it can; without "
                    "`signal: flag` in the SoC file events are waited for."
                )


def _status_of(event: cl.Event) -> int:
    return int(event.command_execution_status)
