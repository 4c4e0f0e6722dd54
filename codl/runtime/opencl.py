"""An open OpenCL device, with its context and its queue."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import get_native_id
from typing import TYPE_CHECKING, NoReturn, cast

from codl.errors import CodlError, CodlWarning, DeviceError
from codl.machine import threads
from codl.machine.driver_search import find_driver
from codl.machine.placement import LocalSoc, Placement, check_cores
from codl.runtime import drivers
from codl.runtime.drivers import (
    as_device_error,
    cl_module,
    describe,
    make_kernel,
    process_of_drivers,
)
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Offer
from codl.runtime.program_cache import Programs

if TYPE_CHECKING:
    import pyopencl as cl


#: Source of `OpenClDevice.busy_kernel`.
BUSY = """
kernel void busy(global float *out) {
    float x = get_global_id(0);
    for (int i = 0; i < 4096; i++) x = 0.5f * x + 1.0f;
    out[get_global_id(0)] = x;
}
"""


class OpenClDevice:
    """An open OpenCL device: context, in-order queue and compiled programs.

    Runs take turns. Opening a device fixes the process's driver, as the loader searches only once.
    """

    def __init__(self, soc: LocalSoc, offer: Offer | None = None) -> None:
        """Open the SoC's device; kernels with a binary in `offer` are not compiled.

        Raises `DeviceError` if this machine does not have the device or the cores of a side.
        """
        threads.check_process(process_of_drivers(), "OpenCL was loaded")
        check_cores(soc.placement)
        self.soc = soc
        #: Held during a run on this device and its CPU.
        self.lock = threads.ProcessLock()
        self._held: list[object] = []
        place = soc.placement
        #: Whether a waiting thread has a core that the device does not use.
        self.waits_apart = soc.gpu.is_cpu and not {*place.gpu_cores} & {*place.cpu_cores}
        with threads.pinned(place.gpu_cores) as existing:
            others = threads.others_threads()
            with (
                drivers.loaded([find_driver(place.icd)], cores=place.gpu_cores),
                as_device_error(f"Opening {soc.gpu.name}"),
            ):
                self.device = device = _find_device(soc)
                self.context, self.queue = _opened(device, place)
                self.programs = Programs(self.context)
                if offer is not None:
                    self.programs.offer(offer)
                # Threads of a driver inherit the cores of this thread.
                made = self._start_workers() | (threads.thread_ids() - existing)
                self.worker_threads = made - others - threads.others_threads()
        if self.mismatch:
            warnings.warn(self.mismatch, CodlWarning, stacklevel=2)
        threads.spread(self.worker_threads, place.gpu_cores or threads.available_cores())

    @property
    def mismatch(self) -> str:
        """A warning if the driver differs from the SoC file's, or ""."""
        driver, named = self.device.driver_version, self.soc.gpu.driver
        if driver == named:
            return ""
        return (
            f"The driver of {self.soc.gpu.name} is {driver!r}, the SoC file says {named!r}: "
            f"`codl soc detect --serial local --name {self.soc.name}` writes it anew."
        )

    def check_open(self) -> None:
        """Raise the reason why the device is not open, if so (see `HostDevice`)."""

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Context for building programs and filling memory; subclasses may lock it."""
        yield

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Use a profiling queue inside, on which launches cost more."""
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
        """Enqueue kernels without events, which would cost a GPU's driver time; does not flush."""
        queue, is_cpu = self.queue, self.soc.gpu.is_cpu
        for kernel in kernels:
            try:
                for call in kernel.calls(queue, is_cpu=is_cpu):
                    call()
            except Exception:
                with _enqueueing(kernel):
                    raise

    def submission(self, kernels: Sequence[BoundKernel]) -> Callable[[], None]:
        """A function that submits kernels to the present queue without further look-ups.

        After a net, which displaces Python's data from the caches, look-ups are as slow as OpenCL
        calls.
        """
        queue, is_cpu = self.queue, self.soc.gpu.is_cpu
        calls = [(call, k) for k in kernels for call in k.calls(queue, is_cpu=is_cpu)]

        def submit() -> None:
            try:
                for call, _ in calls:
                    call()
            except Exception:
                with _enqueueing(next(k for c, k in calls if c is call)):
                    raise

        return submit

    def run(self, kernels: Sequence[BoundKernel]) -> None:
        """Enqueue kernels and wait for the last one."""
        if not kernels:
            return
        self.submit(kernels[:-1])
        last = kernels[-1].enqueue(self.queue)
        self.queue.flush()
        self.wait(last)

    def finish(self) -> None:
        """Wait for all enqueued commands, after which the times of their events are readable."""
        self.queue.finish()

    def release(self, held: object) -> None:
        """Free memory after the enqueued commands have ended.

        A failed device keeps its memory: a driver that writes to freed shared memory crashes.
        """
        self._held.append(held)
        with suppress(DeviceError), as_device_error("Waiting for what was enqueued"):
            self.queue.finish()
            self._held.clear()

    def wait(self, event: cl.Event) -> None:
        """Wait for an event.

        An OpenCL runtime for CPUs lets the waiting thread execute commands, and Intel's returns
        only when the queue is empty. A waiting thread with its own core polls the event instead.
        """
        if self.waits_apart:
            self.queue.flush()  # commands need not begin before a flush
            complete = cl_module().command_execution_status.COMPLETE
            while event.command_execution_status > complete:
                pass
            self.has_ended(event)
        else:
            event.wait()

    def has_ended(self, event: cl.Event) -> bool:
        """Whether an event's command has ended; raises `DeviceError` if it failed."""
        status = event.command_execution_status
        complete = cl_module().command_execution_status.COMPLETE
        if status < complete:
            raise DeviceError(f"A command failed on {self.soc.gpu.name} ({describe(status)}).")
        return bool(status == complete)

    def busy_kernel(self) -> BoundKernel:
        """A kernel that keeps the device busy for some milliseconds."""
        kernel = make_kernel(self.programs.build_text("busy", BUSY), "busy")
        size = 1024 * self.soc.gpu.compute_units
        out = cl_module().Buffer(self.context, cl_module().mem_flags.READ_WRITE, 4 * size)
        return BoundKernel("busy", kernel, (size,), None, [out])

    def _start_workers(self) -> set[int]:
        """Run a kernel so that the driver creates its threads on the present cores.

        Returns ids of the threads that worked on it, without the calling one.
        """
        busy, before = self.busy_kernel(), threads.used_ns()
        self.run([busy])
        worked = {thread for thread, ns in threads.used_ns().items() if ns > before.get(thread, 0)}
        return worked - {get_native_id()}


def _enqueueing(kernel: BoundKernel) -> AbstractContextManager[None]:
    return as_device_error(f"Enqueueing the kernel {kernel.name!r}")


def _opened(device: cl.Device, place: Placement) -> tuple[cl.Context, cl.CommandQueue]:
    """A context and a queue with the hints of a placement."""
    if place.limits or (place.performance, place.priority) != ("default", "default"):
        from codl.runtime import hints  # most placements have none

        return hints.opened(device, place)
    context = cl_module().Context([device])
    return context, cl_module().CommandQueue(context, device)


def _find_device(soc: LocalSoc) -> cl.Device:
    try:
        platforms = list(cl_module().get_platforms())
    except cl_module().LogicError as error:
        raise DeviceError(f"The OpenCL driver does not load: {error}") from error
    devices = [(platform, device) for platform in platforms for device in platform.get_devices()]
    for platform, device in devices:
        if (platform.name.strip(), device.name.strip()) == (soc.gpu.platform, soc.gpu.name):
            return device
    names = ", ".join(repr(d.name.strip()) for _, d in devices) or "none"
    raise DeviceError(
        f"The driver {soc.placement.icd!r} has no device {soc.gpu.name!r} (found: {names}). A "
        f"process loads one driver; `codl soc detect --serial local --name {soc.name}` writes "
        "the SoC file anew."
    )


class HostDevice:
    """The CPU side of a SoC without its OpenCL device, whose attributes raise `why`."""

    def __init__(
        self, soc: LocalSoc, why: CodlError, lock: AbstractContextManager[object] | None
    ) -> None:
        self.soc, self._why = soc, why
        self.lock = lock or threads.ProcessLock()

    def check_open(self) -> NoReturn:
        raise self._why

    def loading(self) -> AbstractContextManager[None]:
        return nullcontext()

    profiling = loading

    def finish(self) -> None:
        """Nothing is enqueued."""

    def release(self, held: object) -> None:
        """Nothing uses the memory."""

    def __getattr__(self, name: str) -> NoReturn:
        raise self._why


def host_device(
    soc: LocalSoc, why: CodlError, lock: AbstractContextManager[object] | None = None
) -> OpenClDevice:
    """A device for executables without GPU commands, and for measuring the CPU side alone."""
    return cast(OpenClDevice, HostDevice(soc, why, lock))
