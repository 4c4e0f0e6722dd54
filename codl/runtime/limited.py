"""Limits of a GPU that draws an interface too: launches that are too long run in pieces, and the
queue is never filled far ahead, of a GPU that rests in between.

Frames of other programs wait for what is enqueued before them. So only some milliseconds of work
are under way; when they are over, the GPU rests for its part of the time.

The pieces of a launch together have each of its work-items once. `get_global_id` counts on from a
launch's offset. `get_group_id`, `get_num_groups` and `get_global_size` do not: they answer for the
piece. A kernel that asks for them is compiled for its launch, with answers for the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import ceil, prod
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, NamedTuple

from codl.errors import CodlError, DeviceError
from codl.ir.executable import Command, Executable, Flush, Launch, Map, Raise, Unmap
from codl.records.gpu_limits import GpuLimits, LimitedGpu, TooLong
from codl.runtime import opencl, threads
from codl.runtime.actions import Action, Binder, Events, without_span
from codl.runtime.drivers import as_device_error, cl_module, describe
from codl.runtime.handles import Handles
from codl.runtime.launch import BoundKernel, Sizes
from codl.runtime.loaded import Timeline
from codl.runtime.opencl import OpenClDevice

if TYPE_CHECKING:
    import pyopencl as cl

#: What answers for a piece, and what of it there is no answer for without a work-group's size.
BY_PIECE = re.compile(r"\bget_(group_id|num_groups|global_size)\b")
BY_GROUP = re.compile(r"\bget_(group_id|num_groups|local_id|local_size|local_linear_id)\b")
#: What no answer is made for.
UNKNOWN = re.compile(r"\bget_(global_linear_id|global_offset|enqueued_local_size)\b")
#: Each kernel runs this often, in turns with the others, and the median counts.
TRIALS = 3
#: Pieces are to take this part of the limit: the next run finds other clocks and caches.
AIM = 0.8
#: How often pieces that are still too long are split anew, at most.
ROUNDS = 4
#: A quarter of the time between two frames at 60 Hz: behind this much work a frame that takes half
#: of it is still on time.
IN_FLIGHT_MS = 4.0
#: How often the end of the work under way is looked for.
LOOK_S = 0.0001


@dataclass(frozen=True)
class LaunchPiece:
    """Where a piece begins, and its size, in work-items."""

    offset: Sizes
    size: Sizes


def cut(global_size: Sizes, local_size: Sizes | None, count: int) -> list[LaunchPiece]:
    """About `count` pieces of a launch, of whole work-groups; fewer where it has no more of those.

    The outermost dimension is cut first, since work-items that differ there alone share the least;
    a further one only where the groups along that are too few.
    """
    group = local_size or (1,) * len(global_size)
    bounds: list[list[tuple[int, int]]] = []
    left = count
    for size, step in zip(reversed(global_size), reversed(group), strict=True):
        groups = size // step
        parts = max(1, min(left, groups))
        left = ceil(left / parts)
        ends = [groups * part // parts * step for part in range(parts + 1)]
        bounds.insert(0, [(a, b - a) for a, b in pairwise(ends)])
    # In the order of the whole: the outermost dimension changes last.
    every = (tuple(reversed(piece)) for piece in product(*reversed(bounds)))
    return [
        LaunchPiece(tuple(at for at, _ in piece), tuple(n for _, n in piece)) for piece in every
    ]


def most(global_size: Sizes, local_size: Sizes | None) -> int:
    """How many pieces a launch can have: its work-groups."""
    return prod(global_size) // prod(local_size or (1,))


def refusal(text: str, local_size: Sizes | None) -> str | None:
    """Why a kernel cannot be split that is in a program of this text; None where it can."""
    asked = UNKNOWN.search(text)
    if asked is None and local_size is None:
        asked = BY_GROUP.search(text)
    return None if asked is None else f"its source asks for {asked[0]}"


def for_pieces(text: str, global_size: Sizes, local_size: Sizes | None) -> str:
    """The text of a program whose work-items see the whole launch from each piece of it."""
    if not BY_PIECE.search(text):
        return text
    groups = [n // step for n, step in zip(global_size, local_size or global_size, strict=True)]
    return (
        "#define get_group_id(d) ((get_global_id(d) - get_local_id(d)) / get_local_size(d))\n"
        f"#define get_global_size(d) {_by_dimension(global_size)}\n"
        f"#define get_num_groups(d) {_by_dimension(groups)}\n{text}"
    )


def _by_dimension(sizes: Sequence[int]) -> str:
    chosen = "1"
    for number, size in reversed(list(enumerate(sizes))):
        chosen = f"(d) == {number} ? {size} : {chosen}"
    return f"((size_t)({chosen}))"


class TimedKernel(NamedTuple):
    """A launch that is enqueued as it is, and the milliseconds that it takes."""

    kernel: BoundKernel
    ms: float


class SplitLaunches:
    """What is enqueued for each launch of some commands, on a device whose GPU has limits.

    Everything is measured here, so kernels run several times: on whatever lies in their memory.
    """

    def __init__(
        self,
        handles: Handles,
        device: OpenClDevice,
        commands: Iterable[Command],
        limits: GpuLimits,
    ) -> None:
        self._handles, self._device, self._limits = handles, device, limits
        launches = list(
            dict.fromkeys(command for command in commands if isinstance(command, Launch))
        )
        self._timed = self._measured({launch: [handles.kernel(launch)] for launch in launches})
        self._reasons: dict[Launch, str] = {}
        if limits.max_kernel_ms is not None:
            self._split(limits.max_kernel_ms)

    def of(self, launch: Launch) -> Sequence[TimedKernel]:
        """What is enqueued for a launch, in order."""
        return self._timed[launch]

    @property
    def report(self) -> LimitedGpu:
        every = [timed for pieces in self._timed.values() for timed in pieces]
        longest = max(every, key=lambda timed: timed.ms, default=None)
        return LimitedGpu(
            limits=self._limits,
            longest_ms=longest.ms if longest else 0.0,
            longest_kernel=longest.kernel.name if longest else "",
            launches=len(self._timed),
            enqueued=len(every),
            split={
                pieces[0].kernel.name: len(pieces)
                for pieces in self._timed.values()
                if len(pieces) > 1
            },
            too_long=tuple(
                TooLong(self._timed[launch][0].kernel.name, self._longest_ms(launch), reason)
                for launch, reason in self._reasons.items()
            ),
            hints=opencl.hint_report(self._device.device, self._device.soc.placement),
        )

    def _longest_ms(self, launch: Launch) -> float:
        return max(timed.ms for timed in self._timed[launch])

    def _split(self, limit_ms: float) -> None:
        """Split what takes longer, and what still does then."""
        for turn in range(ROUNDS + 1):
            left = [
                launch
                for launch in self._timed
                if launch not in self._reasons and self._longest_ms(launch) > limit_ms
            ]
            if turn == ROUNDS:
                self._reasons |= dict.fromkeys(left, f"it still was after {ROUNDS} times")
            elif left:
                pieces = {launch: self._pieces(launch, limit_ms) for launch in left}
                self._timed |= self._measured({k: some for k, some in pieces.items() if some})

    def _pieces(self, launch: Launch, limit_ms: float) -> list[BoundKernel]:
        """A launch in more pieces than now; none, with the reason, where that cannot be."""
        now, sizes = len(self._timed[launch]), (launch.global_size, launch.local_size)
        wanted = max(now + 1, ceil(now * self._longest_ms(launch) / (AIM * limit_ms)))
        program, text = self._handles.source(launch)
        reason = refusal(text, launch.local_size)
        if reason is None and now >= most(*sizes):
            group = prod(launch.local_size or (1,))
            reason = f"a work-group of {group} takes that long" if now > 1 else "it is one group"
        if reason is None:
            try:
                whole = self._device.programs.build_text(
                    program.name, for_pieces(text, *sizes), program.options
                )
                bound = self._handles.bound(launch, whole)
                return [
                    BoundKernel(
                        bound.name,
                        bound.kernel,
                        piece.size,
                        bound.local_size,
                        bound.values,
                        offset=piece.offset,
                    )
                    for piece in cut(*sizes, wanted)
                ]
            except DeviceError as error:
                reason = str(error)
        self._reasons[launch] = reason
        return []

    def _measured(
        self, kernels: dict[Launch, list[BoundKernel]]
    ) -> dict[Launch, list[TimedKernel]]:
        taken = iter(
            measured_ms(self._device, [kernel for pieces in kernels.values() for kernel in pieces])
        )
        return {
            launch: [TimedKernel(piece, next(taken)) for piece in pieces]
            for launch, pieces in kernels.items()
        }


def measured_ms(device: OpenClDevice, kernels: Sequence[BoundKernel]) -> list[float]:
    """Milliseconds of kernels by the device's own clock."""
    with as_device_error("Measuring kernels"), device.profiling():
        events = [[kernel.enqueue(device.queue) for kernel in kernels] for _ in range(TRIALS)]
        device.finish()
        trials = [[1e-6 * (e.profile.end - e.profile.start) for e in turn] for turn in events]
    return [median(taken) for taken in zip(*trials, strict=True)]


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
        """Wait until a kernel that takes `ms` may be enqueued."""
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
        self._submitted: list[Future[object]] = []
        #: By the number of an event, what enqueues the command that signals it.
        self._signals: dict[int, Future[object]] = {}

    def give(self, work: Callable[[], object], signals: int | None = None) -> None:
        """Let work be done on the thread, behind all that it was given before."""
        future = self._thread.submit(work)
        self._submitted.append(future)
        if signals is not None:
            self._signals[signals] = future

    def until_enqueued(self, event: int) -> None:
        """Wait until the command is enqueued that signals an event; raises what went wrong."""
        if event in self._signals:
            self._signals[event].result()

    def begin(self) -> None:
        """Forget what an inference has left that failed."""
        for future in self._submitted:
            with suppress(CodlError):
                future.result()
        self._submitted.clear()
        self._signals.clear()

    def end(self) -> None:
        """Wait until everything is enqueued; raises what went wrong first."""
        for future in self._submitted:
            future.result()
        self.begin()

    def enqueue(self, kernels: Sequence[TimedKernel]) -> None:
        """Enqueue kernels, each when it may be; on the thread."""
        for kernel, ms in kernels:
            self._pacer.before(ms)
            self._device.submit([kernel])

    def enqueue_signalling(self, kernels: Sequence[TimedKernel]) -> cl.Event:
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


class PacedBinder(Binder):
    """Binds commands for a paced queue; each call's actions leave nothing to be enqueued."""

    def __init__(
        self,
        executable: Executable,
        handles: Handles,
        device: OpenClDevice,
        events: Events,
        *,
        launches: SplitLaunches,
        paced: PacedQueue,
    ) -> None:
        super().__init__(executable, handles, device, events)
        self._split, self._paced = launches, paced

    def bind(self, commands: Iterable[Command]) -> list[Action]:
        begin = without_span("the queue's begin", self._paced.begin)
        end = without_span("the queue's end", self._paced.end)
        return [begin, *self._paced_actions(commands), end]

    def _paced_actions(self, commands: Iterable[Command]) -> Iterator[Action]:
        for command in commands:
            if isinstance(command, Launch):
                yield self._on_queue_thread(self._paced_launch(command), command.signals)
            elif isinstance(command, Raise | Map):
                yield self._on_queue_thread(self._action(command), command.signals)
            elif isinstance(command, Unmap | Flush):
                yield self._on_queue_thread(self._action(command), None)
            else:
                yield self._action(command)

    def _on_queue_thread(self, action: Action, event: int | None) -> Action:
        """An action that is carried out by the queue's thread."""
        give = self._paced.give
        return Action(
            action.name,
            lambda: give(action.run, event),
            lambda timeline: give(partial(action.profile, timeline), event),
            action.kind,
        )

    def _paced_launch(self, launch: Launch) -> Action:
        """A launch in its pieces, which are one span; their end is waited for, if any is."""
        kernels, kind, event = self._split.of(launch), self._span(launch).kind, launch.signals
        name, events, paced = kernels[0].kernel.name, self.events, self._paced

        def run() -> None:
            if event is None:
                paced.enqueue(kernels)
            else:
                events[event] = paced.enqueue_signalling(kernels)

        def profile(timeline: Timeline) -> None:
            first, *others = [paced.enqueue_signalling([timed]) for timed in kernels]
            last = others[-1] if others else first
            if event is not None:
                events[event] = last
            timeline.gpu(kind, name, first, last)

        return Action(f"kernel {name!r}", run, profile, kind)

    def _wait(self, event: int) -> None:
        self._paced.until_enqueued(event)
        super()._wait(event)
