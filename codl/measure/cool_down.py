"""Pauses while a machine is hot, and when to stop because its battery runs out.

A machine holds its pace where the same work over and over takes as long at the end as at first. A
processor that is hot, or whose clock was only boosted for a moment, is slower at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from codl.ir.types import Processor
from codl.measure import HOT_C as HOT_C
from codl.measure import LONGEST_S as LONGEST_S
from codl.measure.timing import ORDINARY, TOLERANCE
from codl.records.results import Conditions
from codl.records.statistic import level
from codl.runtime import threads

#: Edge of the matrices that are multiplied: a round stays in a core's cache and lasts milliseconds.
EDGE, REPEATS = 128, 16
#: Of all rounds, the first and the last third are compared; each is three stretches.
PART, STRETCHES = 3, 3


def pace(seconds: float) -> tuple[float, ...]:
    """Multiply matrices on one core for `seconds`; the seconds of every round."""
    matrix = np.full((EDGE, EDGE), 1.0 / EDGE, np.float32)
    out = np.empty_like(matrix)
    samples: list[float] = []
    with threads.one_blas_thread():
        begin = last = perf_counter()
        while last - begin < seconds or len(samples) < PART:
            for _ in range(REPEATS):
                np.matmul(matrix, matrix, out=out)
            now = perf_counter()
            samples.append(now - last)
            last = now
    return tuple(samples)


def held(samples_s: Sequence[float]) -> float:
    """The pace of the last rounds over that of the first: 1 where it holds, 0.5 at half of it."""
    count = max(1, len(samples_s) // PART)
    return level(samples_s[:count]) / level(samples_s[-count:])


def tolerance(samples_s: Sequence[float]) -> float:
    """By how much the pace may fall: a little, and more where one stretch differs from the next."""
    stretches = np.array_split(np.asarray(samples_s), PART * STRETCHES)
    levels = [level(stretch.tolist()) for stretch in stretches if stretch.size]
    steps = np.abs(np.diff(np.log(levels)))
    spread = float(np.median(steps)) if steps.size else 0.0
    return max(TOLERANCE, ORDINARY * spread)


#: Below this charge in percent a battery that does not charge must not be measured on.
LEAST_PERCENT = 20.0
#: A hot processor is cool again where it is so near to where it began, and so far below `HOT_C`.
NEAR_C, BELOW_C, LOOK_S = 5.0, 10.0, 2.0


def low_battery(now: Conditions) -> str:
    """A sentence about a battery that runs out; empty where none does."""
    percent = now.battery_percent
    if percent is None or percent >= LEAST_PERCENT or now.is_charging:
        return ""
    return (
        f"The battery is at {percent:.0f} % and does not charge; below {LEAST_PERCENT:.0f} % "
        "nothing is measured."
    )


@dataclass
class CoolDown:
    """Waits for a machine that is hot or throttled, but not for longer than `longest_s` at once.

    `read` tells the conditions and `note` what is waited for. A pause that did not help makes
    ordinary what it waited for: some machines are always hot, and some clocks always held down.
    """

    read: Callable[[], Conditions]
    note: Callable[[str], object] = lambda text: None
    hot_c: float = HOT_C
    longest_s: float = LONGEST_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    #: All pauses so far, in seconds.
    paused_s: float = 0.0
    _near_c: float | None = None
    _ordinary: set[Processor] = field(default_factory=set)

    def throttled(self, row: str) -> set[str]:
        """The processors that a row names as throttled, without those that always are."""
        return {*row.split()} - self._ordinary

    def wait(self, now: Conditions, most_s: float = float("inf")) -> None:
        """Pause where it is needed, for at most `most_s`; the first call says what is cool."""
        if self._near_c is None and now.temperature_c is not None:
            self._near_c = min(now.temperature_c + NEAR_C, self.hot_c - BELOW_C)
        reason, limit_s = self._reason(now), min(self.longest_s, most_s)
        if not reason or limit_s <= 0:
            return
        self.note(f"{reason}: pausing until that is over, {limit_s:.0f} s at most.")
        begin = self.clock()
        while not self._is_cool(now) and self.clock() - begin < limit_s:
            self.sleep(min(LOOK_S, limit_s))
            now = self.read()
        passed = self.clock() - begin
        self.paused_s += passed
        celsius = "" if now.temperature_c is None else f", at {now.temperature_c:.0f} °C now"
        self.note(f"Paused for {passed:.0f} s{celsius}.")
        if not self._is_cool(now):
            self._take_as_ordinary(now)

    def _reason(self, now: Conditions) -> str:
        """Why to pause, for people; empty where there is no reason."""
        celsius = now.temperature_c
        if celsius is not None and celsius >= max(self.hot_c, self._near_c or 0.0):
            return f"The processors have {celsius:.0f} °C, {self.hot_c:.0f} °C is hot"
        held = [side.upper() for side in now.throttled if side not in self._ordinary]
        return f"The clock of the {' and the '.join(held)} is held down" if held else ""

    def _is_cool(self, now: Conditions) -> bool:
        """Whether a pause may end: near where it began, with nothing held down."""
        celsius, near = now.temperature_c, self._near_c
        is_near = celsius is None or near is None or celsius <= near
        return is_near and not {*now.throttled} - self._ordinary

    def _take_as_ordinary(self, now: Conditions) -> None:
        self._ordinary |= {*now.throttled}
        if now.temperature_c is not None:
            self._near_c = max(self._near_c or 0.0, now.temperature_c + NEAR_C)
