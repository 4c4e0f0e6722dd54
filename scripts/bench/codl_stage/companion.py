"""The companion: a kernel that occupies all but a few multiprocessors of an NVIDIA GPU.

Its work-groups are as large as a multiprocessor takes, and as many as the GPU holds at once. Each
asks on which multiprocessor it runs: on one that is to be left it ends as soon as all others are
held, on another it sleeps until its time is over. It is launched again and again, on a queue of its
own of the same context, so that kernels of other queues run on what is left.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codl.errors import DeviceError, UnsupportedError
from codl.runtime.drivers import cl_module

if TYPE_CHECKING:
    import pyopencl as cl

#: Work-items of a work-group, and work-groups that fill one multiprocessor.
GROUP, GROUPS = 1024, 2
#: Seconds of one launch. Between two of them the whole GPU is free for a moment, and what waits
#: then gets all of it: the longer, the fewer inferences see that.
LAUNCH_S = 2.0
#: Seconds from look to look at a launch: a driver's wait would take a core from the CPU side.
LOOK_S = 0.05
#: The kernel's argument that differs from launch to launch.
BEFORE = 5
NO, YES = np.zeros(1, np.uint32), np.ones(1, np.uint32)
#: A launch that does not hold what it is to hold after so many seconds never will.
PATIENCE_S = 10.0


class Companion:
    """Leaves `left` multiprocessors of a context's device to others, between `start` and `stop`."""

    def __init__(self, context: cl.Context, left: int) -> None:
        """Raises `UnsupportedError` for another maker's device, `DeviceError` for a bad number."""
        (device,) = context.devices
        if "NVIDIA" not in device.platform.name:
            name = device.name.strip()
            raise UnsupportedError(
                f"A stage needs an NVIDIA GPU, whose kernels know where they run; this is {name!r}."
            )
        if not 1 <= left <= device.max_compute_units:
            most = device.max_compute_units
            raise DeviceError(f"{left} of {most} multiprocessors cannot be left: take 1 to {most}.")
        cl = cl_module()
        text = Path(__file__).with_suffix(".cl").read_text()
        self._kernel = cl.Kernel(cl.Program(context, text).build(), "occupy")
        flags = cl.mem_flags
        self._ended = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=NO)
        self._placed = cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=NO)
        self._held = GROUPS * (device.max_compute_units - left)
        fixed = (np.uint32(left), np.uint32(self._held), np.uint64(1e9 * LAUNCH_S), self._ended)
        self._kernel.set_args(*fixed, self._placed, np.uint32(0))
        self._size = GROUP * GROUPS * device.max_compute_units
        self._queue, self._telling = cl.CommandQueue(context), cl.CommandQueue(context)
        self._needed = left < device.max_compute_units
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Occupy, from now on; does nothing where it does already.

        Returns when all is held, and nothing of it is left to be done: what is timed next would be
        held up. Raises `DeviceError` where it never is.
        """
        if self._thread is None and self._needed:
            self._stopped.clear()
            launches = self._launch(0), self._launch(1)
            self._thread = Thread(target=self._occupy, args=launches, name="companion", daemon=True)
            self._thread.start()
            self._wait_until_held()

    def stop(self) -> None:
        """Leave everything to others; returns when that is so."""
        if self._thread is not None:
            self._tell(self._ended, YES)
            self._stopped.set()
            self._thread.join()
            self._thread = None
            self._tell(self._ended, NO)
            self._tell(self._placed, NO)

    def _wait_until_held(self) -> None:
        placed, end = np.zeros(1, np.uint32), perf_counter() + PATIENCE_S
        while placed[0] < self._held:
            cl_module().enqueue_copy(self._telling, placed, self._placed)
            if perf_counter() > end:
                raise DeviceError(f"{placed[0]} of {self._held} work-groups came to be placed.")

    def _tell(self, what: cl.Buffer, number: NDArray[np.uint32]) -> None:
        cl_module().enqueue_copy(self._telling, what, number)

    def _occupy(self, launch: cl.Event, following: cl.Event) -> None:
        """The next launch is enqueued before the last one ends, as this thread may come late."""
        complete = cl_module().command_execution_status.COMPLETE
        for index in count(2):
            while not self._stopped.wait(LOOK_S):
                if launch.command_execution_status <= complete:
                    break
            else:
                self._queue.finish()
                return
            launch, following = following, self._launch(index)

    def _launch(self, index: int) -> cl.Event:
        """The launch of that number since `start`: all before it are placed when it begins."""
        self._kernel.set_arg(BEFORE, np.uint32(index * self._held))
        size, group = (self._size,), (GROUP,)
        event = cl_module().enqueue_nd_range_kernel(self._queue, self._kernel, size, group)
        self._queue.flush()
        return event
