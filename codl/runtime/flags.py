"""Waiting for a flag: a count in shared memory that a kernel raises and the CPU looks at.

Before it looks all the time, the thread sleeps for a part of what such waits took before, so that a
phone's core does not burn power to learn nothing. It never sleeps where it was late the last time,
nor where the GPU is cores of the CPU: those are the thread's own and the device's, and a sleep
would only let the clock fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from codl.errors import DeviceError
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.cl_errors import describe, explained
from codl.runtime.cl_import import cl_module

if TYPE_CHECKING:
    import pyopencl as cl

    from codl.runtime.opencl import OpenClDevice

#: Counts are unsigned words that begin anew behind the last one; of two the one that is less than
#: half of them ahead is the later one.
WORDS, HALF = 1 << 32, 1 << 31
#: Of what a wait took before, the part that is slept, where that is at least so long: systems wake
#: a thread up to a tenth of a millisecond late.
SLEPT, LEAST_S = 0.7, 0.0005
#: How fast the usual wait follows longer ones; it follows shorter ones at once.
FOLLOWS = 0.125
#: So many looks are taken between two at the clock.
LOOKS = 64
#: A flag that is not raised by then may never be: the queue is asked, now and then.
ASK_S, AGAIN_S = 1.0, 0.01


@dataclass
class Pace:
    """How long to sleep before looking: learned from the waits so far, in seconds."""

    usual_s: float = 0.0

    @property
    def sleep_s(self) -> float:
        slept = SLEPT * self.usual_s
        return slept if slept >= LEAST_S else 0.0

    def waited(self, seconds: float, *, was_late: bool) -> None:
        """Learn from a wait; it was late where the flag was up when the thread woke up."""
        if was_late:
            self.usual_s = min(self.usual_s, seconds) / 2
        else:
            self.usual_s += (seconds - self.usual_s) * (FOLLOWS if seconds > self.usual_s else 1.0)


class Flag:
    """A flag, the kernel that raises it, and how far it will have been raised."""

    def __init__(self, device: OpenClDevice, words: Any, kernel: BoundKernel) -> None:
        self._device, self._kernel = device, kernel
        self._words = memoryview(words)
        self._raised = int(self._words[0])
        self._pace, self._barrier = Pace(), Lock()

    def enqueue(self) -> None:
        """Let the queue raise it when all before is done."""
        self._device.submit([self._kernel])
        self._raised = (self._raised + 1) % WORDS

    @property
    def is_up(self) -> bool:
        """Whether all that was enqueued has raised it."""
        return (self._words[0] - self._raised) % WORDS < HALF

    def wait(self) -> None:
        """Until it is up; raises `DeviceError` where the queue failed or is done without."""
        begin = perf_counter()
        slept_s = 0.0
        if not self.is_up:
            self._device.queue.flush()
            slept_s = 0.0 if self._device.soc.gpu.is_cpu else self._pace.sleep_s
            if slept_s:
                sleep(slept_s)
        was_late = slept_s > 0 and self.is_up
        self._look(begin)
        self._pace.waited(perf_counter() - begin, was_late=was_late)
        with self._barrier:  # what is read from now on was written before the flag was
            pass

    def _look(self, begin: float) -> None:
        rests = self._device.soc.gpu.is_cpu and not self._device.waits_apart
        while not self.is_up:
            for _ in range(LOOKS):
                if self.is_up:
                    return
            if rests:  # the device may need this very core
                sleep(0)
            if perf_counter() - begin > ASK_S:
                self._ask()

    def _ask(self) -> None:
        """Go on looking, now and then, until the queue is done with all of it."""
        cl, name = cl_module(), self._device.soc.gpu.name
        with explained(f"Waiting for a flag of {name}"):
            marker = cl.enqueue_marker(self._device.queue)
            self._device.queue.flush()
            status = _status_of(marker)
            while not self.is_up and (now := status()) != cl.command_execution_status.COMPLETE:
                if now < cl.command_execution_status.COMPLETE:
                    raise DeviceError(f"A command failed on {name} ({describe(now)}).")
                sleep(AGAIN_S)
            if not self.is_up:
                raise DeviceError(
                    f"{name} is done with everything, and the CPU does not see the flag that a "
                    "kernel raised. `codl soc detect` finds out whether it can; without "
                    "`signal: flag` in the SoC file events are waited for."
                )


def _status_of(event: cl.Event) -> Callable[[], int]:
    def status() -> int:
        return int(event.command_execution_status)

    return status
