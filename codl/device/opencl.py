"""The GPU side: one OpenCL device, its compiled kernels, and tensors in its layout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from threading import get_native_id
from typing import TYPE_CHECKING, Any

import numpy as np

from codl.device import drivers, threads
from codl.errors import DeviceError
from codl.kernels.base import Arg, ConstantArg, KernelPlan, Launch, ScratchArg, TensorArg
from codl.ops import Array, Region, Shape, Weights
from codl.soc import Soc

if TYPE_CHECKING:
    import pyopencl as cl

BUSY = """
kernel void busy(global float *out) {
    float x = get_global_id(0);
    for (int i = 0; i < 4096; i++) x = 0.5f * x + 1.0f;
    out[get_global_id(0)] = x;
}
"""


@dataclass(frozen=True)
class GpuTensor:
    """A region of a tensor in a buffer of its own, in the blocked layout `nc{V}hw{V}`.

    `region` starts at a whole block; rows lie densely, so that the block stride is rows x columns.
    """

    buffer: cl.Buffer
    region: Region
    width: int
    block: int

    @property
    def block_stride(self) -> int:
        return self.region.rows.size * self.width

    def view(self, part: Region) -> tuple[cl.Buffer, np.int32, np.int32]:
        """The three kernel arguments that name `part`: buffer, offset and block stride."""
        inner = part.within(self.region)
        if inner.channels.start % self.block:
            raise ValueError(f"{part} does not begin at a block of {self.block} channels")
        first = inner.channels.start // self.block
        offset = first * self.block_stride + inner.rows.start * self.width
        return self.buffer, np.int32(offset), np.int32(self.block_stride)


class BoundKernel:
    """A kernel with its arguments set, ready to be enqueued at once."""

    __slots__ = ("_buffers", "_global", "_local", "kernel", "name")

    def __init__(self, name: str, kernel: cl.Kernel, launch: Launch, values: Sequence[Any]) -> None:
        kernel.set_args(*values)
        self.name = name
        self.kernel = kernel
        self._global, self._local = launch.global_size, launch.local_size
        # Kernels do not keep their buffers alive.
        self._buffers = values

    def enqueue(self, queue: cl.CommandQueue) -> cl.Event:
        return _cl().enqueue_nd_range_kernel(queue, self.kernel, self._global, self._local)


class SharedBuffer:
    """Memory that both processors see in turns: the GPU, or the CPU while it is mapped."""

    def __init__(self, gpu: OpenClDevice, elements: int) -> None:
        flags = _cl().mem_flags.READ_WRITE | _cl().mem_flags.ALLOC_HOST_PTR
        self.buffer = _cl().Buffer(gpu.context, flags, 4 * elements)
        self._gpu = gpu
        self._shape = (elements,)
        self._array: Array | None = None

    def map(self, *, write: bool) -> cl.Event:
        """Begin to map for reading, or for writing everything; the event says when it is done."""
        flags = _cl().map_flags
        access = flags.WRITE_INVALIDATE_REGION if write else flags.READ
        self._array, event = _cl().enqueue_map_buffer(
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


class OpenClDevice:
    """An open OpenCL device: context, in-order queue and compiled programs.

    Opening one fixes the driver for the whole process, because the loader looks only once.
    """

    def __init__(self, soc: Soc) -> None:
        self.soc = soc
        with threads.pinned(soc.gpu.cores) as existing:
            with drivers.loaded([drivers.find_driver(soc.gpu.icd)], cores=soc.gpu.cores):
                device = _find_device(soc)
            self.context = _cl().Context([device])
            self.queue = _cl().CommandQueue(self.context)
            self.worker_threads = self._warm_up() | (threads.thread_ids() - existing)
        threads.pin(self.worker_threads, soc.gpu.cores or threads.available_cores())
        self._programs: dict[tuple[str, str], cl.Program] = {}

    def tensor(self, shape: Shape, region: Region) -> GpuTensor:
        """Allocate a region of a tensor shaped `shape`, its channels rounded to whole blocks."""
        block = self.soc.gpu.vector_width
        pixels = self.soc.gpu.blocks(region.channels.size) * region.rows.size * shape.w
        buffer = _cl().Buffer(self.context, _cl().mem_flags.READ_WRITE, 4 * pixels * block)
        # Lanes beyond the last channel must be finite from the start.
        _cl().enqueue_fill_buffer(self.queue, buffer, np.float32(0), 0, 4 * pixels * block)
        return GpuTensor(buffer, region, shape.w, block)

    def bind(
        self,
        plan: KernelPlan,
        tensors: Mapping[TensorArg, tuple[GpuTensor, Region]],
        *,
        weights: Weights | None = None,
        scratch: Mapping[str, cl.Buffer] | None = None,
        label: str = "",
    ) -> list[BoundKernel]:
        """Compile a plan and set its arguments.

        `tensors` gives every tensor argument its tensor and the region meant. `scratch` gives
        buffers for scratch arguments; those it lacks are allocated. Raises `DeviceError` with the
        compiler's log and the macros where the source does not build.
        """
        program = self._program(plan)
        constants = {k: self._constant(v) for k, v in plan.pack(weights or {}).items()}
        own = {k: v for k, v in plan.scratch.items() if k not in (scratch or {})}
        buffers = {k: self._scratch(size) for k, size in own.items()} | dict(scratch or {})

        def values(arg: Arg) -> list[Any]:
            if isinstance(arg, TensorArg):
                tensor, region = tensors[arg]
                return list(tensor.view(region))
            if isinstance(arg, ConstantArg):
                return [constants[arg.name]]
            if isinstance(arg, ScratchArg):
                return [buffers[arg.name]]
            return [np.float32(arg) if isinstance(arg, float) else np.int32(arg)]

        return [
            BoundKernel(
                label or launch.kernel,
                _cl().Kernel(program, launch.kernel),
                launch,
                [value for arg in launch.args for value in values(arg)],
            )
            for launch in plan.launches
        ]

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Use a queue that records when kernels ran; a launch costs more on it."""
        usual = self.queue
        usual.finish()
        properties = _cl().command_queue_properties.PROFILING_ENABLE
        self.queue = _cl().CommandQueue(self.context, properties=properties)
        try:
            yield
            self.queue.finish()
        finally:
            self.queue = usual

    def run(self, kernels: Sequence[BoundKernel]) -> None:
        """Enqueue kernels and wait for the last."""
        event = None
        for kernel in kernels:
            event = kernel.enqueue(self.queue)
        self.queue.flush()
        if event is not None:
            self.wait(event)

    def wait(self, event: cl.Event) -> None:
        """Wait for one event of a flushed queue.

        A runtime that works on a CPU lets the thread that waits work through the queue, and Intel's
        then returns only when the whole queue is empty: such a thread looks at the event instead.
        """
        if self.soc.gpu.is_cpu:
            complete = _cl().command_execution_status.COMPLETE
            while (status := event.command_execution_status) > complete:
                pass
            if status < complete:
                raise DeviceError(f"A command failed on {self.soc.gpu.name} with code {status}.")
        else:
            event.wait()

    def _program(self, plan: KernelPlan) -> cl.Program:
        options = [f"-D{key}={value}" for key, value in sorted(plan.defines.items())]
        key = (plan.source, " ".join(options))
        if key not in self._programs:
            text = _source("common.cl") + _source(plan.source)
            program = _cl().Program(self.context, text)
            try:
                self._programs[key] = program.build(["-cl-std=CL1.2", *options])
            except _cl().RuntimeError as error:
                raise DeviceError(
                    f"{plan.source} does not build on {self.soc.gpu.name} with {key[1]}:\n{error}"
                ) from error
        return self._programs[key]

    def _constant(self, value: Array) -> cl.Buffer:
        flags = _cl().mem_flags.READ_ONLY | _cl().mem_flags.COPY_HOST_PTR
        return _cl().Buffer(self.context, flags, hostbuf=np.ascontiguousarray(value, np.float32))

    def _scratch(self, size: int) -> cl.Buffer:
        return _cl().Buffer(self.context, _cl().mem_flags.READ_WRITE, size)

    def busy_kernel(self) -> BoundKernel:
        """A kernel that keeps the device busy for some milliseconds, to see where it runs."""
        kernel = _cl().Kernel(_cl().Program(self.context, BUSY).build(), "busy")
        size = 1024 * self.soc.gpu.compute_units
        return BoundKernel("busy", kernel, Launch("busy", (size,), ()), [self._scratch(4 * size)])

    def _warm_up(self) -> set[int]:
        """Run a kernel, so that the driver makes its threads now, on cores that they may use.

        Returns the threads that worked on it, the calling one aside.
        """
        busy, observer = self.busy_kernel(), threads.CoreObserver(ignore=[get_native_id()])
        self.run([busy])
        observer.sample()
        return observer.threads


@cache
def open_device(soc: Soc) -> OpenClDevice:
    """The SoC's OpenCL device; opened at the first call, the same object ever after."""
    return OpenClDevice(soc)


def _find_device(soc: Soc) -> cl.Device:
    found = [(p, d) for p in _platforms() for d in p.get_devices()]
    for platform, device in found:
        if (platform.name.strip(), device.name.strip()) == (soc.gpu.platform, soc.gpu.name):
            return device
    names = ", ".join(repr(d.name.strip()) for _, d in found) or "none"
    raise DeviceError(
        f"The driver {soc.gpu.icd!r} has no device {soc.gpu.name!r} (found: {names}). A process "
        f"loads one driver; `codl soc detect --serial local --name {soc.name}` writes the SoC "
        "file anew."
    )


def _platforms() -> list[cl.Platform]:
    try:
        return list(_cl().get_platforms())
    except _cl().LogicError as error:
        raise DeviceError(f"The OpenCL driver does not load: {error}") from error


@cache
def _source(name: str) -> str:
    return resources.files("codl.kernels").joinpath(name).read_text()


@cache
def _cl() -> Any:
    """pyopencl, imported only once the loader's environment is set."""
    import pyopencl

    # Drivers chat on success too; what they say about a failure is in its exception.
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl
