"""Measured facts of a device: flags in shared memory, and the cores of its two sides.

Some drivers claim fine-grained shared memory (`CL_DEVICE_SVM_FINE_GRAIN_BUFFER` and
`CL_DEVICE_SVM_ATOMICS`) but hide the host's writes from a running kernel. In the test, a kernel
raises a flag and polls for the host's answer. The number of polls is bounded and grows with each
try, so no driver hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import get_native_id
from time import perf_counter, sleep
from typing import Any, Literal

import numpy as np

from codl.ir import parse
from codl.ir.records import statistic
from codl.kernels import registry
from codl.kernels.source import flag_options
from codl.lower import pieces
from codl.machine import threads
from codl.machine.placement import LocalSoc, Placement, check_cores
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice
from codl.runtime.probe import BareDevice
from codl.runtime.session import Session, host_session


@dataclass(frozen=True)
class Fact:
    """A fact by SoC file key: `value` (None if unknown), its `reason` and source (`origin`)."""

    key: str
    value: bool | int | float | str | None
    reason: str
    origin: Literal["measured", "driver"] = "measured"


#: Key in a SoC file.
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
#: Indices in the shared memory, each in its own cache line: the kernel's flag, the host's answer,
#: and the answer as seen by the kernel.
HERE, ANSWER, SEEN, LENGTH = 0, 64, 128, 192
WORD = 0x5EED
#: Polls of the first try, their growth factor, and the duration (s) of the last unanswered try;
#: the host answers much faster.
LOOKS, MORE, LONG_S = 1 << 12, 8, 0.1
#: Timeout of a kernel in seconds.
LIMIT_S = 20.0


def measure_svm_atomics(device: BareDevice) -> Fact:
    """Whether a running kernel sees the host's writes; False without the driver's claim."""
    cl = cl_module()
    try:
        able = device.device.svm_capabilities
    except cl.Error:
        return Fact(SVM_ATOMICS, False, "no shared virtual memory", origin="driver")
    wanted = cl.device_svm_capabilities
    if not (able & wanted.FINE_GRAIN_BUFFER and able & wanted.ATOMICS):
        return Fact(SVM_ATOMICS, False, "no fine-grained memory with atomics", origin="driver")
    memory = cl.svm_mem_flags
    access = memory.READ_WRITE | memory.SVM_FINE_GRAIN_BUFFER | memory.SVM_ATOMICS
    words = cl.svm_empty(device.context, access, (LENGTH,), np.int32, alignment=64)
    try:
        kernel = device.kernel(SOURCE, "meet", (flag_options(device.device.version),))
    except cl.RuntimeError:  # PoCL 3.1 claims atomics, but its compiler has no such scope
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
    """Whether the kernel saw the answer within `looks` polls, and its duration in seconds."""
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


# The cores of the two sides.

#: Seconds for which each side works under observation.
OBSERVE_S = 0.5
#: Turns of pinned and unpinned threads: their least number, the seconds in which more begin, and
#: the untimed and timed runs of each.
TURNS, TURNS_S, SETTLING, TIMED = 12, 1.0, 2, 6


def observe_cores(gpu: OpenClDevice) -> dict[str, list[int]]:
    """Run each side alone; returns the cores of its threads by side, none for a real GPU."""
    soc = gpu.soc
    with threads.pinned_to(soc.placement.cpu_cores):
        of_gpu = _observe_gpu(gpu) if soc.gpu.is_cpu else []
        others = gpu.worker_threads | threads.others_threads() - {get_native_id()}
        of_cpu = threads.observed_cores(busy_net(soc).run, OBSERVE_S, ignore=others)
    return {"cpu": [*of_cpu], "gpu": of_gpu}


def _observe_gpu(gpu: OpenClDevice) -> list[int]:
    """The cores of a CPU device, sampled while this thread sleeps."""
    busy, event = gpu.busy_kernel(), None
    observer = threads.CoreObserver(ignore=threads.thread_ids() - gpu.worker_threads)
    deadline = perf_counter() + OBSERVE_S
    while perf_counter() < deadline:
        event = busy.enqueue(gpu.queue)
        gpu.queue.flush()
        sleep(0.02)
        observer.sample()
    if event is not None:
        event.wait()
    return sorted(observer.cores)


def busy_net(soc: LocalSoc) -> Session:
    """A convolution of about a millisecond on the CPU side."""
    op = parse("conv2d in=1x64x56x56 oc=64 kernel=3 pad=1")
    weights = op.weights_of(lambda shape: np.ones(shape, np.float32))
    variant = registry.variants(op, "cpu", soc)[0]
    return host_session(pieces.net_alone([op], variant, [weights], soc), soc)


def unpinned_ratios(soc: LocalSoc, cores: Sequence[int]) -> tuple[float, ...]:
    """Ratios of CPU latency with threads on all of `cores` to latency on its own cores, by turn.

    Each placement has its own calling thread, because OpenMP threads keep the cores of their
    creation. Raises `DeviceError` for cores that this process may not use.
    """
    own = soc.placement
    wide = replace(own, cpu_cores=tuple(cores), cpu_threads=own.threads)
    check_cores(wide)
    with ExitStack() as stack:

        def turns_on(placement: Placement) -> Callable[[], float]:
            caller = stack.enter_context(ThreadPoolExecutor(1))
            net = caller.submit(busy_net, replace(soc, placement=placement)).result()
            return lambda: caller.submit(_turn_s, net).result()

        ways = {"pinned": turns_on(own), "unpinned": turns_on(wide)}
        ratios, order, begin = list[float](), list(ways), perf_counter()
        while len(ratios) < TURNS or perf_counter() - begin < TURNS_S:
            taken_s = {way: ways[way]() for way in order}
            ratios.append(taken_s["unpinned"] / taken_s["pinned"])
            order.reverse()  # neither always follows the other
    return tuple(ratios)


def _turn_s(net: Session) -> float:
    """Seconds of a run, measured once the other placement's threads are idle."""
    threads.wait_until_idle()
    taken_s = []
    for _ in range(SETTLING + TIMED):
        begin = perf_counter()
        net.run()
        taken_s.append(perf_counter() - begin)
    return statistic.level(taken_s[SETTLING:])
