"""An OpenCL device that shares its GPU with the companion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from codl.machine.placement import LocalSoc
from codl.runtime.drivers import cl_module
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Offer
from codl.runtime.opencl import OpenClDevice

from .companion import Companion
from .kept import Kept

if TYPE_CHECKING:
    import pyopencl as cl


class StageDevice(OpenClDevice):
    """The companion runs whenever something is enqueued, but not while something is loaded.

    As long as it runs, this driver completes no kernel's event: the end of a kernel is known by
    finishing the queue, and times can be read once the companion has stopped and begun anew, which
    no clock sees. Events of mappings come when they should.
    """

    def __init__(self, soc: LocalSoc, left: int, offer: Offer | None = None) -> None:
        self._companion: Companion | None = None
        self._loads = 0
        super().__init__(soc, offer)
        self._kept = Kept()
        self._companion = Companion(self.context, left)

    @property
    def queue(self) -> cl.CommandQueue:
        """The queue to enqueue on, with the companion beside it."""
        self._start()
        return self._queue

    @queue.setter
    def queue(self, queue: cl.CommandQueue) -> None:
        self._queue = queue

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Without the companion: this driver builds no program while a kernel runs."""
        with super().loading():
            self._stop()
            self._loads += 1
            try:
                yield
            finally:
                self._loads -= 1

    def submission(self, kernels: Sequence[BoundKernel]) -> Callable[[], None]:
        """The companion may have stopped since the kernels were bound to the queue."""
        submit = super().submission(kernels)

        def start_and_submit() -> None:
            self._start()
            submit()

        return start_and_submit

    def run(self, kernels: Sequence[BoundKernel]) -> None:
        self.submit(kernels)
        self._queue.finish()

    def finish(self) -> None:
        self._queue.finish()
        self._stop()
        self._start()

    def wait(self, event: cl.Event) -> None:
        if event.command_type == cl_module().command_type.MAP_BUFFER:
            event.wait()
        else:
            self._queue.finish()

    def pause(self) -> None:
        """Let the GPU go until something is enqueued."""
        self._stop()

    def _start(self) -> None:
        if self._companion is not None and not self._loads:
            self._companion.start()

    def _stop(self) -> None:
        if self._companion is not None:
            self._companion.stop()
            self._kept.release()
