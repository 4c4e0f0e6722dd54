"""Launch limits for a GPU that also draws an interface: splitting of long launches, and pauses.

Frames of other programs wait for enqueued work. So the queue holds at most some milliseconds of
work, and the GPU then rests for its share of the time.

Pieces of a launch cover its work-items once. `get_global_id` includes a piece's offset;
`get_group_id`, `get_num_groups` and `get_global_size` are relative to the piece. A kernel that uses
them is compiled with macros that return the values of the whole launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise, product
from math import ceil, prod
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, NamedTuple

from codl.errors import CodlError, DeviceError
from codl.ir.executable import Command, Flush, Launch, Map, Unmap
from codl.ir.records.gpu_limits import GpuLimits, LimitedGpu, TooLong
from codl.machine import threads
from codl.runtime.actions import Action, Binder, Events, without_span
from codl.runtime.drivers import as_device_error, cl_module
from codl.runtime.handles import Handles
from codl.runtime.hints import Hints
from codl.runtime.launch import BoundKernel, Sizes
from codl.runtime.loaded import Timeline
from codl.runtime.opencl import OpenClDevice

if TYPE_CHECKING:
    import pyopencl as cl

#: OpenCL functions relative to a piece, and functions that depend on the work-group size.
BY_PIECE = re.compile(r"\bget_(group_id|num_groups|global_size)\b")
BY_GROUP = re.compile(r"\bget_(group_id|num_groups|local_id|local_size|local_linear_id)\b")
#: OpenCL functions that codl has no macro for.
UNKNOWN = re.compile(r"\bget_(global_linear_id|global_offset|enqueued_local_size)\b")
#: Measured runs of each kernel, in turns with other kernels; the median counts.
TRIALS = 3
#: Intended duration of a piece as a share of the limit: clocks and caches vary between runs.
AIM = 0.8
#: Most rounds of splitting a launch into more pieces.
ROUNDS = 4
#: Milliseconds of enqueued work: a quarter of a frame at 60 Hz. A frame that takes half of its time
#: is still on time behind this work.
IN_FLIGHT_MS = 4.0
#: Seconds between two checks for the end of the enqueued work.
LOOK_S = 0.0001


def cut(global_size: Sizes, local_size: Sizes | None, count: int) -> list[tuple[Sizes, Sizes]]:
    """Offsets and sizes of about `count` pieces of whole work-groups, at most one for each group.

    Cuts the outermost dimension first, since its work-items share the least data, and the next one
    if the outermost has too few groups.
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
    # Pieces in the order of the whole launch: the outermost dimension changes last.
    every = (tuple(reversed(piece)) for piece in product(*reversed(bounds)))
    return [(tuple(at for at, _ in piece), tuple(n for _, n in piece)) for piece in every]


def refusal(text: str, local_size: Sizes | None) -> str | None:
    """Why a kernel of this source text cannot be split; None if it can."""
    asked = UNKNOWN.search(text)
    if asked is None and local_size is None:
        asked = BY_GROUP.search(text)
    return None if asked is None else f"its source asks for {asked[0]}"


def for_pieces(text: str, global_size: Sizes, local_size: Sizes | None) -> str:
    """The source text with macros that give pieces the values of the whole launch."""
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
    """A kernel for one piece or a whole launch, and its milliseconds."""

    kernel: BoundKernel
    ms: float


class SplitLaunches:
    """The kernels of each launch among some commands, for a GPU with limits.

    The constructor measures each kernel several times, on the present content of its memory.
    """

    def __init__(self, handles: Handles, commands: Iterable[Command], limits: GpuLimits) -> None:
        self._handles, self._device, self._limits = handles, handles.device, limits
        #: The kernels of each launch, in order.
        self.timed: dict[Launch, list[TimedKernel]]
        launches = dict.fromkeys(one for one in commands if isinstance(one, Launch))
        self.timed = self._measured({launch: [handles.kernels[launch]] for launch in launches})
        self._reasons: dict[Launch, str] = {}
        if limits.max_kernel_ms is not None:
            self._split(limits.max_kernel_ms)

    @property
    def report(self) -> LimitedGpu:
        every = [timed for pieces in self.timed.values() for timed in pieces]
        longest = max(every, key=lambda timed: timed.ms, default=None)
        return LimitedGpu(
            limits=self._limits,
            longest_ms=longest.ms if longest else 0.0,
            longest_kernel=longest.kernel.name if longest else "",
            launches=len(self.timed),
            enqueued=len(every),
            split={
                pieces[0].kernel.name: len(pieces)
                for pieces in self.timed.values()
                if len(pieces) > 1
            },
            too_long=tuple(
                TooLong(self.timed[launch][0].kernel.name, self._longest_ms(launch), reason)
                for launch, reason in self._reasons.items()
            ),
            hints=Hints.of(self._device.soc.placement, self._device.device.extensions).report(),
        )

    def _longest_ms(self, launch: Launch) -> float:
        return max(timed.ms for timed in self.timed[launch])

    def _split(self, limit_ms: float) -> None:
        """Split launches longer than the limit, repeatedly if they still exceed it."""
        for turn in range(ROUNDS + 1):
            left = [
                launch
                for launch in self.timed
                if launch not in self._reasons and self._longest_ms(launch) > limit_ms
            ]
            if turn == ROUNDS:
                self._reasons |= dict.fromkeys(left, f"it still was after {ROUNDS} times")
            elif left:
                pieces = {launch: self._pieces(launch, limit_ms) for launch in left}
                self.timed |= self._measured({k: some for k, some in pieces.items() if some})

    def _pieces(self, launch: Launch, limit_ms: float) -> list[BoundKernel]:
        """A launch in more pieces than now; empty, with a reason noted, if it cannot be split."""
        now, sizes = len(self.timed[launch]), (launch.global_size, launch.local_size)
        wanted = max(now + 1, ceil(now * self._longest_ms(launch) / (AIM * limit_ms)))
        program = self._handles.executable.programs[launch.program]
        text = self._handles.executable.texts[program.text]
        reason = refusal(text, launch.local_size)
        group = prod(launch.local_size or (1,))
        if reason is None and now >= prod(launch.global_size) // group:
            reason = f"a work-group of {group} takes that long" if now > 1 else "it is one group"
        if reason is None:
            try:
                text = for_pieces(text, *sizes)
                built = self._device.programs.build_text(program.name, text, program.options)
                whole = self._handles.bound(launch, built)
            except DeviceError as error:
                reason = str(error)
        if reason is not None:
            self._reasons[launch] = reason
            return []
        name, kernel, local, values = whole.name, whole.kernel, whole.local_size, whole.values
        return [
            BoundKernel(name, kernel, size, local, values, offset=offset)
            for offset, size in cut(*sizes, wanted)
        ]

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
    """Median milliseconds of each kernel by the device's clock."""
    with as_device_error("Measuring kernels"), device.profiling():
        events = [[kernel.enqueue(device.queue) for kernel in kernels] for _ in range(TRIALS)]
        device.finish()
        trials = [[1e-6 * (e.profile.end - e.profile.start) for e in turn] for turn in events]
    return [median(taken) for taken in zip(*trials, strict=True)]


class Pacer:
    """Delays kernels by their durations, so that the GPU rests and the queue stays short.

    `drain` waits for an empty queue, and returns whether it was empty. `clock` and `sleep` use
    seconds.
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
        #: Milliseconds of work since the queue was last empty, and of rest that is due. Sleeps end
        #: late; the excess is subtracted from the next one.
        self._in_flight_ms = self._due_ms = 0.0
        #: Expected end of the enqueued work.
        self._end_s = 0.0

    def before(self, ms: float) -> None:
        """Wait until a kernel of `ms` may be enqueued."""
        if self._in_flight_ms and self._in_flight_ms + ms > self._most_ms:
            self._let_rest()
        self._end_s = max(self._clock(), self._end_s) + 1e-3 * ms
        self._in_flight_ms += ms
        self._due_ms += self._rest * ms

    def _let_rest(self) -> None:
        was_empty = self._drain()
        now_s = self._clock()
        if was_empty:  # the GPU has rested since
            self._due_ms = max(0.0, self._due_ms - max(0.0, 1e3 * (now_s - self._end_s)))
        if self._due_ms > 0:
            self._sleep(1e-3 * self._due_ms)
            self._due_ms -= 1e3 * (self._clock() - now_s)
        self._in_flight_ms, self._end_s = 0.0, self._clock()


class PacedQueue:
    """A thread that enqueues work in order at the GPU's pace, parallel to the CPU's work."""

    def __init__(self, device: OpenClDevice, limits: GpuLimits) -> None:
        self._device = device
        self._pacer = Pacer(limits, self._drain)
        cores = device.soc.placement.cpu_cores
        self._thread = ThreadPoolExecutor(1, "queue", threads.pin, ([0], cores))
        self._submitted: list[Future[object]] = []
        #: The work that enqueues the command of each event, by event number.
        self._signals: dict[int, Future[object]] = {}

    def give(self, work: Callable[[], object], signals: int | None = None) -> None:
        """Run `work` on the thread after all earlier work; `signals` is its command's event."""
        future = self._thread.submit(work)
        self._submitted.append(future)
        if signals is not None:
            self._signals[signals] = future

    def until_enqueued(self, event: int) -> None:
        """Wait until the command of an event is enqueued; raises the error of its work."""
        if event in self._signals:
            self._signals[event].result()

    def begin(self) -> None:
        """Wait for the work of an earlier inference, ignoring its errors, and forget it."""
        for future in self._submitted:
            with suppress(CodlError):
                future.result()
        self._submitted.clear()
        self._signals.clear()

    def end(self) -> None:
        """Wait until all work is enqueued; raises the first error."""
        for future in self._submitted:
            future.result()
        self.begin()

    def enqueue(self, kernels: Sequence[TimedKernel], *, signals: bool = False) -> cl.Event | None:
        """Enqueue kernels, each at its permitted time; called on the thread.

        Returns the event of the last one if it `signals`.
        """
        for kernel, ms in kernels:
            self._pacer.before(ms)
            if signals and kernel is kernels[-1].kernel:
                return kernel.enqueue(self._device.queue)
            self._device.submit([kernel])
        return None

    def close(self) -> None:
        self._thread.shutdown()

    def _drain(self) -> bool:
        marker = cl_module().enqueue_marker(self._device.queue)
        self._device.queue.flush()
        was_empty = True
        while not self._device.has_ended(marker):
            was_empty = False
            sleep(LOOK_S)
        return was_empty


class PacedBinder(Binder):
    """Binds commands for a paced queue; the actions of one call enqueue all of its work."""

    def __init__(
        self, handles: Handles, events: Events, *, launches: SplitLaunches, paced: PacedQueue
    ) -> None:
        super().__init__(handles, events)
        self._split, self._paced = launches, paced

    def bind(self, commands: Iterable[Command]) -> list[Action]:
        begin = without_span("the queue's begin", self._paced.begin)
        end = without_span("the queue's end", self._paced.end)
        return [begin, *self._paced_actions(commands), end]

    def _paced_actions(self, commands: Iterable[Command]) -> Iterator[Action]:
        for command in commands:
            if isinstance(command, Launch):
                yield self._on_queue_thread(self._paced_launch(command), command.signals)
            elif isinstance(command, Map | Unmap | Flush):
                event: int | None = getattr(command, "signals", None)
                yield self._on_queue_thread(self._action(command), event)
            else:
                yield self._action(command)

    def _on_queue_thread(self, action: Action, event: int | None) -> Action:
        """An action on the queue's thread."""
        give = self._paced.give
        return Action(
            action.name,
            lambda: give(action.run, event),
            lambda timeline: give(partial(action.profile, timeline), event),
            action.kind,
        )

    def _paced_launch(self, launch: Launch) -> Action:
        """A launch as its pieces, which form one span in profiles."""
        kernels, event = self._split.timed[launch], launch.signals
        kind = self._handles.span(launch).kind
        name, events, paced = kernels[0].kernel.name, self.events, self._paced

        def run() -> None:
            made = paced.enqueue(kernels, signals=event is not None)
            if event is not None:
                events[event] = made

        def profile(timeline: Timeline) -> None:
            made = [paced.enqueue([timed], signals=True) for timed in kernels]
            if event is not None:
                events[event] = made[-1]
            timeline.gpu(kind, name, made[0], made[-1])

        return Action(f"kernel {name!r}", run, profile, kind)

    def _wait(self, event: int) -> None:
        self._paced.until_enqueued(event)
        super()._wait(event)
