"""ncnn, loaded so that its threads soon sleep where there is nothing to do.

GNU's OpenMP lets them look for work for 300,000 turns: on a PC some ten milliseconds, as a turn is
a pause of up to 140 clocks. Until then they take the cores from the threads of another library,
whose nets may stand in the same plan. What a net's layers wait for each other is far shorter.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

from codl.runtime.examination import WAIT_POLICY

SPINS = "GOMP_SPINCOUNT"
#: Some ten to fifty microseconds of pauses. An Arm core's last a clock or two, and 300,000 of them
#: no longer than this.
ON_A_PC = "1000"


@contextmanager
def brief_waits() -> Iterator[None]:
    """Inside, libraries that are loaded read how long their threads look for work.

    The environment is as before afterwards. What the user says of it stands.
    """
    is_set = SPINS in os.environ or WAIT_POLICY in os.environ
    if is_set or platform.machine().lower() not in ("x86_64", "amd64"):
        yield
        return
    os.environ[SPINS] = ON_A_PC
    try:
        yield
    finally:
        del os.environ[SPINS]


with brief_waits():
    import ncnn

__all__ = ["brief_waits", "ncnn"]
