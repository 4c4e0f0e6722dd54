"""What single ops take inside a network, many at a time: more than what they take repeated alone.

Predictors know an op that runs again and again. In a network others have run since its weights were
read, its batch may be computed at once, and plans that ran may have shown something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op
from codl.ir.columns import ColumnsByType
from codl.ir.soc import Soc
from codl.ir.types import Processor
from codl.kernels.feature_columns import (
    beyond,
    gpu_cache_bytes,
)
from codl.plan.batches import together_ms
from codl.predict.context_terms import Colds

if TYPE_CHECKING:
    from codl.plan.op_costs import Corrections, LatencyPredictors

#: Of what an op takes longer with nothing in the caches, the part that it does inside a network.
#: From AlexNet, MobileNetV1 and ResNet-50 v2 on one processor of a host, none of which is in the
#: tables (docs/experiments). On the CPU more than all: a net also takes memory for what it makes.
COLD_INSIDE: Mapping[Processor, float] = {"cpu": 1.4, "gpu": 0.6}
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """Ops of one target, by their places among all, and whether their images are all at once."""

    places: list[int]
    together: list[bool]


def inside_ms(
    predictors: LatencyPredictors,
    soc: Soc,
    processor: Processor,
    ops: Sequence[Op],
    asked: Mapping[str, Asked],
    corrections: Corrections | None = None,
) -> dict[str, list[float]]:
    """Milliseconds of the ops that are asked for, by target.

    Everything but the targets themselves is predicted in one go for all of them.
    """
    if not asked:
        return {}
    single = [op.one_image for op in ops]
    sizes = ColumnsByType(single)
    rows = {target: sizes.some(own.places) for target, own in asked.items()}
    warm_ms = np.concatenate([predictors.latency_ms(target, own) for target, own in rows.items()])
    places = np.concatenate([own.places for own in asked.values()])
    together = np.concatenate([own.together for own in asked.values()])
    images = np.array([op.images for op in ops], np.float64)[places]
    at_once = np.where(together, images, 1.0)
    every = [op for own in rows.values() for op in own]
    found = together_ms(predictors, every, warm_ms, at_once, processor) * (images / at_once)
    if f"cold_{processor}" in predictors.targets:
        # Of a batch only the first image finds the weights far away.
        amounts = sizes.amounts[:3]
        items = Colds(every, warm_ms, amounts[:, places])
        more_ms = np.maximum(predictors.latency_ms(f"cold_{processor}", items) - warm_ms, 0.0)
        found += COLD_INSIDE[processor] * more_ms * _far_share(amounts, soc, processor)[places]
    by_target, first = {}, 0
    for target, own in asked.items():
        part = found[first : first + len(own.places)]
        first += len(own.places)
        if corrections is not None:
            part = part * corrections.factors(target, [ops[at] for at in own.places])
        by_target[target] = part.tolist()
    return by_target


def _far_share(amounts: Vector, soc: Soc, processor: Processor) -> Vector:
    """Of what ops read and write, the part that is in no cache of the processor's own.

    That is weights, and tensors that do not fit there: small ones were written just before. Amounts
    are elements of inputs, weights and output, shaped (3, ops).
    """
    cache = soc.cpu.l2_cache_bytes if processor == "cpu" else gpu_cache_bytes(soc)
    inputs, weights, outputs = amounts
    tensors = 4 * (inputs + outputs)
    return np.asarray((4 * weights + beyond(tensors, cache)) / (4 * weights + tensors))
