"""An executable on a device: allocated, built and bound once, and then only run.

Loading resolves everything to handles. What the device refuses is told as data, so that whoever
lowered the plan can lower it again without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from codl.errors import DeviceError
from codl.ir.executable import Executable
from codl.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.records.results import TimeSpan
from codl.runtime import threads
from codl.runtime.actions import Action, Binder
from codl.runtime.drivers import explained
from codl.runtime.handles import Handles, StepCallback, no_callback
from codl.runtime.launch import BoundKernel
from codl.runtime.limited import PacedBinder, PacedQueue, SplitLaunches
from codl.runtime.loaded import Footprint, RefusedError, Timeline
from codl.runtime.opencl import OpenClDevice

if TYPE_CHECKING:
    import pyopencl as cl


class Session:
    """Runs one executable on an OpenCL device and its CPU.

    `inputs` and `outputs` are the arrays of the network's inputs and outputs, by name: fill the
    former, `run`, and read the latter before the next run. With `tries` every kernel runs once
    here: some failures only show at a first launch; and variants that are known to be wrong on this
    driver are refused; `on_step` is called with each step before. With `limits` launches are
    measured here, split where they are too long, and paced.
    Raises `RefusedError` where kernels are refused that others may stand in for, and `DeviceError`
    for all else that the device cannot.
    """

    def __init__(
        self,
        executable: Executable,
        device: OpenClDevice,
        *,
        tries: bool = True,
        own_memory: bool = False,
        on_step: StepCallback = no_callback,
        limits: GpuLimits = UNLIMITED,
    ) -> None:
        self.executable, self._device = executable, device
        #: Held by whatever runs something on the device and its CPU.
        self.lock = device.lock
        self._actions: list[Action] | None = None
        #: How the GPU's limits are kept; None without any.
        self.limited: LimitedGpu | None = None
        self._paced: PacedQueue | None = None
        with self._working(), device.loading(), explained(f"Loading {executable.model!r}"):
            try:
                self._handles = handles = Handles(
                    executable, device, own_memory=own_memory, on_step=on_step
                )
                if tries:
                    handles.refuse_blocked()
                    handles.try_kernels()
                if handles.refusals:
                    raise RefusedError(handles.refused)
                on_step(-1)
                handles.host.make_nets()
                self._bind(limits)
            except BaseException as error:
                device.let_go(error)  # its frames hold what was allocated
                raise
        #: The CPU's nets, in the order of the executable's.
        self.nets = handles.host.nets
        self.inputs = handles.host.arrays(executable.inputs)
        self.outputs = handles.host.arrays(executable.outputs)
        self.footprint = Footprint(
            executable.bytes("cpu", "shared"),
            executable.bytes("gpu"),
            handles.host.weight_bytes,
            handles.weight_bytes,
        )

    def _bind(self, limits: GpuLimits) -> None:
        executable, handles, device = self.executable, self._handles, self._device
        self._binder = Binder(executable, handles, device)
        # Before the setup: what is measured runs on whatever lies in its memory.
        launches = SplitLaunches(handles, device, executable.commands, limits) if limits else None
        for action in self._binder.bind(executable.setup):
            action.run()
        handles.host.forget_packed()
        if launches is not None:
            device.queue.finish()
            self.limited, self._paced = launches.report, PacedQueue(device, limits)
            self._binder = PacedBinder(
                executable,
                handles,
                device,
                self._binder.events,
                launches=launches,
                paced=self._paced,
            )
        self._actions = self._binder.bind(executable.commands)
        device.queue.finish()

    def run(self) -> None:
        """One inference from what `inputs` hold; allocates no tensor."""
        with self._working():
            action = None
            try:
                for action in self._open():
                    action.run()
            except Exception as error:
                self._explain(error, action)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The calling thread is one of the CPU side inside, and nothing else runs on the device."""
        with self._device.lock, threads.placed(self._device.soc.placement.cpu_cores):
            yield

    def _explain(self, error: Exception, action: Action | None) -> NoReturn:
        """Raise what went wrong in the middle of an inference, with where that was."""
        if action is None:
            raise error
        where = f"Running {self.executable.model!r}, {action.name},"
        if isinstance(error, DeviceError):
            raise DeviceError(f"{where} failed: {error}") from error
        with explained(where):
            raise error

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """What each processor did when in one inference, and each of a net's `layers`."""
        running = explained(f"Running {self.executable.model!r}")
        with self._working(), running, self._device.profiling():
            timeline = Timeline(layers)
            for action in self._open():
                action.profile(timeline)
            self._device.finish()
            return timeline.spans()

    def device_memory(self, buffer: int) -> cl.MemoryObject:
        """A buffer in the device's memory."""
        self._open()
        return self._handles.argument(buffer)

    def stage(self, label: str) -> list[Action]:
        """What the stages of this label do, to be done apart from the others."""
        self._open()
        stages = (stage for stage in self.executable.stages if stage.label == label)
        return self._binder.bind(command for stage in stages for command in stage.commands)

    def kernels(self, label: str) -> list[BoundKernel]:
        """The kernels of the stages of this label."""
        return [kernel for action in self.stage(label) for kernel in action.kernels]

    def _open(self) -> list[Action]:
        if self._actions is None:
            model = self.executable.model
            raise DeviceError(f"The engine of {model!r} is closed and cannot run.")
        return self._actions

    def close(self) -> None:
        """Release buffers and nets; nothing can run afterwards."""
        with self._device.lock:
            if self._actions is None:
                return
            if self._paced is not None:
                self._paced.close()
            self._actions, self.nets = None, []
            # What was bound holds memory of the device.
            self._device.let_go((self._handles, self._binder))
            del self._handles, self._binder
