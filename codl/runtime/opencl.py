"""The GPU side: one OpenCL device, its compiled kernels, and tensors in its layout.

Hints say how fast a GPU is to work, and how urgent that is beside the work of others. Qualcomm's
drivers take them when a context is made (cl_qcom_perf_hint, cl_qcom_priority_hint), Khronos's
extensions when a queue is (cl_khr_throttle_hints, cl_khr_priority_hints).
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from threading import get_native_id
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

from codl.errors import CodlError, CodlWarning, DeviceError
from codl.records.gpu_limits import UNLIMITED
from codl.runtime import drivers, threads
from codl.runtime.cl_library import Error
from codl.runtime.driver_search import find_driver
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
from codl.runtime.placement import LocalSoc, Placement, check_cores
from codl.runtime.program_cache import Binary, Offer, Programs

if TYPE_CHECKING:
    import pyopencl as cl


CONTEXT_PLATFORM = 0x1084
#: By kind of hint the extension, the property that it defines, and the property's values by hint.
Hints: TypeAlias = dict[str, tuple[str, int, dict[str, int]]]
CONTEXT_HINTS: Hints = {
    "performance": ("cl_qcom_perf_hint", 0x40C2, {"high": 0x40C3, "normal": 0x40C4, "low": 0x40C5}),
    "priority": (
        "cl_qcom_priority_hint",
        0x40C9,
        {"high": 0x40CA, "normal": 0x40CB, "low": 0x40CC},
    ),
}
QUEUE_HINTS: Hints = {
    "performance": ("cl_khr_throttle_hints", 0x1097, {"high": 1, "normal": 2, "low": 4}),
    "priority": ("cl_khr_priority_hints", 0x1096, {"high": 1, "normal": 2, "low": 4}),
}
#: Qualcomm's older drivers take both hints and list only the first extension.
LISTED_AS = {"cl_qcom_priority_hint": "cl_qcom_perf_hint"}


def wanted(placement: Placement) -> dict[str, str]:
    """The hints that are not the default.

    A GPU with limits is asked to go easy on others, where nobody asks for something else.
    """
    hints = {"performance": placement.performance, "priority": placement.priority}
    usual = "low" if placement.limits else "default"
    chosen = {kind: usual if hint == "default" else hint for kind, hint in hints.items()}
    return {kind: hint for kind, hint in chosen.items() if hint != "default"}


def context_properties(placement: Placement, extensions: str) -> list[int]:
    """Properties and values for a context on a device with these extensions."""
    kinds = _taken(CONTEXT_HINTS, placement, extensions)
    hints = wanted(placement)
    return [value for kind in kinds for value in _property(CONTEXT_HINTS, kind, hints[kind])]


def queue_properties(placement: Placement, extensions: str) -> list[int]:
    """The same for a queue; what a context has taken is not asked for again."""
    taken = _taken(CONTEXT_HINTS, placement, extensions)
    kinds = [k for k in _taken(QUEUE_HINTS, placement, extensions) if k not in taken]
    hints = wanted(placement)
    return [value for kind in kinds for value in _property(QUEUE_HINTS, kind, hints[kind])]


def _taken(table: Hints, placement: Placement, extensions: str) -> list[str]:
    """The kinds of wanted hints for which a device has the extension."""
    listed = extensions.split()
    return [
        kind
        for kind in wanted(placement)
        if {table[kind][0], LISTED_AS.get(table[kind][0])}.intersection(listed)
    ]


def _property(table: Hints, kind: str, hint: str) -> tuple[int, int]:
    _, name, values = table[kind]
    return name, values[hint]


def _unsupported_hints(placement: Placement, extensions: str) -> dict[str, str]:
    """For each wanted hint, the missing extensions, or "" where the driver takes it."""
    tables = (CONTEXT_HINTS, QUEUE_HINTS)
    taken = {kind for table in tables for kind in _taken(table, placement, extensions)}
    return {
        kind: ""
        if kind in taken
        else f"it has neither {CONTEXT_HINTS[kind][0]} nor {QUEUE_HINTS[kind][0]}"
        for kind in wanted(placement)
    }


def ignored(device: cl.Device, placement: Placement) -> list[str]:
    """A line for each requested hint that a device's driver ignores."""
    asked = replace(placement, limits=UNLIMITED)
    hints = wanted(asked)
    return [
        f"The driver of {device.name} takes no {kind} hint, so {hints[kind]!r} has no effect: "
        f"{reason}."
        for kind, reason in _unsupported_hints(asked, device.extensions).items()
        if reason
    ]


def hint_report(device: cl.Device, placement: Placement) -> dict[str, str]:
    """For each hint, the requested value, and the reason where the driver ignores it."""
    hints = wanted(placement)
    return {
        kind: f"{hints[kind]}, without effect: {reason}" if reason else hints[kind]
        for kind, reason in _unsupported_hints(placement, device.extensions).items()
    }


def make_context(device: cl.Device, placement: Placement) -> cl.Context:
    """A context on one device, with what hints it takes there."""
    properties = context_properties(placement, device.extensions)
    return context_of(device, properties) if properties else cl_module().Context([device])


def make_queue(context: cl.Context, placement: Placement) -> cl.CommandQueue:
    """An in-order queue, with what hints it takes."""
    device = context.devices[0]
    properties = queue_properties(placement, device.extensions)
    if not properties:
        return cl_module().CommandQueue(context)
    return cl_module().CommandQueue(context, device, properties=properties)


def context_of(device: cl.Device, properties: list[int]) -> cl.Context:
    """A context with properties that pyopencl does not know, made by the loader itself."""
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
        place = soc.placement
        #: A thread that waits has a core that the device does not use, and keeps off its work.
        self.waits_apart = soc.gpu.is_cpu and not {*place.gpu_cores} & {*place.cpu_cores}
        with threads.pinned(soc.placement.gpu_cores) as existing:
            driver = find_driver(soc.placement.icd)
            others = threads.others_threads()
            with (
                drivers.loaded([driver], cores=soc.placement.gpu_cores),
                as_device_error(f"Opening {soc.gpu.name}"),
            ):
                self.device = device = _find_device(soc)
                self.context = make_context(device, soc.placement)
                self.queue = make_queue(self.context, soc.placement)
                self.programs = Programs(self.context)
                if offer is not None:
                    self.programs.offer(offer)
                # In here, because threads of a driver inherit the cores of the one that makes them.
                made = self._start_workers() | (threads.thread_ids() - existing)
                self.worker_threads = made - others - threads.others_threads()
        for text in filter(None, (self.mismatch, *ignored(device, soc.placement))):
            warnings.warn(text, CodlWarning, stacklevel=2)
        threads.spread(self.worker_threads, soc.placement.gpu_cores or threads.available_cores())

    @property
    def mismatch(self) -> str:
        """How the driver differs from the SoC file's, under whose name all results are filed."""
        driver, named = self.device.driver_version, self.soc.gpu.driver
        if driver == named:
            return ""
        return (
            f"The driver of {self.soc.gpu.name} is {driver!r}, the SoC file says {named!r}: "
            f"`codl soc detect --serial local --name {self.soc.name}` writes it anew."
        )

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Inside, programs are built and memory is filled: a device may want to do so alone."""
        yield

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
        """Enqueue kernels of which nobody asks when they end; does not flush.

        Without events, which a GPU's driver has to make.
        """
        queue, is_cpu = self.queue, self.soc.gpu.is_cpu
        for kernel in kernels:
            try:
                for call in kernel.calls(queue, is_cpu=is_cpu):
                    call()
            except Exception:
                with _enqueueing(kernel):
                    raise

    def submission(self, kernels: Sequence[BoundKernel]) -> Callable[[], None]:
        """What submits them to the queue of now, with nothing left to look up.

        Python's own lines take as long as OpenCL's functions behind a net, which leaves the
        caches without them.
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

    def release(self, held: object) -> None:
        """Release memory that commands may still use, after they have ended.

        On a failed device it is kept until they have: shared memory is freed at once, and a driver
        that still writes there crashes.
        """
        self._held.append(held)
        with suppress(DeviceError), as_device_error("Waiting for what was enqueued"):
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

    def wait_for_start(self, event: cl.Event) -> None:
        """Wait until a command runs, or is done; its queue has been flushed."""
        running = cl_module().command_execution_status.RUNNING
        while event.command_execution_status > running:
            pass

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


class AbsentDevice:
    """Stands for a device where there is none: it knows its SoC, and all else raises `why`."""

    def __init__(self, soc: LocalSoc, why: CodlError) -> None:
        self.soc = soc
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise self._why


def absent_device(soc: LocalSoc, why: CodlError) -> OpenClDevice:
    """With it the CPU side is measured alone."""
    return cast(OpenClDevice, AbsentDevice(soc, why))
