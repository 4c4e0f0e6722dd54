"""The GPU side: one OpenCL device, its compiled kernels, and tensors in its layout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import get_native_id
from typing import TYPE_CHECKING

from codl.errors import CodlWarning, DeviceError
from codl.runtime import drivers, hints, threads
from codl.runtime.bound_kernel import BoundKernel, enqueue_function, pointer
from codl.runtime.cl_errors import describe, explained
from codl.runtime.cl_import import cl_module, make_kernel, process_of_drivers
from codl.runtime.placement import LocalSoc, check_cores
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

    What runs on one device takes turns. Opening one fixes the driver for the whole process, because
    the loader looks only once.
    """

    def __init__(self, soc: LocalSoc, offer: Offer | None = None) -> None:
        """Open it; `offer` are binaries that spare compilations, from the first one on.

        Raises `DeviceError` where this machine has no such device, or not the cores of a side.
        """
        threads.check_process(process_of_drivers(), "OpenCL was loaded")
        check_cores(soc.placement)
        self.soc = soc
        #: Held by whoever runs something on this device and its CPU.
        self.lock = threads.ProcessLock()
        self._held: list[object] = []
        own, other = soc.placement.gpu_cores, soc.placement.cpu_cores
        #: A thread that waits has a core that the device does not use, and keeps off its work.
        self.waits_apart = soc.gpu.is_cpu and not {*own} & {*other}
        with threads.pinned(soc.placement.gpu_cores) as existing:
            driver = drivers.find_driver(soc.placement.icd)
            others = threads.others_threads()
            with (
                drivers.loaded([driver], cores=soc.placement.gpu_cores),
                explained(f"Opening {soc.gpu.name}"),
            ):
                self.device = device = _find_device(soc)
                self.context = hints.make_context(device, soc.placement)
                self.queue = hints.make_queue(self.context, soc.placement)
                self.programs = Programs(self.context)
                if offer is not None:
                    self.programs.offer(offer)
                # In here, because threads of a driver inherit the cores of the one that makes them.
                made = self._start_workers() | (threads.thread_ids() - existing)
                self.worker_threads = made - others - threads.others_threads()
        for text in filter(None, (self.mismatch, *hints.ignored(device, soc.placement))):
            warnings.warn(text, CodlWarning, stacklevel=2)
        threads.spread(self.worker_threads, soc.placement.gpu_cores or threads.available_cores())

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
        function, queue = enqueue_function(), pointer(self.queue)
        for kernel in kernels:
            if function is None:
                kernel.enqueue(self.queue)
            elif code := function(queue, *kernel.arguments):
                reason = describe(code)
                raise DeviceError(f"Enqueueing the kernel {kernel.name!r} failed ({reason}).")

    def run(self, kernels: Sequence[BoundKernel]) -> None:
        """Enqueue kernels and wait for the last."""
        if not kernels:
            return
        self.submit(kernels[:-1])
        last = kernels[-1].enqueue(self.queue)
        self.queue.flush()
        self.wait(last)

    def finish(self) -> None:
        """Wait for all that was enqueued; the times of its events can then be read."""
        self.queue.finish()

    def let_go(self, held: object) -> None:
        """Drop what commands may still use: when they have ended.

        Where a failed device does not say that they have, it is kept until one does: memory that
        both processors see goes at once, and a driver crashes that still writes there.
        """
        self._held.append(held)
        with suppress(DeviceError), explained("Waiting for what was enqueued"):
            self.queue.finish()
            self._held.clear()

    def wait(self, event: cl.Event) -> None:
        """Wait for one event.

        A runtime that works on a CPU lets the thread that waits work through the queue, and Intel's
        then returns only when the whole queue is empty: where it has a core of its own, such a
        thread looks at the event instead.
        """
        if self.waits_apart:
            self.queue.flush()  # of a queue that is not flushed, nothing need ever begin
            complete = cl_module().command_execution_status.COMPLETE
            while (status := event.command_execution_status) > complete:
                pass
            if status < complete:
                reason = describe(status)
                raise DeviceError(f"A command failed on {self.soc.gpu.name} ({reason}).")
        else:
            event.wait()

    def busy_binary(self) -> Binary:
        """The compiled program of `busy_kernel`."""
        return self.programs.binary("busy", BUSY)

    def busy_kernel(self) -> BoundKernel:
        """A kernel that keeps the device busy for some milliseconds, to see where it runs."""
        kernel = make_kernel(self.programs.build_text("busy", BUSY), "busy")
        size = 1024 * self.soc.gpu.compute_units
        out = cl_module().Buffer(self.context, cl_module().mem_flags.READ_WRITE, 4 * size)
        return BoundKernel("busy", kernel, (size,), None, [out])

    def _start_workers(self) -> set[int]:
        """Run a kernel, so that the driver makes its threads now, on cores that they may use.

        Returns the threads that worked on it, the calling one aside.
        """
        busy, observer = self.busy_kernel(), threads.CoreObserver(ignore=[get_native_id()])
        self.run([busy])
        observer.sample()
        return observer.threads


def _find_device(soc: LocalSoc) -> cl.Device:
    found = [(p, d) for p in _platforms() for d in p.get_devices()]
    for platform, device in found:
        if (platform.name.strip(), device.name.strip()) == (soc.gpu.platform, soc.gpu.name):
            return device
    names = ", ".join(repr(d.name.strip()) for _, d in found) or "none"
    raise DeviceError(
        f"The driver {soc.placement.icd!r} has no device {soc.gpu.name!r} (found: {names}). A "
        f"process loads one driver; `codl soc detect --serial local --name {soc.name}` writes "
        "the SoC file anew."
    )


def _platforms() -> list[cl.Platform]:
    try:
        return list(cl_module().get_platforms())
    except cl_module().LogicError as error:
        raise DeviceError(f"The OpenCL driver does not load: {error}") from error
