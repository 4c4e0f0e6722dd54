"""Actions of an inference: an executable's commands, bound to device handles."""

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
    Fill,
    Flush,
    Launch,
    Map,
    RunNet,
    Unmap,
    Wait,
)
from codl.ir.ops.base import Array
from codl.machine.threads import ImageParallel
from codl.runtime.handles import Handles, profile_net
from codl.runtime.launch import BoundKernel
from codl.runtime.loaded import Timeline

if TYPE_CHECKING:
    import pyopencl as cl

#: Fewest bytes of a copy that several threads share; waking them takes as long as a smaller copy.
WORTH_SHARING = 1 << 19
#: Number of cores that saturate the memory.
MOST_COPYING = 4
#: Events by number.
Events: TypeAlias = "dict[int, cl.Event]"


@dataclass(frozen=True, slots=True)
class Action:
    """A command, or several commands enqueued together, ready to run.

    `name` is for errors, `profile` records a span of `kind`, `kernels` are launches without events.
    """

    name: str
    run: Callable[[], object]
    profile: Callable[[Timeline], object]
    kind: str = ""
    kernels: tuple[BoundKernel, ...] = ()


def without_span(name: str, run: Callable[[], object], kind: str = "") -> Action:
    """An action without a span in profiles."""
    return Action(name, run, lambda timeline: run(), kind)


class Binder:
    """Turns commands into actions that enqueue on the device's present queue."""

    def __init__(self, handles: Handles, events: Events | None = None) -> None:
        self._handles, self._device = handles, handles.device
        self.events: Events = {} if events is None else events

    def bind(self, commands: Iterable[Command]) -> list[Action]:
        """Actions in order; successive launches without events form one action."""
        actions: list[Action] = []
        for is_silent, group in groupby(
            commands, lambda command: isinstance(command, Launch) and command.signals is None
        ):
            if is_silent:
                actions.append(self._launches([one for one in group if isinstance(one, Launch)]))
            else:
                actions += map(self._action, group)
        return actions

    def _action(self, command: Command) -> Action:
        handles, device, events = self._handles, self._device, self.events
        match command:
            case Launch():
                return self._signalling(command)
            case Map():
                staging, write = handles.staging(command.buffer), command.access == "write"

                def map_staging() -> None:
                    events[command.signals] = staging.map(write=write)

                return without_span(f"map to {command.access}", map_staging, "map")
            case Flush():
                return Action("flush", device.queue.flush, lambda timeline: device.queue.flush())
            case Fill():
                return without_span("fill", partial(handles.fill, command))
            case RunNet():
                net = handles.nets[command.net]
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
        kernels = tuple(self._handles.kernels[launch] for launch in launches)
        kinds = [self._handles.span(launch).kind for launch in launches]

        def profile(timeline: Timeline) -> None:
            for kernel, kind in zip(kernels, kinds, strict=True):
                timeline.gpu(kind, kernel.name, kernel.enqueue(device.queue))

        first, last = kernels[0].name, kernels[-1].name
        name = f"kernel {first!r}" if len(kernels) == 1 else f"kernels {first!r} ... {last!r}"
        return Action(name, device.submission(kernels), profile, kinds[0], kernels)

    def _signalling(self, launch: Launch) -> Action:
        """A launch with an event, for which a later command waits."""
        kernel, event = self._handles.kernels[launch], launch.signals
        kind = self._handles.span(launch).kind
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
        """Work of the CPU with a span in profiles."""
        kind, label = self._handles.span(command)

        def profile(timeline: Timeline) -> None:
            start = perf_counter()
            work()
            timeline.cpu(kind, label, start, perf_counter())

        return Action(f"{kind} {label!r}", work, profile, kind)

    def _wait(self, event: int) -> None:
        self._device.wait(self.events[event])

    def _copy(self, command: Copy) -> Callable[[], object]:
        place = self._device.soc.placement
        lanes = ImageParallel.of(place.cpu_cores, place.threads, MOST_COPYING)
        source, target = self._seen(command.source), self._seen(command.target)
        return lambda: copy_in_parts(lanes, target(), source())

    def _seen(self, access: Access) -> Callable[[], Array]:
        """A function that returns a region as an array; mapped memory moves at each mapping."""
        executable = self._handles.executable
        tensor = executable.tensors[access.tensor]
        if executable.buffers[tensor.buffer].place != "staging":
            view = self._handles.view(access)
            return lambda: view
        staging, held = self._handles.staging(tensor.buffer), tensor.held.shape(tensor.shape)
        elements, part = held.elements, access.region.within(tensor.held).slices
        return lambda: staging.array[:elements].reshape(held)[part]


def copy_in_parts(lanes: ImageParallel, target: Array, source: Array) -> None:
    """Copy an array shaped (images, channels, rows, columns) in parts, one on each lane.

    One core cannot saturate the memory. The calling thread copies arrays below `WORTH_SHARING`
    bytes.
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
