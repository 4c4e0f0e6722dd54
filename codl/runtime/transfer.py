"""Data sharing on real devices: a region of a tensor on its way from one processor to the other.

Where the device sees the host's memory as it is (fine-grained shared virtual memory), a transform
kernel reads and writes the CPU's array in place, and that is all there is to do. Elsewhere the
region goes through memory that is mapped by turns, and is copied once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from codl.ir import Array, Shape
from codl.lower.program import Transfer
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.image_parallel import Lanes
from codl.runtime.memory import GpuTensor, SharedBuffer
from codl.runtime.ncnn_net import Home
from codl.runtime.opencl import OpenClDevice
from codl.runtime.profiler import Timeline

if TYPE_CHECKING:
    import pyopencl as cl


#: Fewer bytes are copied in the time that it takes to wake other threads.
WORTH_SHARING = 1 << 20
#: So many cores reach the speed of the memory, and more only take longer to wake.
MOST_COPYING = 4


class ToCpu(Protocol):
    """GPU to CPU, in two steps between which the CPU can do something else."""

    def begin(self, timeline: Timeline | None) -> None:
        """Enqueue; does not wait."""
        ...

    def end(self, timeline: Timeline | None) -> None:
        """Wait until the CPU's array holds the region."""
        ...


class ToGpu(Protocol):
    """CPU to GPU: what is enqueued after it sees the region."""

    def run(self, timeline: Timeline | None) -> None: ...


class InPlaceToCpu:
    """A kernel writes to the CPU's array."""

    _done: cl.Event

    def __init__(self, label: str, kernels: Sequence[BoundKernel], gpu: OpenClDevice) -> None:
        self.label, self._kernels, self._gpu = label, kernels, gpu

    def begin(self, timeline: Timeline | None) -> None:
        enqueue(self._kernels[:-1], self._gpu, timeline, "transform")
        last = self._kernels[-1]
        self._done = last.enqueue(self._gpu.queue)
        if timeline is not None:
            timeline.gpu("transform", last.name, self._done)

    def end(self, timeline: Timeline | None) -> None:
        start = perf_counter()
        self._gpu.wait(self._done)
        if timeline is not None:
            timeline.cpu("sync", self.label, start, perf_counter())


class InPlaceToGpu:
    """A kernel reads from the CPU's array."""

    def __init__(self, label: str, kernels: Sequence[BoundKernel], gpu: OpenClDevice) -> None:
        self.label, self._kernels, self._gpu = label, kernels, gpu

    def run(self, timeline: Timeline | None) -> None:
        enqueue(self._kernels, self._gpu, timeline, "transform")


class MappedToCpu:
    """A transform kernel into shared memory, a map, and a copy into the CPU's array."""

    _ready: cl.Event

    def __init__(
        self, move: Transfer, shape: Shape, tensor: GpuTensor, home: Home, gpu: OpenClDevice
    ) -> None:
        self.label, self._gpu, self._home = label(move), gpu, home.view()
        self._shared = SharedBuffer(gpu, shape, move.region)
        self._copy = partial(copy_images, Lanes.of(gpu.soc, len(self._home)).narrow(MOST_COPYING))
        self._kernels = transform(gpu, tensor, self._shared.tensor, move)

    def begin(self, timeline: Timeline | None) -> None:
        enqueue(self._kernels, self._gpu, timeline, "transform")
        self._ready = self._shared.map(write=False)

    def end(self, timeline: Timeline | None) -> None:
        """Wait for the map, copy, hand the memory back."""
        start = perf_counter()
        self._gpu.wait(self._ready)
        mapped = perf_counter()
        self._copy(self._home, self._shared.array)
        copied = perf_counter()
        self._shared.unmap()
        if timeline is not None:
            timeline.cpu("sync", self.label, start, mapped)
            timeline.cpu("copy", self.label, mapped, copied)
            timeline.cpu("unmap", self.label, copied, perf_counter())


class MappedToGpu:
    """A copy into shared memory, an unmap, and a transform kernel.

    The memory is mapped again at once, for the next inference, off this one's critical path.
    """

    def __init__(
        self, move: Transfer, shape: Shape, tensor: GpuTensor, home: Home, gpu: OpenClDevice
    ) -> None:
        self.label, self._gpu, self._home = label(move), gpu, home.view()
        self._shared = SharedBuffer(gpu, shape, move.region)
        self._copy = partial(copy_images, Lanes.of(gpu.soc, len(self._home)).narrow(MOST_COPYING))
        self._kernels = transform(gpu, self._shared.tensor, tensor, move)
        self._ready = self._shared.map(write=True)

    def run(self, timeline: Timeline | None) -> None:
        start = perf_counter()
        self._gpu.wait(self._ready)
        mapped = perf_counter()
        self._copy(self._shared.array, self._home)
        copied = perf_counter()
        self._shared.unmap()
        if timeline is not None:
            timeline.cpu("map", self.label, start, mapped)
            timeline.cpu("copy", self.label, mapped, copied)
            timeline.cpu("unmap", self.label, copied, perf_counter())
        enqueue(self._kernels, self._gpu, timeline, "transform")
        self._ready = self._shared.map(write=True)


def to_cpu(
    move: Transfer,
    tensor: GpuTensor,
    home: Home,
    seen: GpuTensor | None,
    gpu: OpenClDevice,
) -> ToCpu:
    """`home` holds the tensor on the CPU; `seen` is the same memory to the GPU, if it sees it."""
    if seen is None:
        return MappedToCpu(move, tensor.shape, tensor, home.of(move.region), gpu)
    return InPlaceToCpu(label(move), transform(gpu, tensor, seen, move), gpu)


def to_gpu(
    move: Transfer,
    tensor: GpuTensor,
    home: Home,
    seen: GpuTensor | None,
    gpu: OpenClDevice,
) -> ToGpu:
    """As `to_cpu`."""
    if seen is None:
        return MappedToGpu(move, tensor.shape, tensor, home.of(move.region), gpu)
    return InPlaceToGpu(label(move), transform(gpu, seen, tensor, move), gpu)


def transform(
    gpu: OpenClDevice, source: GpuTensor, target: GpuTensor, move: Transfer
) -> list[BoundKernel]:
    """Bound and run once."""
    kernels = gpu.transform(source, target, move.region, f"transform {move.tensor}")
    gpu.warm_up(kernels)
    return kernels


def copy_images(lanes: Lanes, target: Array, source: Array) -> None:
    """Copy arrays of images, several at once where that is worth the trouble of telling others.

    One core alone does not reach the speed of the memory.
    """
    if lanes.count == 1 or target.nbytes < WORTH_SHARING:
        np.copyto(target, source)
        return

    def copy(image: int) -> None:
        np.copyto(target[image], source[image])

    lanes.each(copy, range(len(target)))


def label(move: Transfer) -> str:
    return f"{move.tensor} ({move.region})"


def enqueue(
    kernels: Sequence[BoundKernel], gpu: OpenClDevice, timeline: Timeline | None, kind: str
) -> None:
    """Enqueue kernels; with a timeline each gets a span of this kind."""
    if timeline is None:
        gpu.submit(kernels)
        return
    for kernel in kernels:
        timeline.gpu(kind, kernel.name, kernel.enqueue(gpu.queue))
