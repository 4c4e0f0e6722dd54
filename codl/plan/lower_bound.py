"""What any plan must still take from a point on: what cannot become the best is left out by it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from codl.plan.candidates import Segments
from codl.plan.pipeline_model import Pair

#: Weights of the CPU's clock that are tried.
SHARES = tuple(i / 20 for i in range(1, 20))


@dataclass(frozen=True)
class Bound:
    """What any plan must still take from a point on.

    The later of two clocks is never before a weighted mean of both, and every chain adds to that
    mean at least what its shards and its launches take, data sharing left out.
    """

    share: float
    left_ms: tuple[float, ...]

    @classmethod
    def of(cls, segments: Segments) -> Bound:
        """With the weight that makes the bound tightest."""
        shares = np.array(SHARES)
        left = np.full((len(segments.starting) + 1, len(shares)), inf)
        left[-1] = 0.0
        for at in reversed(range(len(segments.starting))):
            own = segments.starting[at]
            if own:
                cpu, gpu = np.array([segment.work_ms for segment in own]).T
                means = np.outer(cpu, shares) + np.outer(gpu, 1 - shares)
                left[at] = (means + left[[segment.stop for segment in own]]).min(axis=0)
        best = int(np.argmax(left[0]))
        return cls(SHARES[best], tuple(left[:, best].tolist()))

    def least_ms(self, clocks: Pair, at: int) -> float:
        """The least that a plan ends at which is at layer `at` now."""
        return self.share * clocks[0] + (1 - self.share) * clocks[1] + self.left_ms[at]
