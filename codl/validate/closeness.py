"""How close an output is to its reference, and what of it is no number at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.types import Element


@dataclass(frozen=True)
class Closeness:
    """An output beside its reference.

    `max_rel_err` is the largest absolute difference over the largest absolute value of the
    reference. Where only one of the two is a finite number, the other counts as 0 in both figures;
    `nan` and `inf` count what is none in the output alone. `overflow` counts elements of the
    reference that are too large for the type in which the output is stored. `largest` and
    `largest_expected` are the largest finite magnitudes of output and reference.
    """

    cosine: float
    max_rel_err: float
    nan: int = 0
    inf: int = 0
    overflow: int = 0
    largest: float = 0.0
    largest_expected: float = 0.0

    @property
    def is_finite(self) -> bool:
        """Whether the output is a number wherever the reference is one."""
        return not (self.nan or self.inf)


def closeness(
    got: NDArray[Any], expected: NDArray[Any], *, stored: Element = "float32"
) -> Closeness:
    """Compare an output with a reference of as many elements; `stored` is the output's type."""
    x, y = (np.asarray(value, np.float64).ravel() for value in (got, expected))
    numbers, known = np.isfinite(x), np.isfinite(y)
    lost = known & ~numbers
    magnitudes = np.abs(y[known])
    x, y = np.where(numbers, x, 0.0), np.where(known, y, 0.0)
    largest_expected = float(magnitudes.max(initial=0.0))
    difference = float(np.abs(x - y).max(initial=0.0))
    return Closeness(
        cosine=_cosine(x, y),
        max_rel_err=difference / (largest_expected or 1.0),
        nan=int(np.count_nonzero(lost & np.isnan(np.ravel(got)))),
        inf=int(np.count_nonzero(lost & np.isinf(np.ravel(got)))),
        overflow=int(np.count_nonzero(magnitudes > np.finfo(stored).max)),
        largest=float(np.abs(x).max(initial=0.0)),
        largest_expected=largest_expected,
    )


def _cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Of two vectors; 1 of two that are nothing but zeros. They are scaled: squares overflow."""
    x, y = (value / (np.abs(value).max(initial=0.0) or 1.0) for value in (x, y))
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not lengths:
        return float(x.any() == y.any())
    return float(np.clip(x @ y / lengths, -1.0, 1.0))


def worst(several: Iterable[Closeness]) -> Closeness:
    """The lowest cosine and the largest error of several, with all that is none counted."""
    all_of = list(several)
    return Closeness(
        cosine=min((one.cosine for one in all_of), default=1.0),
        max_rel_err=max((one.max_rel_err for one in all_of), default=0.0),
        nan=sum(one.nan for one in all_of),
        inf=sum(one.inf for one in all_of),
        overflow=sum(one.overflow for one in all_of),
        largest=max((one.largest for one in all_of), default=0.0),
        largest_expected=max((one.largest_expected for one in all_of), default=0.0),
    )


def is_right(found: Closeness, cosine: float, limit: float = inf) -> bool:
    """Whether outputs are numbers wherever the reference's are, and as close as they should be."""
    return found.is_finite and found.cosine >= cosine and found.max_rel_err <= limit
