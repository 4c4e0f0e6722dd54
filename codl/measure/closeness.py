"""Closeness of an output to its reference, and the errors that are rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.types import Element


@dataclass(frozen=True)
class Closeness:
    """An output compared with its reference.

    `max_rel_err` is the largest absolute difference over the largest absolute value of the
    reference. If only one of two elements is finite, the other counts as 0 in `cosine` and
    `max_rel_err`. `nan` and `inf` count elements that are non-finite in the output alone. `hidden`
    counts non-finite elements of the reference that differ in kind in the output. `overflow` counts
    reference elements too large for the output's type. `largest` and `largest_expected` are the
    largest finite magnitudes.
    """

    cosine: float
    max_rel_err: float
    nan: int = 0
    inf: int = 0
    overflow: int = 0
    largest: float = 0.0
    largest_expected: float = 0.0
    hidden: int = 0

    @property
    def is_finite(self) -> bool:
        """True where the output is finite wherever the reference is."""
        return not (self.nan or self.inf)

    @property
    def has_same_kinds(self) -> bool:
        """True where NaN and infinities are in the same places as in the reference."""
        return self.is_finite and not self.hidden


def closeness(
    got: NDArray[Any], expected: NDArray[Any], *, stored: Element = "float32"
) -> Closeness:
    """Compare an output with a reference; `stored` is the output's element type.

    Outputs of different sizes have cosine 0 and an infinite error. Masked elements of the reference
    (`numpy.ma`) are ignored.
    """
    if np.size(got) != np.size(expected):
        return Closeness(cosine=0.0, max_rel_err=inf)
    x, y = (np.asarray(value, np.float64).ravel() for value in (got, expected))
    if isinstance(expected, np.ma.MaskedArray):
        known = ~np.ma.getmaskarray(expected).ravel()
        x, y = x[known], y[known]
    x_finite, y_finite = np.isfinite(x), np.isfinite(y)
    lost, hidden = y_finite & ~x_finite, ~y_finite & (kinds(x) != kinds(y))
    nan, overflow = int(np.count_nonzero(np.isnan(x[lost]))), np.finfo(stored).max
    x, y = np.where(x_finite, x, 0.0), np.where(y_finite, y, 0.0)
    largest_expected = float(np.abs(y).max(initial=0.0))
    difference = float(np.abs(x - y).max(initial=0.0))
    return Closeness(
        cosine=_cosine(x, y),
        max_rel_err=difference / (largest_expected or 1.0),
        nan=nan,
        inf=int(np.count_nonzero(lost)) - nan,
        overflow=int(np.count_nonzero(np.abs(y) > overflow)),
        largest=float(np.abs(x).max(initial=0.0)),
        largest_expected=largest_expected,
        hidden=int(np.count_nonzero(hidden)),
    )


def kinds(x: NDArray[Any]) -> NDArray[np.int8]:
    """The kind of each element: 0 finite, 1 and -1 an infinity, 2 NaN."""
    signs = np.where(np.isinf(x), np.sign(x), 0)
    return np.where(np.isnan(x), 2, signs).astype(np.int8)


def _cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Cosine of two vectors, scaled against overflow; 1 if both are all zeros."""
    x, y = (value / (np.abs(value).max(initial=0.0) or 1.0) for value in (x, y))
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not lengths:
        return float(x.any() == y.any())
    return float(np.clip(x @ y / lengths, -1.0, 1.0))


def max_rel_err(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """`max_rel_err` of `closeness`; infinite where only the output is non-finite."""
    close = closeness(got, expected)
    return close.max_rel_err if close.is_finite else inf


def worst(several: Iterable[Closeness]) -> Closeness:
    """The lowest cosine and the largest error of several, with summed counts."""
    every = list(several)
    return Closeness(
        cosine=min((close.cosine for close in every), default=1.0),
        max_rel_err=max((close.max_rel_err for close in every), default=0.0),
        nan=sum(close.nan for close in every),
        inf=sum(close.inf for close in every),
        overflow=sum(close.overflow for close in every),
        largest=max((close.largest for close in every), default=0.0),
        largest_expected=max((close.largest_expected for close in every), default=0.0),
        hidden=sum(close.hidden for close in every),
    )


def is_right(close: Closeness, cosine: float, limit: float = inf) -> bool:
    """True where NaN and infinities match and cosine and error are within the limits."""
    return close.has_same_kinds and close.cosine >= cosine and close.max_rel_err <= limit


#: Outputs of classifiers are compared by this many largest values.
LARGEST = 5


@dataclass(frozen=True)
class Agreement:
    """Fractions of samples where the largest value of a plan is the reference's.

    `top5`: the reference's largest is among the plan's five largest.
    """

    samples: int
    top1: float
    top5: float


def agreement(got: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> Agreement:
    """Agreement of one output over at least one sample."""
    ranked = [np.argsort(-_numbers(output), kind="stable")[:LARGEST] for output in got]
    best = [int(np.argmax(_numbers(output))) for output in expected]
    pairs = list(zip(best, ranked, strict=True))
    top1, top5 = (sum(one in r[:n] for one, r in pairs) / len(pairs) for n in (1, LARGEST))
    return Agreement(len(pairs), top1, top5)


def _numbers(output: NDArray[Any]) -> NDArray[np.float64]:
    """The values in one row; NaN becomes the smallest value."""
    return np.nan_to_num(np.asarray(output, np.float64).ravel(), nan=-np.inf, neginf=-np.inf)


#: Largest error of kernel variants that store float16, of Winograd variants, and of all others.
OF_HALVES, OF_WINOGRAD, OF_OTHERS = 2e-2, 1e-3, 1e-4
#: Least denominator of a kernel's error.
SMALL = 1e-3


def tolerance(variant: Any) -> float:
    """The allowed `difference` of a kernel variant's output from the reference."""
    if variant.processor == "gpu" and variant.storage.element == "float16":
        return OF_HALVES
    return OF_WINOGRAD if "winograd" in variant.name else OF_OTHERS


def difference(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference over the largest expected value, or over `SMALL`.

    Infinite where NaN and infinities are not in the same places.
    """
    close = closeness(got, expected)
    if not close.has_same_kinds:
        return inf
    return close.max_rel_err * (close.largest_expected or 1.0) / max(close.largest_expected, SMALL)
