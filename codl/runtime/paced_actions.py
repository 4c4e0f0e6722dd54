"""Commands as actions where the GPU has limits: what goes to the queue, another thread enqueues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from codl.ir.executable import Command, Executable, Flush, Launch, Map, Raise, Unmap
from codl.ir.results import SpanKind
from codl.runtime.actions import Action, Binder, Events, HostAction
from codl.runtime.handles import Handles
from codl.runtime.opencl import OpenClDevice
from codl.runtime.pacing import PacedQueue
from codl.runtime.profiler import Timeline
from codl.runtime.split_launches import SplitLaunches, Timed

if TYPE_CHECKING:
    import pyopencl as cl


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
