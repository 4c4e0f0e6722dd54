"""An open OpenCL device, with its context, its queue and their hints.

Hints set the speed of a GPU and its priority beside other programs. Qualcomm's drivers accept hints
for a context (cl_qcom_perf_hint, cl_qcom_priority_hint), Khronos's extensions for a queue
(cl_khr_throttle_hints, cl_khr_priority_hints).
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from threading import get_native_id
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

from codl.errors import CodlError, CodlWarning, DeviceError
from codl.ir.records.gpu_limits import UNLIMITED
from codl.machine import threads
from codl.machine.driver_search import find_driver
from codl.machine.placement import LocalSoc, Placement, check_cores
from codl.runtime import drivers
from codl.runtime.drivers import (
    as_device_error,
    cl_module,
    describe,
    is_stand_in,
    loader,
    make_kernel,
    process_of_drivers,
)
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Binary, Offer
from codl.runtime.program_cache import Programs

if TYPE_CHECKING:
    import pyopencl as cl


CONTEXT_PLATFORM = 0x1084
#: For each kind of hint: extension name, property number, and values of the levels.
LEVELS = ("high", "normal", "low")
HintTable: TypeAlias = dict[str, tuple[str, int, tuple[int, int, int]]]
CONTEXT_HINTS: HintTable = {
    "performance": ("cl_qcom_perf_hint", 0x40C2, (0x40C3, 0x40C4, 0x40C5)),
    "priority": ("cl_qcom_priority_hint", 0x40C9, (0x40CA, 0x40CB, 0x40CC)),
}
QUEUE_HINTS: HintTable = {
    "performance": ("cl_khr_throttle_hints", 0x1097, (1, 2, 4)),
    "priority": ("cl_khr_priority_hints", 0x1096, (1, 2, 4)),
}
#: Extension whose presence implies another: older Qualcomm drivers list only the first.
LISTED_AS = {"cl_qcom_priority_hint": "cl_qcom_perf_hint"}


@dataclass
class Hints:
    """OpenCL properties for the hints of a placement.

    `requested` are the non-default hints by kind. `context` and `queue` are properties and values
    for either object. `ignored` maps a kind to the reason why the driver ignores it.
    """

    requested: dict[str, str]
    context: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, placement: Placement, extensions: str) -> Hints:
        """Hints of a placement for a device's extensions; by default `low` on a GPU with limits."""
        usual = "low" if placement.limits else "default"
        chosen = {"performance": placement.performance, "priority": placement.priority}
        hints = {kind: usual if hint == "default" else hint for kind, hint in chosen.items()}
        plan = cls({kind: hint for kind, hint in hints.items() if hint != "default"})
        listed = {*extensions.split()}
        for kind, hint in plan.requested.items():
            for properties, table in ((plan.context, CONTEXT_HINTS), (plan.queue, QUEUE_HINTS)):
                extension, name, values = table[kind]
                if listed & {extension, LISTED_AS.get(extension)}:
                    properties += [name, values[LEVELS.index(hint)]]
                    break
            else:
                names = CONTEXT_HINTS[kind][0], QUEUE_HINTS[kind][0]
                plan.ignored[kind] = f"it has neither {names[0]} nor {names[1]}"
        return plan

    def report(self) -> dict[str, str]:
        """Each requested hint, with the reason if the driver ignores it."""
        return {
            kind: f"{hint}, without effect: {self.ignored[kind]}" if kind in self.ignored else hint
            for kind, hint in self.requested.items()
        }


def ignored(device: cl.Device, placement: Placement) -> list[str]:
    """A message for each hint of the user that a device's driver ignores."""
    hints = Hints.of(replace(placement, limits=UNLIMITED), device.extensions)
    return [
        f"The driver of {device.name} takes no {kind} hint, so {hints.requested[kind]!r} has no "
        f"effect: {reason}."
        for kind, reason in hints.ignored.items()
    ]


def context_of(device: cl.Device, properties: list[int]) -> cl.Context:
    """A context with properties unknown to pyopencl, made through the loader."""
    from codl.runtime.cl_library import Error

    values = [CONTEXT_PLATFORM, device.platform.int_ptr, *properties]
    try:
        if is_stand_in():
            return cl_module().Context([device], values)
        wanted = (ctypes.c_ssize_t * (len(values) + 1))(*values, 0)
        address = ctypes.byref(ctypes.c_void_p(device.int_ptr))
        made = loader().clCreateContext(wanted, 1, address, None, None)
    except Error as error:
        asked = ", ".join(hex(value) for value in properties)
        raise DeviceError(
            f"{device.name} makes no context with the hints {asked} ({error}): leave performance "
            "and priority at their defaults."
        ) from error
    return cl_module().Context.from_int_ptr(made, retain=False)


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
                hints, cl = Hints.of(place, device.extensions), cl_module()
                wanted = hints.context
                self.context = context_of(device, wanted) if wanted else cl.Context([device])
                self.queue = cl.CommandQueue(self.context, device, properties=hints.queue or 0)
                self.programs = Programs(self.context)
                if offer is not None:
                    self.programs.offer(offer)
                # Threads of a driver inherit the cores of this thread.
                made = self._start_workers() | (threads.thread_ids() - existing)
                self.worker_threads = made - others - threads.others_threads()
        for text in filter(None, (self.mismatch, *ignored(device, place))):
            warnings.warn(text, CodlWarning, stacklevel=2)
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

    def busy_binary(self) -> Binary:
        """The compiled program of `busy_kernel`."""
        return self.programs.binary("busy", BUSY)

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
        busy, observer = self.busy_kernel(), threads.CoreObserver(ignore=[get_native_id()])
        self.run([busy])
        observer.sample()
        return observer.threads


def _enqueueing(kernel: BoundKernel) -> AbstractContextManager[None]:
    return as_device_error(f"Enqueueing the kernel {kernel.name!r}")


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

    @classmethod
    def of(
        cls,
        soc: LocalSoc,
        why: CodlError,
        lock: AbstractContextManager[object] | None = None,
    ) -> OpenClDevice:
        """A device for executables without GPU commands, and for measuring the CPU side alone."""
        return cast(OpenClDevice, cls(soc, why, lock))

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
