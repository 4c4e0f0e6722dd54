"""An executable on a device: allocated, built and bound once, and then only run.

Loading resolves everything to handles. What the device refuses is told as data, so that whoever
lowered the plan can lower it again without. Commands with their handles are actions: what an
inference does, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, NoReturn, Protocol

import numpy as np

from codl.errors import DeviceError
from codl.ir.executable import (
    Access,
    Command,
    Copy,
    Executable,
    Fill,
    Flush,
    Launch,
    Map,
    Raise,
    RunNet,
    Unmap,
    Wait,
)
from codl.ir.ops.base import Array
from codl.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.records.results import SpanKind, TimeSpan
from codl.records.span_names import SpanName, span_of
from codl.runtime import threads
from codl.runtime.drivers import explained
from codl.runtime.handles import Handles, Trying, untold
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Footprint, RefusedError, Timeline
from codl.runtime.memory import Flag, Staging
from codl.runtime.opencl import OpenClDevice
from codl.runtime.pacing import PacedQueue
from codl.runtime.shared_weights import Share
from codl.runtime.split_launches import SplitLaunches, Timed
from codl.runtime.threads import ImageParallel

if TYPE_CHECKING:
    import pyopencl as cl


#: Fewer bytes are copied in the time that it takes to wake other threads.
WORTH_SHARING = 1 << 20
#: This number of cores reaches the speed of the memory; more only take longer to wake.
MOST_COPYING = 4
#: Events by number, as long as they may be waited for; a flag stands for one that it signals.
Events = dict[int, "cl.Event | Flag"]


class Action(Protocol):
    """A command, or several that are enqueued at once, ready to be carried out."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    def run(self) -> None: ...

    def profile(self, timeline: Timeline) -> None:
        """Run, and note when."""
        ...


class KernelLaunches:
    """Kernels that are enqueued one after the other, without events."""

    def __init__(self, device: OpenClDevice) -> None:
        self._device = device
        self.kernels: list[BoundKernel] = []
        self.kinds: list[SpanKind] = []

    @property
    def name(self) -> str:
        first, last = self.kernels[0].name, self.kernels[-1].name
        return f"kernel {first!r}" if len(self.kernels) == 1 else f"kernels {first!r} ... {last!r}"

    def run(self) -> None:
        self._device.submit(self.kernels)

    def profile(self, timeline: Timeline) -> None:
        for kernel, kind in zip(self.kernels, self.kinds, strict=True):
            timeline.gpu(kind, kernel.name, kernel.enqueue(self._device.queue))


class SignallingLaunch:
    """A kernel whose end is waited for."""

    def __init__(
        self, kernel: BoundKernel, kind: SpanKind, event: int, events: Events, device: OpenClDevice
    ) -> None:
        self._kernel, self._kind, self._event = kernel, kind, event
        self._events, self._device = events, device

    @property
    def name(self) -> str:
        return f"kernel {self._kernel.name!r}"

    def run(self) -> None:
        self._events[self._event] = self._kernel.enqueue(self._device.queue)

    def profile(self, timeline: Timeline) -> None:
        event = self._kernel.enqueue(self._device.queue)
        self._events[self._event] = event
        timeline.gpu(self._kind, self._kernel.name, event)


class RaiseFlag:
    """Lets the queue raise a flag, by a kernel that is in no span: it computes nothing."""

    def __init__(self, flag: Flag, event: int, events: Events) -> None:
        self._flag, self._event, self._events = flag, event, events

    @property
    def name(self) -> str:
        return "a flag"

    def run(self) -> None:
        self._flag.enqueue()
        self._events[self._event] = self._flag

    def profile(self, timeline: Timeline) -> None:
        self.run()


class MapStaging:
    """Hands staging memory to the CPU, which does not wait yet."""

    def __init__(self, staging: Staging, command: Map, events: Events) -> None:
        self._staging, self._events = staging, events
        self._write, self._event = command.access == "write", command.signals

    @property
    def name(self) -> str:
        return f"map to {'write' if self._write else 'read'}"

    def run(self) -> None:
        self._events[self._event] = self._staging.map(write=self._write)

    def profile(self, timeline: Timeline) -> None:
        self.run()


@dataclass(frozen=True)
class HostAction:
    """Something that the CPU does, with the kind and label of its span; no span without a kind."""

    work: Callable[[], object]
    kind: SpanKind | None = None
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.label!r}" if self.kind else "flush"

    def run(self) -> None:
        self.work()

    def profile(self, timeline: Timeline) -> None:
        start = perf_counter()
        self.work()
        if self.kind:
            timeline.cpu(self.kind, self.label, start, perf_counter())


class Binder:
    """Turns the commands of an executable into actions; all of them share their events.

    With `marks` every wait for what the GPU computes adds the nanoseconds of its begin and end.
    `events` are those of another binder of the same executable.
    """

    def __init__(
        self,
        executable: Executable,
        handles: Handles,
        device: OpenClDevice,
        marks: list[int] | None = None,
        events: Events | None = None,
    ) -> None:
        self._executable, self._handles, self._device = executable, handles, device
        self._marks = marks
        self.events: Events = {} if events is None else events

    def bind(self, commands: Iterable[Command]) -> list[Action]:
        """Actions in order; kernels between two other commands are enqueued by one."""
        actions: list[Action] = []
        for command in commands:
            if isinstance(command, Launch) and command.signals is None:
                if not actions or not isinstance(actions[-1], KernelLaunches):
                    actions.append(KernelLaunches(self._device))
                group = actions[-1]
                assert isinstance(group, KernelLaunches)
                group.kernels.append(self._handles.kernel(command))
                group.kinds.append(self._span(command).kind)
            else:
                actions.append(self._action(command))
        return actions

    def _action(self, command: Command) -> Action:
        handles = self._handles
        if isinstance(command, Launch):
            assert command.signals is not None
            kernel, kind = handles.kernel(command), self._span(command).kind
            return SignallingLaunch(kernel, kind, command.signals, self.events, self._device)
        if isinstance(command, Raise):
            return RaiseFlag(handles.flag(command), command.signals, self.events)
        if isinstance(command, RunNet):
            return self._host(command, handles.host.nets[command.net].run)
        if isinstance(command, Flush):
            return HostAction(lambda: self._device.queue.flush())
        if isinstance(command, Fill):
            return HostAction(partial(handles.host.fill, command))
        if isinstance(command, Map):
            return MapStaging(handles.staging(command.buffer), command, self.events)
        if isinstance(command, Unmap):
            return self._host(command, handles.staging(command.buffer).unmap)
        if isinstance(command, Wait):
            marked = self._marks is not None and self._span(command)[0] == "sync"
            wait = self._marked_wait if marked else self._wait
            return self._host(command, partial(wait, command.event))
        return self._host(command, self._copy(command))

    def _host(self, command: Command, work: Callable[[], object]) -> HostAction:
        """Work of the CPU that profiles show."""
        return HostAction(work, *self._span(command))

    def _span(self, command: Command) -> SpanName:
        span = span_of(self._executable, command)
        assert span is not None
        return span

    def _wait(self, event: int) -> None:
        signal = self.events[event]
        if isinstance(signal, Flag):
            signal.wait()
        else:
            self._device.wait(signal)

    def _marked_wait(self, event: int) -> None:
        assert self._marks is not None
        self._marks.append(perf_counter_ns())
        self._wait(event)
        self._marks.append(perf_counter_ns())

    def _copy(self, command: Copy) -> Callable[[], object]:
        images = command.target.region.images.size
        place = self._device.soc.placement
        lanes = ImageParallel.of(place.cpu_cores, place.threads, images).narrow(MOST_COPYING)
        source, target = self._seen(command.source), self._seen(command.target)

        def copy() -> None:
            copy_images(lanes, target(), source())

        return copy

    def _seen(self, access: Access) -> Callable[[], Array]:
        """What gives a region as an array: staging memory lies elsewhere each time it is mapped."""
        tensor = self._executable.tensors[access.tensor]
        if self._executable.buffers[tensor.buffer].place != "staging":
            view = self._handles.host.view(access)
            return lambda: view
        staging, held = self._handles.staging(tensor.buffer), tensor.held.shape(tensor.shape)
        elements, part = held.elements, access.region.within(tensor.held).slices

        def mapped() -> Array:
            seen: Array = staging.array[:elements].reshape(held)[part]
            return seen

        return mapped


def copy_images(lanes: ImageParallel, target: Array, source: Array) -> None:
    """Copy arrays of images, several at once where that is worth the trouble of telling others.

    One core alone does not reach the speed of the memory.
    """
    if lanes.count == 1 or target.nbytes < WORTH_SHARING:
        np.copyto(target, source)
        return

    def copy(image: int) -> None:
        np.copyto(target[image], source[image])

    lanes.each(copy, range(len(target)))


class PacedLaunch:
    """A launch in its pieces, which are one span; the end of the last is waited for, if any is."""

    def __init__(
        self,
        kernels: Sequence[Timed],
        kind: SpanKind,
        event: int | None,
        events: Events,
        paced: PacedQueue,
    ) -> None:
        self._kernels, self._kind, self._event = kernels, kind, event
        self._events, self._paced = events, paced

    @property
    def name(self) -> str:
        return f"kernel {self._kernels[0].kernel.name!r}"

    def run(self) -> None:
        if self._event is None:
            self._paced.enqueue(self._kernels)
        else:
            self._events[self._event] = self._paced.enqueue_signalling(self._kernels)

    def profile(self, timeline: Timeline) -> None:
        events: list[cl.Event] = [self._paced.enqueue_signalling([own]) for own in self._kernels]
        if self._event is not None:
            self._events[self._event] = events[-1]
        name = self._kernels[0].kernel.name
        timeline.gpu(self._kind, name, events[0], events[-1])


class Given:
    """An action that is carried out by the thread of a paced queue."""

    def __init__(self, action: Action, event: int | None, paced: PacedQueue) -> None:
        self._action, self._event, self._paced = action, event, paced

    @property
    def name(self) -> str:
        return self._action.name

    def run(self) -> None:
        self._paced.give(self._action.run, self._event)

    def profile(self, timeline: Timeline) -> None:
        self._paced.give(partial(self._action.profile, timeline), self._event)


class PacedBinder(Binder):
    """Binds commands for a paced queue; each call's actions leave nothing to be enqueued."""

    def __init__(
        self,
        executable: Executable,
        handles: Handles,
        device: OpenClDevice,
        marks: list[int] | None,
        events: Events,
        *,
        launches: SplitLaunches,
        paced: PacedQueue,
    ) -> None:
        super().__init__(executable, handles, device, marks, events)
        self._launches, self._paced = launches, paced

    def bind(self, commands: Iterable[Command]) -> list[Action]:
        begin, end = HostAction(self._paced.begin), HostAction(self._paced.end)
        return [begin, *map(self._given, commands), end]

    def _given(self, command: Command) -> Action:
        if isinstance(command, Launch):
            kernels, kind = self._launches.of(command), self._span(command).kind
            paced = PacedLaunch(kernels, kind, command.signals, self.events, self._paced)
            return Given(paced, command.signals, self._paced)
        action = self._action(command)
        if isinstance(command, Raise | Map):
            return Given(action, command.signals, self._paced)
        return Given(action, None, self._paced) if isinstance(command, Unmap | Flush) else action

    def _wait(self, event: int) -> None:
        self._paced.until_enqueued(event)
        super()._wait(event)


class Session:
    """Runs one executable on an OpenCL device and its CPU.

    `inputs` and `outputs` are the arrays of the network's inputs and outputs, by name: fill the
    former, `run`, and read the latter before the next run. With `tries` every kernel runs once
    here: some failures only show at a first launch; and variants that are known to be wrong on this
    driver are refused; `trying` is told of each step before. `share` has what it has in common with
    others that run by turns with it. With `limits` launches are measured here, split where they are
    too long, and paced.
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
        share: Share | None = None,
        trying: Trying = untold,
        limits: GpuLimits = UNLIMITED,
    ) -> None:
        self.executable, self._device = executable, device
        #: Held by whatever runs something on the device and its CPU.
        self.lock = device.lock
        self._actions: list[Action] | None = None
        #: How the GPU's limits are kept; None without any.
        self.limited: LimitedGpu | None = None
        self._paced: PacedQueue | None = None
        with self._working(), explained(f"Loading {executable.model!r}"):
            try:
                self._load(
                    tries=tries, own_memory=own_memory, share=share, trying=trying, limits=limits
                )
            except BaseException as error:
                device.let_go(error)  # its frames hold what was allocated
                raise
        handles = self._handles
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

    def _load(
        self,
        *,
        tries: bool,
        own_memory: bool,
        share: Share | None,
        trying: Trying,
        limits: GpuLimits,
    ) -> None:
        executable, device = self.executable, self._device
        self._handles = handles = Handles(
            executable, device, own_memory=own_memory, share=share, trying=trying
        )
        if tries:
            handles.refuse_blocked()
            handles.try_kernels()
        if handles.refusals:
            raise RefusedError(handles.refused)
        trying(-1)
        handles.host.make_nets()
        marks = None if share is None else share.marks
        self._binder = Binder(executable, handles, device, marks)
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
                marks,
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

    def profile(self) -> list[TimeSpan]:
        """What each processor did when in one inference."""
        with self._working(), self._explained(), self._device.profiling():
            timeline = Timeline()
            for action in self._open():
                action.profile(timeline)
            self._device.finish()
            return timeline.spans()

    def run_drained(self) -> None:
        """One inference in which each stage begins when the GPU has nothing left to do."""
        with self._working(), self._explained():
            self._open()
            for stage in self.executable.stages:
                self._device.queue.finish()
                for action in self._binder.bind(stage.commands):
                    action.run()

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
        actions = self.stage(label)
        return [
            k for action in actions if isinstance(action, KernelLaunches) for k in action.kernels
        ]

    def _explained(self) -> AbstractContextManager[None]:
        """Whatever a driver does in the middle of an inference is a `DeviceError`."""
        return explained(f"Running {self.executable.model!r}")

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
