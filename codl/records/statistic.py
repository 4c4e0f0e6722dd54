"""The one statistic: how samples of a latency become the number that is added up and compared.

Ops, exchanges, stages, plans, other libraries and reports all have this one: else a sum of
ops differs from the plan that it predicts for no other reason.

It is the 20th percentile of samples that were taken in turns, spread over some seconds. What else a
machine does is no symmetric noise: it makes samples slower, in bursts that hit a few of them, and
on a busy machine most. So the median moves with the load: it breaks down where half of the samples
are hit (Huber and Ronchetti, *Robust Statistics*, on breakdown points). The fastest samples do not
(Chen and Revels, *Robust benchmarking in noisy environments*, 2016), but they are those of another
machine where a device has rare fast moments: a boosted clock, a neighbour that pauses. The 20th
percentile stays where it is while less than four fifths of the samples are slowed down, and less
than one fifth are fast by luck. docs/decisions.md has what each of them did on a busy machine.

No percentile helps where all samples are slower: that is drift, of clocks, heat or neighbours. It
is divided out by anchors, ops that never change and are sampled in the same rounds (as in Bulej et
al., *Duet Benchmarking*, ICPE 2020; see `codl.measure.drift`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
#: The percentile.
PERCENT = 20
#: Of whole runs with parts, the part that is nearest to the statistic is one of this many.
COUNTED = 3
#: What a run's protocol in a manifest says, and what runs had whose protocol does not say it.
NAME = "20th percentile, drift divided out"
BEFORE = "mean of the three fastest"


def level(samples: Sequence[float] | NDArray[np.float64], drift: float = 1.0) -> float:
    """The statistic, in the samples' unit; `drift` is how many times slower the machine was."""
    return float(np.percentile(samples, PERCENT)) / drift


def nearest(runs: Sequence[T], length: Callable[[T], float]) -> Sequence[T]:
    """The runs whose length is nearest to the statistic's, whose parts add up to what they took."""
    by_length = sorted(runs, key=length)
    count = len(by_length) - 2 * (len(by_length) // COUNTED)
    begin = round(PERCENT / 100 * (len(by_length) - 1)) - count // 2
    return by_length[max(0, begin) :][:count]
