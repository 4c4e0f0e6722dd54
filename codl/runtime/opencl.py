"""The GPU side: one OpenCL device, its compiled kernels, and tensors in its layout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import RLock, get_native_id
from typing import TYPE_CHECKING

import numpy as np

from codl.errors import CodlWarning, DeviceError
from codl.ir import Array, Region, Shape, Weights
from codl.ir.soc import Soc
from codl.ir.types import BLOCKED, PLANAR, Constant, ImageSize, Storage
from codl.kernels.base import KernelPlan, TensorArg
from codl.kernels.layout.transform import transform
from codl.runtime import cl_enqueue as launch
from codl.runtime import drivers, hints, threads
from codl.runtime.bound_kernel import Arguments, BoundKernel
from codl.runtime.cl_errors import describe, explained
from codl.runtime.cl_import import cl_module
from codl.runtime.memory import (
    GpuTensor,
    SharedBuffer,
    TensorPool,
    checked_size,
    make_image,
)
from codl.runtime.program_cache import Binary, Offer, Programs

if TYPE_CHECKING:
    import pyopencl as cl

BUSY = """
kernel void busy(global float *out) {
    float x = get_global_id(0);
    for (int i = 0; i < 4096; i++) x = 0.5f * x + 1.0f;
    out[get_global_id(0)] = x;
}
"""


class OpenClDevice:
    """An open OpenCL device: context, in-order queue and compiled programs.

    Opening one fixes the driver for the whole process, because the loader looks only once.
    """

    #: Whether a thread that waits for a device that is a CPU works through its queue with it.
    waiting_helps: bool = False

    def __init__(self, soc: Soc, offer: Offer | None = None) -> None:
        """Open it; `offer` are binaries that spare compilations, from the first one on."""
        self.soc = soc
        #: Whether kernels run once when they are bound; see `known_kernels`.
        self._tries = True
        #: Held by whoever runs something on this device and its CPU.
        self.lock = RLock()
        with threads.pinned(soc.gpu.cores) as existing:
            with drivers.loaded([drivers.find_driver(soc.gpu.icd)], cores=soc.gpu.cores):
                device = _find_device(soc)
            self.device = device
            self.context = hints.make_context(device, soc)
            self.queue = hints.make_queue(self.context, soc)
            self.programs = Programs(self.context)
            if offer is not None:
                self.programs.offer(offer)
            # In here, because threads of a driver inherit the cores of the one that makes them.
            self.worker_threads = self._start_workers() | (threads.thread_ids() - existing)
        for text in filter(None, (self.mismatch, *hints.ignored(device, soc))):
            warnings.warn(text, CodlWarning, stacklevel=2)
        threads.spread(self.worker_threads, soc.gpu.cores or threads.available_cores())

    @property
    def sees_host_memory(self) -> bool:
        """Whether kernels and the CPU can work on the same memory without mapping it.

        Only where that memory is its own: a discrete card would read it over the bus each time.
        """
        fine = cl_module().device_svm_capabilities.FINE_GRAIN_BUFFER
        return self.soc.gpu.unified_memory and bool(svm_capabilities(self.device) & fine)

    @property
    def mismatch(self) -> str:
        """How the driver differs from the SoC file's, under whose name all results are filed."""
        found, named = self.device.driver_version, self.soc.gpu.driver
        if found == named:
            return ""
        return (
            f"The driver of {self.soc.gpu.name} is {found!r}, the SoC file says {named!r}: "
            f"`codl soc detect --serial local --name {self.soc.name}` writes it anew."
        )

    def tensor(self, shape: Shape, region: Region, storage: Storage = BLOCKED) -> GpuTensor:
        """Allocate a region of a tensor shaped `shape`, filled with zeros.

        Raises `DeviceError` where the device has no room for it.
        """
        with explained(f"Allocating {region} of a {storage} tensor {shape} on {self.device.name}"):
            return GpuTensor.allocate(self, shape, region, storage)

    def upload(self, tensor: GpuTensor, values: Array) -> None:
        """Fill a tensor's region with planar values, shaped (images, channels, rows, columns)."""
        shared = SharedBuffer(self, tensor.shape, tensor.region)
        self.wait(shared.map(write=True))
        np.copyto(shared.array, values)
        shared.unmap()
        self.run(self.transform(shared.tensor, tensor, tensor.region))

    def transform(
        self, source: GpuTensor, target: GpuTensor, region: Region, label: str = ""
    ) -> list[BoundKernel]:
        """Kernels that copy `region` from one tensor to another of the same shape, in any storage.

        Between two layouts other than the planar one they go through it where they must.
        """
        layouts = (source.storage.layout, target.storage.layout)
        if layouts[1] == "image" and not target.is_whole_blocks(region):
            return self._within_texels(source, target, region, label)
        whole = source.is_whole_blocks(region, 4) and target.is_whole_blocks(region, 4)
        if "planar" not in layouts and (layouts[0] == layouts[1] or not whole):
            between = self.tensor(source.shape, region, PLANAR)
            first = self.transform(source, between, region, label)
            return first + self.transform(between, target, region, label)
        # Of two sides the one with the larger blocks says where the region lies in them.
        blocked = max((source, target), key=lambda tensor: tensor.block)
        lead = blocked.lead(region)
        plan = transform(
            source.storage,
            target.storage,
            region.shape(source.shape),
            self.soc,
            lead=lead,
            ends=region.channels.stop == blocked.region.channels.stop,
        )
        sides = {TensorArg("input"): source, TensorArg("output"): target}
        return self.bind(
            plan,
            {a: (t, region.led_by(lead) if t is blocked else region) for a, t in sides.items()},
            label=label,
        )

    def _within_texels(
        self, source: GpuTensor, target: GpuTensor, region: Region, label: str
    ) -> list[BoundKernel]:
        """A transform to channels of an image that share texels with others.

        A kernel cannot both read and write an image, so these others go out and in with them.
        """
        around = target.blocks_around(region)
        between = self.tensor(target.shape, around, Storage("planar", target.storage.element))
        return [
            *self.transform(target, between, around, label),
            *self.transform(source, between, region, label),
            *self.transform(between, target, around, label),
        ]

    def bind(
        self,
        plan: KernelPlan,
        tensors: Mapping[TensorArg, tuple[GpuTensor, Region]],
        *,
        weights: Weights | None = None,
        label: str = "",
        pool: TensorPool | None = None,
    ) -> list[BoundKernel]:
        """Compile a plan and set its arguments, for every image of the regions.

        `tensors` gives every tensor argument its tensor and the region meant; one of one image is
        read again for every image of the others. Scratch memory is of the `pool`, where one is
        given, and free for others behind these kernels. Raises `DeviceError` with the compiler's
        log and the macros where the source does not build, and with what is wanted and what is
        allowed where memory or a work-group is too large.
        """
        for argument, (tensor, _) in tensors.items():
            if tensor.storage != plan.storage(argument):
                wanted = plan.storage(argument)
                raise ValueError(f"{plan.source} wants {argument} {wanted}, not {tensor.storage}")
        program = self.programs.build(plan)
        with threads.one_blas_thread():
            packed = plan.pack(weights or {})
        constants = {k: self._constant(v, image=k in plan.images) for k, v in packed.items()}
        scratch = {k: self._scratch(size, pool) for k, size in plan.scratch.items()}
        arguments = Arguments(tensors, constants, scratch)
        with explained(f"Binding the kernels of {plan.source}"):
            bound = [
                BoundKernel(
                    label or launch.kernel,
                    cl_module().Kernel(program, launch.kernel),
                    launch.global_size,
                    launch.local_size,
                    arguments.values(launch, image),
                )
                for image in range(1 if plan.whole_batch else arguments.images)
                for launch in plan.launches
            ]
        for kernel in bound[: len(plan.launches)]:
            kernel.check(self.device)
        for name, size in plan.scratch.items():
            if pool is not None and not isinstance(size, ImageSize):
                pool.give_scratch(scratch[name])
        return bound

    def warm_up(self, kernels: Sequence[BoundKernel]) -> None:
        """Run kernels once, each to its end: what a driver does or refuses at a first launch.

        Raises `DeviceError` with the kernel's name.
        """
        if not self._tries:
            return
        for kernel in kernels:
            with explained(f"Running the kernel {kernel.name!r} on {self.device.name}"):
                self.run([kernel])

    @contextmanager
    def known_kernels(self) -> Iterator[None]:
        """Inside, no kernel is run for a trial: all have run with this very driver before."""
        with self.lock:
            before, self._tries = self._tries, False
            try:
                yield
            finally:
                self._tries = before

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Use a queue that records when kernels ran; a launch costs more on it."""
        usual = self.queue
        usual.finish()
        properties = cl_module().command_queue_properties.PROFILING_ENABLE
        self.queue = cl_module().CommandQueue(self.context, properties=properties)
        try:
            yield
            self.queue.finish()
        finally:
            self.queue = usual

    def submit(self, kernels: Sequence[BoundKernel]) -> None:
        """Enqueue kernels without events, which is cheaper; does not flush."""
        function, queue = launch.enqueue_function(), launch.pointer(self.queue)
        for kernel in kernels:
            if function is None:
                kernel.enqueue(self.queue)
            elif code := function(queue, *kernel.arguments):
                raise DeviceError(f"Enqueueing the kernel {kernel.name!r} failed, code {code}.")

    def run(self, kernels: Sequence[BoundKernel]) -> None:
        """Enqueue kernels and wait for the last."""
        if not kernels:
            return
        self.submit(kernels[:-1])
        last = kernels[-1].enqueue(self.queue)
        self.queue.flush()
        self.wait(last)

    def wait(self, event: cl.Event) -> None:
        """Wait for one event.

        A runtime that works on a CPU lets the thread that waits work through the queue, and Intel's
        then returns only when the whole queue is empty: such a thread looks at the event instead.
        """
        if self.soc.gpu.is_cpu and not self.waiting_helps:
            self.queue.flush()  # of a queue that is not flushed, nothing need ever begin
            complete = cl_module().command_execution_status.COMPLETE
            while (status := event.command_execution_status) > complete:
                pass
            if status < complete:
                reason = describe(status)
                raise DeviceError(f"A command failed on {self.soc.gpu.name} ({reason}).")
        else:
            event.wait()

    def _constant(self, value: Constant, *, image: bool) -> cl.MemoryObject:
        flags = cl_module().mem_flags.READ_ONLY | cl_module().mem_flags.COPY_HOST_PTR
        with explained(f"Allocating {value.nbytes} bytes of weights on {self.device.name}"):
            if image:
                return make_image(self, ImageSize.of(value), value)
            checked_size(self, value.nbytes)
            return cl_module().Buffer(self.context, flags, hostbuf=np.ascontiguousarray(value))

    def _scratch(self, size: int | ImageSize, pool: TensorPool | None = None) -> cl.MemoryObject:
        flags = cl_module().mem_flags.READ_WRITE
        with explained(f"Allocating scratch of {size} on {self.device.name}"):
            if isinstance(size, ImageSize):
                return make_image(self, size)

            def buffer() -> cl.Buffer:
                return cl_module().Buffer(self.context, flags, checked_size(self, size))

            return buffer() if pool is None else pool.scratch(size, buffer)

    def busy_binary(self) -> Binary:
        """The compiled program of `busy_kernel`."""
        return self.programs.binary("busy", BUSY)

    def busy_kernel(self) -> BoundKernel:
        """A kernel that keeps the device busy for some milliseconds, to see where it runs."""
        kernel = cl_module().Kernel(self.programs.build_text("busy", BUSY), "busy")
        size = 1024 * self.soc.gpu.compute_units
        return BoundKernel("busy", kernel, (size,), None, [self._scratch(4 * size)])

    def _start_workers(self) -> set[int]:
        """Run a kernel, so that the driver makes its threads now, on cores that they may use.

        Returns the threads that worked on it, the calling one aside.
        """
        busy, observer = self.busy_kernel(), threads.CoreObserver(ignore=[get_native_id()])
        self.run([busy])
        observer.sample()
        return observer.threads


def open_device(soc: Soc, offer: Offer | None = None) -> OpenClDevice:
    """The SoC's OpenCL device; opened at the first call, the same object ever after.

    It takes what binaries are offered. Raises `UnsupportedError` for a SoC of replayed latencies,
    which has no device.
    """
    soc.check_present()
    opened = _opened(soc)
    if not opened:
        opened.append(OpenClDevice(soc, offer))
    elif offer is not None:
        opened[0].programs.offer(offer)
    return opened[0]


@cache
def _opened(soc: Soc) -> list[OpenClDevice]:
    """Where a SoC's device is kept once it is open."""
    return []


def svm_capabilities(device: cl.Device) -> int:
    """Of OpenCL 2.0 and later; 0 where the driver does not know the question."""
    try:
        return int(device.svm_capabilities)
    except cl_module().Error:
        return 0


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
        return list(cl_module().get_platforms())
    except cl_module().LogicError as error:
        raise DeviceError(f"The OpenCL driver does not load: {error}") from error
