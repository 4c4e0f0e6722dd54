"""Commands with their handles: what an inference does, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Protocol

import numpy as np

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
from codl.ir.results import SpanKind
from codl.ir.span_names import SpanName, span_of
from codl.runtime.bound_kernel import BoundKernel
from codl.runtime.flags import Flag
from codl.runtime.handles import Handles
from codl.runtime.image_parallel import Lanes
from codl.runtime.memory import Staging
from codl.runtime.opencl import OpenClDevice
from codl.runtime.profiler import Timeline

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
        lanes = Lanes.of(self._device.soc, images).narrow(MOST_COPYING)
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


def copy_images(lanes: Lanes, target: Array, source: Array) -> None:
    """Copy arrays of images, several at once where that is worth the trouble of telling others.

    One core alone does not reach the speed of the memory.
    """
    if lanes.count == 1 or target.nbytes < WORTH_SHARING:
        np.copyto(target, source)
        return

    def copy(image: int) -> None:
        np.copyto(target[image], source[image])

    lanes.each(copy, range(len(target)))
