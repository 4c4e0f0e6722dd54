"""A queue that is never filled far ahead, and of a GPU that rests in between.

Frames of other programs wait for what is enqueued before them. So only some milliseconds of work
are under way; when they are over, the GPU rests for its part of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from codl.errors import CodlError, DeviceError
from codl.records.gpu_limits import GpuLimits
from codl.runtime import threads
from codl.runtime.drivers import cl_module, describe
from codl.runtime.opencl import OpenClDevice
from codl.runtime.split_launches import Timed

if TYPE_CHECKING:
    import pyopencl as cl

#: A quarter of the time between two frames at 60 Hz: behind so much work a frame that takes half of
#: it is still on time.
IN_FLIGHT_MS = 4.0
#: How often the end of the work under way is looked for.
LOOK_S = 0.0001


class Pacer:
    """Decides when the next kernel may be enqueued, by what kernels take.

    `drain` waits until the queue is empty, and says whether it was so already. `clock` and `sleep`
    count in seconds.
    """

    def __init__(
        self,
        limits: GpuLimits,
        drain: Callable[[], bool],
        *,
        most_ms: float = IN_FLIGHT_MS,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], object] = sleep,
    ) -> None:
        self._rest, self._most_ms = limits.rest, most_ms
        self._drain, self._clock, self._sleep = drain, clock, sleep
        #: Milliseconds of work since the queue was last seen empty, and of rest that is due. Sleeps
        #: end late: what was too much is taken off the next one.
        self._in_flight_ms = self._due_ms = 0.0
        #: When the work is expected to be over.
        self._end_s = 0.0

    def before(self, ms: float) -> None:
        """Wait until a kernel that takes so long may be enqueued."""
        if self._in_flight_ms and self._in_flight_ms + ms > self._most_ms:
            self._let_rest()
        self._end_s = max(self._clock(), self._end_s) + 1e-3 * ms
        self._in_flight_ms += ms
        self._due_ms += self._rest * ms

    def _let_rest(self) -> None:
        was_empty = self._drain()
        now_s = self._clock()
        if was_empty:  # it has rested since
            self._due_ms = max(0.0, self._due_ms - max(0.0, 1e3 * (now_s - self._end_s)))
        if self._due_ms > 0:
            self._sleep(1e-3 * self._due_ms)
            self._due_ms -= 1e3 * (self._clock() - now_s)
        self._in_flight_ms, self._end_s = 0.0, self._clock()


class PacedQueue:
    """A thread that enqueues what it is given, in order and at its own pace.

    So the CPU goes on with its own share while the GPU rests.
    """

    def __init__(self, device: OpenClDevice, limits: GpuLimits) -> None:
        self._device = device
        self._pacer = Pacer(limits, self._drain)
        cores = device.soc.placement.cpu_cores
        self._thread = ThreadPoolExecutor(1, "queue", threads.pin, ([0], cores))
        self._given: list[Future[object]] = []
        #: By the number of an event, what enqueues the command that signals it.
        self._signals: dict[int, Future[object]] = {}

    def give(self, work: Callable[[], object], signals: int | None = None) -> None:
        """Let work be done on the thread, behind all that it was given before."""
        given = self._thread.submit(work)
        self._given.append(given)
        if signals is not None:
            self._signals[signals] = given

    def until_enqueued(self, event: int) -> None:
        """Wait until the command is enqueued that signals an event; raises what went wrong."""
        if event in self._signals:
            self._signals[event].result()

    def begin(self) -> None:
        """Forget what an inference has left that failed."""
        for given in self._given:
            with suppress(CodlError):
                given.result()
        self._given.clear()
        self._signals.clear()

    def end(self) -> None:
        """Wait until everything is enqueued; raises what went wrong first."""
        for given in self._given:
            given.result()
        self.begin()

    def enqueue(self, kernels: Sequence[Timed]) -> None:
        """Enqueue kernels, each when it may be; on the thread."""
        for kernel, ms in kernels:
            self._pacer.before(ms)
            self._device.submit([kernel])

    def enqueue_signalling(self, kernels: Sequence[Timed]) -> cl.Event:
        """The same, with the last one's event."""
        self.enqueue(kernels[:-1])
        kernel, ms = kernels[-1]
        self._pacer.before(ms)
        return kernel.enqueue(self._device.queue)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _drain(self) -> bool:
        queue, status = self._device.queue, cl_module().command_execution_status
        marker = cl_module().enqueue_marker(queue)
        queue.flush()
        was_empty = True
        while (now := marker.command_execution_status) > status.COMPLETE:
            was_empty = False
            sleep(LOOK_S)
        if now < status.COMPLETE:
            raise DeviceError(f"A command failed on {self._device.soc.gpu.name} ({describe(now)}).")
        return was_empty
