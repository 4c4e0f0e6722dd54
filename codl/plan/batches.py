"""What several images of an op take at once, from what one image takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op
from codl.ir.types import Processor
from codl.predict.context_terms import Batch

if TYPE_CHECKING:
    from codl.plan.op_costs import LatencyPredictors


def together_ms(
    predictors: LatencyPredictors,
    single: Sequence[Op],
    single_ms: NDArray[np.float64],
    images: NDArray[np.float64],
    processor: Processor,
) -> NDArray[np.float64]:
    """Milliseconds of so many images of ops, of which one image takes `single_ms`; shaped (ops).

    As many times as long where no batches were measured; never more, and not less than one.
    """
    found = np.asarray(images * single_ms, np.float64)
    target, many = f"batch_{processor}", np.flatnonzero(images > 1)
    if many.size and target in predictors.targets:
        items = [Batch(single[at], float(single_ms[at]), int(images[at])) for at in many.tolist()]
        together = predictors.latency_ms(target, items)
        found[many] = np.clip(together, single_ms[many], found[many])
    return found
