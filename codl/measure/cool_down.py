"""Cooling waits of a hot machine, and the check of its battery."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from codl.ir.records.results import Conditions
from codl.ir.types import Processor
from codl.measure import HOT_C as HOT_C
from codl.measure import LONGEST_S as LONGEST_S

#: Least charge in percent for measurements on a battery that does not charge.
LEAST_PERCENT = 20.0
#: A cool processor: at most `NEAR_C` above its first temperature, and `BELOW_C` below the hot one.
#: `LOOK_S` are the seconds between readings.
NEAR_C, BELOW_C, LOOK_S = 5.0, 10.0, 2.0


def low_battery(now: Conditions) -> str:
    """A sentence about a low battery that does not charge, or ""."""
    percent = now.battery_percent
    if percent is None or percent >= LEAST_PERCENT or now.is_charging:
        return ""
    return (
        f"The battery is at {percent:.0f} % and does not charge; below {LEAST_PERCENT:.0f} % "
        "nothing is measured."
    )


@dataclass
class CoolDown:
    """Waits while a machine is hot or throttled, for at most `longest_s` seconds at a time.

    `read` reads the conditions; `note` receives a line about each wait. After a wait without
    success, its reason counts as normal, since some machines are always hot or throttled.
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
        """The throttled processors of a row, without the permanently throttled ones."""
        return {*row.split()} - self._ordinary

    def wait(self, now: Conditions, most_s: float = float("inf")) -> None:
        """Wait if needed, at most `most_s` seconds; the first call sets the cool temperature."""
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
            self._ordinary |= {*now.throttled}
            if now.temperature_c is not None:
                self._near_c = max(self._near_c or 0.0, now.temperature_c + NEAR_C)

    def _reason(self, now: Conditions) -> str:
        """The reason of a wait as text, or ""."""
        celsius = now.temperature_c
        if celsius is not None and celsius >= max(self.hot_c, self._near_c or 0.0):
            return f"The processors have {celsius:.0f} °C, {self.hot_c:.0f} °C is hot"
        held = [side.upper() for side in now.throttled if side not in self._ordinary]
        return f"The clock of the {' and the '.join(held)} is held down" if held else ""

    def _is_cool(self, now: Conditions) -> bool:
        """Whether a wait may end: near the first temperature and without a throttled clock."""
        celsius, near = now.temperature_c, self._near_c
        is_near = celsius is None or near is None or celsius <= near
        return is_near and not {*now.throttled} - self._ordinary
