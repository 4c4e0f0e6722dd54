"""Measured facts of an OpenCL device that its driver does not tell truly, for detection.

Whether a kernel and the host really meet at a flag in fine-grained shared memory: drivers say that
they have it (`CL_DEVICE_SVM_FINE_GRAIN_BUFFER` and `CL_DEVICE_SVM_ATOMICS`), and not with all of
them does a kernel see what the host wrote while it runs. So both are let meet: the kernel raises a
flag and looks for an answer; the host waits for the flag and writes the answer; the kernel hands
back what it saw. The kernel looks a limited number of times, more from try to try, so that no
driver ever hangs by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, Literal, TypeAlias

import numpy as np

from codl.errors import DeviceError
from codl.kernels.source import flag_options
from codl.records.soc import PowerW
from codl.registry import Registry
from codl.runtime.detect import busy_net
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice
from codl.runtime.probe import BareDevice
from codl.runtime.sensors import Sensor, SensorScan, metered


@dataclass(frozen=True)
class Fact:
    """A fact by its key in a SoC file; `value` is None where it could not be told.

    `reason` says how it was decided, or why it was not; `origin` who says so.
    """

    key: str
    value: bool | int | float | str | None
    reason: str
    origin: Literal["measured", "driver"] = "measured"


Measuring: TypeAlias = Callable[[BareDevice], Fact]
#: Those that are measured on a device by itself, by the key of the SoC file that each fills.
FACTS: Registry[Measuring] = Registry("fact")

SVM_ATOMICS = "gpu.svm_atomics"
SOURCE = """
kernel void meet(global atomic_int *flags, int looks) {
    atomic_store_explicit(flags, 1, memory_order_release, memory_scope_all_svm_devices);
    int seen = 0;
    for (int i = 0; i < looks && seen == 0; i++)
        seen = atomic_load_explicit(flags + 64, memory_order_acquire, memory_scope_all_svm_devices);
    atomic_store_explicit(flags + 128, seen, memory_order_release, memory_scope_all_svm_devices);
}
"""
#: Where in the memory, each in a cache line of its own: the kernel is there, the host's answer, and
#: what the kernel saw of it.
HERE, ANSWER, SEEN, LENGTH = 0, 64, 128, 192
WORD = 0x5EED
#: Looks of the first try and how many times as many the next one has, until a kernel that nobody
#: answers lasts `LONG_S`: the host answers in far less.
LOOKS, MORE, LONG_S = 1 << 12, 8, 0.1
#: A kernel that is not done by then is not waited for.
LIMIT_S = 20.0


def measure_svm_atomics(device: BareDevice) -> Fact:
    """Whether they meet. False where the driver does not even claim it."""
    cl = cl_module()
    try:
        told = device.device.svm_capabilities
    except cl.Error:
        return Fact(SVM_ATOMICS, False, "no shared virtual memory", origin="driver")
    wanted = cl.device_svm_capabilities
    if not (told & wanted.FINE_GRAIN_BUFFER and told & wanted.ATOMICS):
        return Fact(SVM_ATOMICS, False, "no fine-grained memory with atomics", origin="driver")
    memory = cl.svm_mem_flags
    access = memory.READ_WRITE | memory.SVM_FINE_GRAIN_BUFFER | memory.SVM_ATOMICS
    words = cl.svm_empty(device.context, access, (LENGTH,), np.int32, alignment=64)
    try:
        kernel = device.kernel(SOURCE, "meet", (flag_options(device.device.version),))
    except cl.RuntimeError:  # PoCL 3.1 claims them, and its compiler has no such scope
        return Fact(SVM_ATOMICS, False, "the driver's compiler has no atomics that the host sees")
    looks = LOOKS
    while True:
        met, seconds = _try(device, kernel, words, looks)
        if met:
            return Fact(SVM_ATOMICS, True, "a kernel saw what the host wrote while it ran")
        if seconds > LONG_S or looks > (1 << 30) // MORE:
            return Fact(
                SVM_ATOMICS, False, f"a kernel of {1e3 * seconds:.0f} ms saw nothing of the host's"
            )
        looks *= MORE


def _try(device: BareDevice, kernel: Any, words: Any, looks: int) -> tuple[bool, float]:
    """Whether they met before the kernel had looked `looks` times, and the seconds that it took."""
    cl = cl_module()
    words[:] = 0
    kernel.set_args(cl.SVM(words), np.int32(looks))
    begin, complete = perf_counter(), cl.command_execution_status.COMPLETE
    event = cl.enqueue_nd_range_kernel(device.queue, kernel, (1,), (1,))
    device.queue.flush()
    met = False
    while event.command_execution_status > complete and perf_counter() - begin < LIMIT_S:
        if words[HERE] == 1 and not met:
            words[ANSWER], met = WORD, True
    if event.command_execution_status > complete:
        raise TimeoutError(f"a kernel that looks {looks} times does not end")
    return met and int(words[SEEN]) == WORD, perf_counter() - begin


FACTS.add(SVM_ATOMICS, measure_svm_atomics)


#: How often the kernel that keeps the device busy is enqueued before it is waited for.
AHEAD = 16


def measure_power(gpu: OpenClDevice, scan: SensorScan, seconds: float) -> PowerW:
    """Watts over `seconds` each, of all that the sensors cover.

    The CPU side convolves on all of its threads; the GPU side computes in registers. Raises
    `DeviceError` where there is no sensor.
    """
    sensors = scan.sensors
    if not sensors:
        refused = "".join(f" {name}: {reason}." for name, reason in scan.unreadable.items())
        raise DeviceError(
            "This machine has no energy sensor that can be read (RAPL, a battery, NVML)." + refused
        )
    net, busy = busy_net(gpu.soc), gpu.busy_kernel()

    def on_gpu() -> None:
        gpu.run([busy] * AHEAD)

    def on_both() -> None:
        gpu.submit([busy] * AHEAD)
        last = busy.enqueue(gpu.queue)
        gpu.queue.flush()
        while last.command_execution_status > cl_module().command_execution_status.COMPLETE:
            net.run()

    return PowerW(
        idle=_watts(lambda: sleep(0.1), sensors, seconds),
        cpu=_watts(net.run, sensors, seconds),
        gpu=_watts(on_gpu, sensors, seconds),
        both=_watts(on_both, sensors, seconds),
        sensors=tuple(sensor.name for sensor in sensors),
    )


def _watts(work: Callable[[], object], sensors: tuple[Sensor, ...], seconds: float) -> float:
    begin = perf_counter()
    with metered(sensors) as meter:
        while perf_counter() - begin < seconds:
            work()
    total = meter.total_joules
    if total is None:
        raise DeviceError(f"No sensor of {', '.join(s.name for s in sensors)} could be read.")
    return total / meter.seconds
