"""An executable loaded on a device: allocated, built and bound once, then run.

Refused kernels are reported as data, so that the plan can be lowered without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from codl.errors import DeviceError
from codl.ir.executable import Executable
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.ir.records.results import TimeSpan
from codl.machine import threads
from codl.machine.placement import LocalSoc
from codl.runtime.actions import Action, Binder
from codl.runtime.drivers import as_device_error
from codl.runtime.handles import Handles
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Footprint, RefusedError, StepCallback, Timeline, no_callback
from codl.runtime.opencl import OpenClDevice, host_device

if TYPE_CHECKING:
    from codl.runtime.limited import PacedQueue, SplitLaunches


class Session:
    """Runs one executable on an OpenCL device and its CPU.

    `inputs` and `outputs` are the network's arrays by name: fill `inputs`, call `run`, and read
    `outputs` before the next run. With `tries`, loading runs every kernel once, since some fail
    only then, and refuses variants known as wrong on this driver. `on_step` receives each step's
    number before its kernels are built. With `limits`, launches are measured, split if too long,
    and paced.

    Raises `RefusedError` for refused kernels that other variants can replace, and `DeviceError` for
    other failures of the device.
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
        if executable.needs_gpu:
            device.check_open()
        self.executable, self._device = executable, device
        #: Held during any work on the device and its CPU.
        self.lock = device.lock
        self._actions: list[Action] | None = None
        #: Effect of the GPU's limits; None without limits.
        self.limited: LimitedGpu | None = None
        self._paced: PacedQueue | None = None
        with self._working(), device.loading(), as_device_error(f"Loading {executable.model!r}"):
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
                handles.make_nets()
                self._bind(limits)
            except BaseException as error:
                device.release(error)  # the error's frames reference allocated memory
                raise
        #: The CPU's nets, in the order of the executable's.
        self.nets = handles.nets
        self.inputs = handles.arrays(executable.inputs)
        self.outputs = handles.arrays(executable.outputs)
        self.footprint = Footprint(
            executable.bytes("cpu", "shared"),
            executable.bytes("gpu"),
            handles.cpu_weight_bytes,
            handles.gpu_weight_bytes,
        )

    def _bind(self, limits: GpuLimits) -> None:
        executable, handles, device = self.executable, self._handles, self._device
        self._binder = Binder(handles)
        launches: SplitLaunches | None = None
        if limits:
            from codl.runtime import limited  # most engines have no limits

            # Before the setup: measured kernels overwrite the memory that it fills.
            launches = limited.SplitLaunches(handles, executable.commands, limits)
        for action in self._binder.bind(executable.setup):
            action.run()
        handles.forget_packed()
        if launches is not None:
            device.finish()
            self.limited, self._paced = launches.report, limited.PacedQueue(device, limits)
            events = self._binder.events
            self._binder = limited.PacedBinder(
                handles, events, launches=launches, paced=self._paced
            )
        self._actions = self._binder.bind(executable.commands)
        device.finish()

    def run(self) -> None:
        """Run one inference on `inputs`; allocates no tensor. Errors name the failed action."""
        with self._working():
            action = None
            try:
                for action in self._open():
                    action.run()
            except Exception as error:
                if action is None:
                    raise
                where = f"Running {self.executable.model!r}, {action.name},"
                if isinstance(error, DeviceError):
                    raise DeviceError(f"{where} failed: {error}") from error
                with as_device_error(where):
                    raise

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Hold the device, with the calling thread on the cores of the CPU side."""
        with self._device.lock, threads.pinned_to(self._device.soc.placement.cpu_cores):
            yield

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """The spans of one inference; with `layers` also spans of nets' layers."""
        running = as_device_error(f"Running {self.executable.model!r}")
        with self._working(), running, self._device.profiling():
            timeline = Timeline(layers)
            for action in self._open():
                action.profile(timeline)
            self._device.finish()
            return timeline.spans()

    def stage(self, label: str) -> list[Action]:
        """The actions of all stages with this label, for separate runs."""
        self._open()
        stages = (stage for stage in self.executable.stages if stage.label == label)
        return self._binder.bind(command for stage in stages for command in stage.commands)

    def kernels(self, label: str) -> list[BoundKernel]:
        """The kernels of all stages with this label."""
        return [kernel for action in self.stage(label) for kernel in action.kernels]

    def _open(self) -> list[Action]:
        if self._actions is None:
            model = self.executable.model
            raise DeviceError(f"The engine of {model!r} is closed and cannot run.")
        return self._actions

    def close(self) -> None:
        """Release buffers and nets; later runs raise `DeviceError`."""
        with self._device.lock:
            if self._actions is None:
                return
            if self._paced is not None:
                self._paced.close()
            self._actions, self.nets = None, []
            # Bound actions reference memory of the device.
            self._device.release((self._handles, self._binder))
            del self._handles, self._binder


def host_session(
    executable: Executable,
    soc: LocalSoc,
    *,
    own_memory: bool = False,
    lock: AbstractContextManager[object] | None = None,
) -> Session:
    """A session of an executable without GPU commands, such as a net alone.

    `lock` is held during runs on the CPU. Raises `DeviceError` for an executable with GPU commands.
    """
    why = DeviceError(f"{executable.model!r} has commands for a GPU: open it on a device.")
    return Session(executable, host_device(soc, why, lock), own_memory=own_memory)
