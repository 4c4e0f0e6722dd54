"""Commands of an executable bound to their handles: the callables that an inference runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

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
from codl.records.span_names import SpanName, span_of
from codl.runtime.handles import Handles
from codl.runtime.host_handles import profile_net
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Timeline
from codl.runtime.memory import Flag
from codl.runtime.opencl import OpenClDevice
from codl.runtime.threads import ImageParallel

if TYPE_CHECKING:
    import pyopencl as cl

#: Fewer bytes are copied in the time that it takes to wake other threads.
WORTH_SHARING = 1 << 19
#: This number of cores reaches the speed of the memory; more only take longer to wake.
MOST_COPYING = 4
#: Events by number, as long as they may be waited for; a flag stands for one that it signals.
Events: TypeAlias = "dict[int, cl.Event | Flag]"


@dataclass(frozen=True, slots=True)
class Action:
    """A command, or several that are enqueued at once, ready to be carried out.

    Errors call it by its `name`. To `profile` is to run it and to note when. `kind` is that of its
    span, or what takes time without one; `kernels` are those that it launches without events.
    """

    name: str
    run: Callable[[], object]
    profile: Callable[[Timeline], object]
    kind: str = ""
    kernels: tuple[BoundKernel, ...] = ()


def without_span(name: str, run: Callable[[], object], kind: str = "") -> Action:
    """An action that profiles do not show."""
    return Action(name, run, lambda timeline: run(), kind)


class Binder:
    """Makes actions of commands; to run them is to enqueue on the queue that the device has now."""

    def __init__(
        self,
        executable: Executable,
        handles: Handles,
        device: OpenClDevice,
        events: Events | None = None,
    ) -> None:
        self._executable, self._handles, self._device = executable, handles, device
        self.events: Events = {} if events is None else events

    def bind(self, commands: Iterable[Command]) -> list[Action]:
        """Actions in order; kernels between two other commands are enqueued by one."""
        actions: list[Action] = []
        for is_silent, group in groupby(commands, _is_silent_launch):
            if is_silent:
                actions.append(
                    self._launches([command for command in group if isinstance(command, Launch)])
                )
            else:
                actions += map(self._action, group)
        return actions

    def _action(self, command: Command) -> Action:
        handles, events = self._handles, self.events
        match command:
            case Launch():
                return self._signalling(command)
            case Raise():
                flag = handles.flag(command)

                def raise_flag() -> None:
                    flag.enqueue()
                    events[command.signals] = flag

                return without_span("a flag", raise_flag)
            case Map():
                staging, write = handles.staging(command.buffer), command.access == "write"

                def map_staging() -> None:
                    events[command.signals] = staging.map(write=write)

                return without_span(f"map to {command.access}", map_staging, "map")
            case Flush():
                device = self._device
                return Action("flush", device.queue.flush, lambda timeline: device.queue.flush())
            case Fill():
                return without_span("fill", partial(handles.host.fill, command))
            case RunNet():
                net = handles.host.nets[command.net]
                host = self._host(command, net.run)
                return replace(host, profile=partial(profile_net, net))
            case Unmap():
                return self._host(command, handles.staging(command.buffer).unmap)
            case Wait():
                return self._host(command, partial(self._wait, command.event))
            case Copy():
                return self._host(command, self._copy(command))

    def _launches(self, launches: Sequence[Launch]) -> Action:
        device = self._device
        kernels = tuple(map(self._handles.kernel, launches))
        kinds = [self._span(launch).kind for launch in launches]

        def profile(timeline: Timeline) -> None:
            for kernel, kind in zip(kernels, kinds, strict=True):
                timeline.gpu(kind, kernel.name, kernel.enqueue(device.queue))

        first, last = kernels[0].name, kernels[-1].name
        name = f"kernel {first!r}" if len(kernels) == 1 else f"kernels {first!r} ... {last!r}"
        return Action(name, device.submission(kernels), profile, kinds[0], kernels)

    def _signalling(self, launch: Launch) -> Action:
        """A kernel whose end is waited for."""
        kernel, kind, event = self._handles.kernel(launch), self._span(launch).kind, launch.signals
        events, device = self.events, self._device
        assert event is not None
        enqueue = kernel.with_event(device.queue)

        def run() -> None:
            events[event] = enqueue()

        def profile(timeline: Timeline) -> None:
            made = events[event] = kernel.enqueue(device.queue)
            timeline.gpu(kind, kernel.name, made)

        return Action(f"kernel {kernel.name!r}", run, profile, kind)

    def _host(self, command: Command, work: Callable[[], object]) -> Action:
        """Work of the CPU that profiles show."""
        kind, label = self._span(command)

        def profile(timeline: Timeline) -> None:
            start = perf_counter()
            work()
            timeline.cpu(kind, label, start, perf_counter())

        return Action(f"{kind} {label!r}", work, profile, kind)

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

    def _copy(self, command: Copy) -> Callable[[], object]:
        place = self._device.soc.placement
        lanes = ImageParallel.of(place.cpu_cores, place.threads, MOST_COPYING)
        source, target = self._seen(command.source), self._seen(command.target)
        return lambda: copy_in_parts(lanes, target(), source())

    def _seen(self, access: Access) -> Callable[[], Array]:
        """What gives a region as an array: staging memory lies elsewhere each time it is mapped."""
        tensor = self._executable.tensors[access.tensor]
        if self._executable.buffers[tensor.buffer].place != "staging":
            view = self._handles.host.view(access)
            return lambda: view
        staging, held = self._handles.staging(tensor.buffer), tensor.held.shape(tensor.shape)
        elements, part = held.elements, access.region.within(tensor.held).slices
        return lambda: staging.array[:elements].reshape(held)[part]


def _is_silent_launch(command: Command) -> bool:
    return isinstance(command, Launch) and command.signals is None


def copy_in_parts(lanes: ImageParallel, target: Array, source: Array) -> None:
    """Copy arrays shaped (images, channels, rows, columns), in as many parts as there are lanes.

    One core alone does not reach the speed of the memory. Arrays of less than `WORTH_SHARING` bytes
    are copied by the calling thread.
    """
    axis = max(range(2), key=target.shape.__getitem__)
    size = target.shape[axis]
    count = min(lanes.count, size)
    if count < 2 or target.nbytes < WORTH_SHARING:
        np.copyto(target, source)
        return
    bounds = [size * part // count for part in range(count + 1)]
    before = (slice(None),) * axis

    def copy(part: int) -> None:
        cut = (*before, slice(bounds[part], bounds[part + 1]))
        np.copyto(target[cut], source[cut])

    lanes.each(copy, range(count))
