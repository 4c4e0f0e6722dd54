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
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np

from codl.kernels.source import flag_options
from codl.registry import Registry
from codl.runtime.drivers import cl_module
from codl.runtime.probe import BareDevice


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
