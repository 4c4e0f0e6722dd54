"""Measures signals between the processors: the cost of a first launch, and of a wait.

Both are what the host's clock sees less what the device's own clock explains, which only ever tells
differences. A first launch is what lies between enqueueing a kernel on an empty queue and the
kernel's beginning. A wait is what is left of the host's time from enqueueing until it knows the end
once the device's time from enqueueing to the end is taken off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from time import perf_counter

import numpy as np

from codl.errors import DeviceError
from codl.kernels.source import FLAG_KERNEL, FLAG_SOURCE, flag_options, flag_text
from codl.measure.tasks import SignalTask
from codl.measure.timing import WHOLE, Seconds
from codl.runtime.drivers import as_device_error, cl_module, make_kernel
from codl.runtime.launch import BoundKernel
from codl.runtime.memory import Flag, flag_words
from codl.runtime.opencl import OpenClDevice

SPIN = """
kernel void spin(int turns, global float *out) {
    float x = out[0];
    for (int i = 0; i < turns; i++) x = 0.5f * x + 1.0f;
    out[0] = x;
}
"""
#: Turns that the rate is learned from: the first try, how long enough of them last, and the most.
TURNS, ENOUGH_MS, MOST_TURNS = 1 << 10, 0.5, 1 << 28


class SignalTimer:
    """Times what `SignalTask`s are about on a device; raises `DeviceError` where its clock lies."""

    def __init__(self, gpu: OpenClDevice) -> None:
        self._gpu = gpu
        flags = cl_module().mem_flags.READ_WRITE
        self._out = cl_module().Buffer(gpu.context, flags, 4)

    def sample(self, task: SignalTask) -> Callable[[int], Seconds]:
        """What gives the mean seconds of `repeats`, each on a queue that was empty before."""
        once = self._once(task)

        def sample(repeats: int) -> Seconds:
            with self._gpu.profiling():
                return {WHOLE: sum(once() for _ in range(repeats)) / repeats}

        return sample

    def _once(self, task: SignalTask) -> Callable[[], float]:
        if task.kind == "first_launch":
            kernel = self._spin(0)
            return lambda: self._first_launch(kernel, task.gap_ms)
        kernel = self._spin(min(MOST_TURNS, max(1, round(task.gap_ms * self._turns_per_ms))))
        if task.kind == "event_wait":
            return lambda: self._wait(kernel)
        flag = make_flag(self._gpu)
        return lambda: self._wait(kernel, flag)

    def _first_launch(self, kernel: BoundKernel, idle_ms: float) -> float:
        """The CPU works meanwhile, as it does in a network."""
        self._gpu.queue.finish()
        end = perf_counter() + 1e-3 * idle_ms
        while perf_counter() < end:
            pass
        event = kernel.enqueue(self._gpu.queue)
        self._gpu.finish()
        return 1e-9 * float(event.profile.start - event.profile.queued)

    def _wait(self, kernel: BoundKernel, flag: Flag | None = None) -> float:
        begin = perf_counter()
        event = kernel.enqueue(self._gpu.queue)
        if flag is not None:
            flag.enqueue()
        self._gpu.queue.flush()
        if flag is not None:
            flag.wait()
        else:
            self._gpu.wait(event)
        passed = perf_counter() - begin
        self._gpu.finish()
        return passed - 1e-9 * float(event.profile.end - event.profile.queued)

    def _spin(self, turns: int) -> BoundKernel:
        program = self._gpu.programs.build_text("spin", SPIN)
        kernel = make_kernel(program, "spin")
        return BoundKernel("spin", kernel, (1,), None, [np.int32(turns), self._out])

    @cached_property
    def _turns_per_ms(self) -> float:
        """By the device's clock, the fastest of some."""
        turns = TURNS
        while (took_ms := self._took_ms(turns)) < ENOUGH_MS:
            if turns >= MOST_TURNS:
                name = self._gpu.soc.gpu.name
                raise DeviceError(
                    f"By the clock of {name}, {turns} dependent steps take {took_ms:.6f} ms: it "
                    "does not tell when kernels run."
                )
            turns *= 4
        return turns / took_ms

    def _took_ms(self, turns: int) -> float:
        kernel = self._spin(turns)

        def once() -> float:
            event = kernel.enqueue(self._gpu.queue)
            self._gpu.finish()
            return 1e-6 * float(event.profile.end - event.profile.start)

        with self._gpu.profiling():
            return min(once() for _ in range(3))


def make_flag(gpu: OpenClDevice) -> Flag:
    """A flag by itself; raises `DeviceError` where the device has no such memory."""
    options = flag_options(gpu.soc.gpu.opencl_version)
    program = gpu.programs.build_text(FLAG_SOURCE, flag_text(), options)
    words, seen = flag_words(gpu)
    with as_device_error("Binding the kernel of a flag"):
        kernel = BoundKernel(FLAG_KERNEL, make_kernel(program, FLAG_KERNEL), (1,), (1,), [seen])
    return Flag(gpu, words, kernel)
