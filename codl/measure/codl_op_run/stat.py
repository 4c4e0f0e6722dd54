"""What the program prints: a line of every round, and one of statistics that begins with `Stat:`.

    I mace/utils/op_delay_tool.h:147] [0.012,3.81,0.021]
    I test/codl_run/conv2d_test_v2.cc:229] Stat: si 10, stat [0.011,3.8,0.02], std_pect [9.1,2,4.2]

`stat` are the means in milliseconds of the parts of a kernel (such as padding, computing, cutting
off) over the rounds from `si` on; `std_pect` their standard deviations in percent. Both are empty
where nothing was measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

from codl.errors import DeviceError

STAT = re.compile(
    r"Stat: si (?P<si>\d+), stat (?P<stat>\S*), std_pect (?P<std>\S*)\s*$", re.MULTILINE
)
ROUND = re.compile(r"^I \S+\] (?P<parts>\[[^\]\s]*\])\s*$", re.MULTILINE)
#: An output is not longer than this, in bytes: more is not read.
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Stat:
    """Means in milliseconds of the parts of a kernel, and their sums in the rounds that count.

    `rounds_ms` is empty where the program printed none.
    """

    parts_ms: tuple[float, ...]
    rounds_ms: tuple[float, ...] = ()

    @property
    def latency_ms(self) -> float:
        """The mean of the whole."""
        return sum(self.parts_ms)


def read_stat(output: bytes) -> Stat:
    """The statistics in what the program wrote.

    Raises `DeviceError` where there are none, or they are no latencies.
    """
    text = output[:MOST_BYTES].decode(errors="replace")
    lines = list(STAT.finditer(text))
    if len(lines) != 1:
        problem = "no line that begins with Stat:" if not lines else f"{len(lines)} lines of Stat:"
        raise DeviceError(f"the program printed {problem}{_last(text)}")
    (found,) = lines
    parts = _numbers(found["stat"])
    if not parts:
        raise DeviceError(f"the program measured nothing: {found[0]!r}")
    if not all(isfinite(part) and part >= 0 for part in parts) or not sum(parts):
        raise DeviceError(f"the program printed what is no latency: {found[0]!r}")
    rounds = [_numbers(line["parts"]) for line in ROUND.finditer(text[: found.start()])]
    own = [sum(each) for each in rounds if len(each) == len(parts)]
    return Stat(parts, tuple(own[int(found["si"]) :]))


def _numbers(text: str) -> tuple[float, ...]:
    """The numbers of `[1,2.5]`, none of an empty text; raises `DeviceError` for anything else."""
    if not text:
        return ()
    if not (text.startswith("[") and text.endswith("]")):
        raise DeviceError(f"the program printed {text!r}, expected numbers such as [1,2.5]")
    try:
        return tuple(float(part) for part in text[1:-1].split(","))
    except ValueError:
        raise DeviceError(
            f"the program printed {text!r}, expected numbers such as [1,2.5]"
        ) from None


def _last(text: str) -> str:
    """The last that was said, where anything was."""
    lines = text.strip().splitlines()
    return f"; its last line is {lines[-1].strip()[:200]!r}" if lines else ""
