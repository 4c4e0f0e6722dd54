"""What measured plans say about predictions: by how much ops take longer, or less, than predicted.

A predictor learns from ops that run by themselves; a plan that has run shows what they take inside
its network. The ratio of the two goes to the same op, and the more alike another op of the same
target is, the more of it that op gets too: other ratios of the same layer above all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op

#: How far a ratio reaches, in doublings of an op's amounts: at this distance it counts 0.6.
REACH = 0.7
#: What says that a prediction was right weighs as much as so many samples of the very op.
DOUBT = 0.2


@dataclass(frozen=True)
class Sample:
    """An op of a target, and how many times longer it took in a network than predicted."""

    target: str
    op: Op
    ratio: float


class Corrections:
    """Factors for predicted latencies, from samples: a kernel-weighted mean of their logarithms."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        by_target: dict[str, list[Sample]] = {}
        for sample in samples:
            by_target.setdefault(sample.target, []).append(sample)
        self._known = {
            target: (_amounts([s.op for s in own]), np.log([s.ratio for s in own]))
            for target, own in by_target.items()
        }

    def factors(self, target: str, ops: Sequence[Op]) -> NDArray[np.float64]:
        """What to multiply predictions with, shaped (ops); 1 far from every sample."""
        if target not in self._known or not ops:
            return np.ones(len(ops))
        amounts, logs = self._known[target]
        apart = _amounts(ops)[:, None, :] - amounts[None, :, :]
        weights = np.exp(-0.5 * (apart**2).sum(axis=2) / REACH**2)
        found: NDArray[np.float64] = np.exp(weights @ logs / (weights.sum(axis=1) + DOUBT))
        return found


def _amounts(ops: Sequence[Op]) -> NDArray[np.float64]:
    """What an op computes, reads, keeps and writes, in doublings, shaped (ops, 4)."""
    found = [
        (op.flops, sum(shape.bytes for shape in op.inputs), op.bytes, op.output.bytes) for op in ops
    ]
    return np.log2(1.0 + np.array(found, np.float64).reshape(-1, 4))
