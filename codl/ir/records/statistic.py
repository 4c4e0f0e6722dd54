"""The project's one statistic of latency samples: the 20th percentile.

Ops, exchanges, stages, plans, other libraries and reports all use it. With different statistics, a
sum of ops would differ from the plan that it predicts.

Samples are taken in turns, spread over some seconds. A machine's other work is no symmetric noise:
it slows samples in bursts, a few usually and most on a busy machine. So the median moves with the
load: it breaks down once half of the samples are hit (Huber and Ronchetti, *Robust Statistics*, on
breakdown points). The fastest samples do not (Chen and Revels, *Robust benchmarking in noisy
environments*, 2016), but they misrepresent a device with rare fast moments, such as a boosted clock
or a pausing neighbour. The 20th percentile is stable while less than four fifths of the samples are
slowed and less than one fifth are fast by luck. docs/decisions.md compares them on a busy machine.

No percentile helps if all samples are slower: this is drift, of clocks, heat or neighbours.
Anchors, unchanging ops sampled in the same rounds, measure it, and it is divided out (as in Bulej
et al., *Duet Benchmarking*, ICPE 2020; see `codl.measure.drift`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
PERCENT = 20
#: For runs with parts, one in this many lies in the middle part that represents the statistic.
COUNTED = 3
#: Name of the statistic in a manifest's protocol, and the one assumed for protocols without it.
NAME = "20th percentile, drift divided out"
BEFORE = "mean of the three fastest"


def level(samples: Sequence[float] | NDArray[np.float64], drift: float = 1.0) -> float:
    """The 20th percentile in the samples' unit, divided by `drift`, the machine's slowdown."""
    return float(np.percentile(samples, PERCENT)) / drift


def nearest(runs: Sequence[T], length: Callable[[T], float]) -> Sequence[T]:
    """The runs with lengths nearest to the statistic, so that parts add up to whole runs."""
    by_length = sorted(runs, key=length)
    count = len(by_length) - 2 * (len(by_length) // COUNTED)
    begin = round(PERCENT / 100 * (len(by_length) - 1)) - count // 2
    return by_length[max(0, begin) :][:count]
