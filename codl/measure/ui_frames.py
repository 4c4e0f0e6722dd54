"""An interface at 60 Hz: frames that a GPU draws while something else works on it, too.

A frame is begun every 16.7 ms and is on time if it is there when the next one is due. One that is
late is shown at the first refresh after its end, and the refreshes in between show nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from time import perf_counter, sleep
from typing import Annotated, TypeAlias

from msgspec import Meta

from codl.records.results import Amount, Count, Latency

PERIOD_MS = 1000 / 60
#: Frames by the refresh at which they were begun, with the milliseconds until they were there.
Drawn: TypeAlias = tuple[tuple[Count, Annotated[float, Meta(ge=0, le=1e9)]], ...]


@dataclass(frozen=True)
class Frames:
    """What became of an interface over some refreshes; `frame_ms` is of the frames that were drawn.

    `on_time` is the share of the refreshes that showed a new frame. `worst_stall_ms` is the longest
    time for which the screen stood still; it is one period where no frame was late.
    """

    refreshes: Count
    on_time: Amount
    worst_stall_ms: Amount
    worst_frame_ms: Amount
    frame_ms: Latency

    @classmethod
    def of(cls, turns: Sequence[Drawn]) -> Frames:
        """Of what was drawn in some turns, of one frame at least each."""
        shown = [[begun + _periods(ms) for begun, ms in drawn] for drawn in turns]
        firsts = [drawn[0][0] for drawn in turns]
        every = [ms for drawn in turns for _, ms in drawn]
        refreshes = sum(turn[-1] - first for turn, first in zip(shown, firsts, strict=True))
        stalls = [
            after - before
            for turn, first in zip(shown, firsts, strict=True)
            for before, after in pairwise([first, *turn])
        ]
        return cls(
            refreshes=refreshes,
            on_time=len(every) / refreshes,
            worst_stall_ms=max(stalls) * PERIOD_MS,
            worst_frame_ms=max(every),
            frame_ms=Latency.of([1e-3 * ms for ms in every]),
        )


def is_sound(drawn: Drawn) -> bool:
    """Whether these can be the frames of one turn."""
    return bool(drawn) and all(
        after >= before + _periods(ms) for (before, ms), (after, _) in pairwise(drawn)
    )


def draw(
    frame: Callable[[], object],
    seconds: float,
    *,
    clock: Callable[[], float] = perf_counter,
    sleep: Callable[[float], object] = sleep,
) -> Drawn:
    """Draw frames for `seconds`, each from the refresh behind the end of the one before."""
    period_s = 1e-3 * PERIOD_MS
    drawn: list[tuple[int, float]] = []
    start, refresh = clock(), 0
    while refresh * period_s < seconds or not drawn:
        due = start + refresh * period_s
        sleep(max(0.0, due - clock()))
        frame()
        ms = 1e3 * (clock() - due)
        drawn.append((refresh, ms))
        refresh += _periods(ms)
    return tuple(drawn)


def _periods(ms: float) -> int:
    """After how many refreshes a frame is shown that takes `ms`."""
    return max(1, ceil(ms / PERIOD_MS))
