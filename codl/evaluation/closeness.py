"""Closeness of an output to its reference: cosine, errors, NaN and infinities.

Of classes it says how often a plan and its reference see the same in several samples, and how
often they are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl import files
from codl.errors import InvalidFileError
from codl.ir.types import Element


@dataclass(frozen=True)
class Closeness:
    """An output beside its reference.

    `max_rel_err` is the largest absolute difference over the largest absolute value of the
    reference. Where only one of the two is a finite number, the other counts as 0 in both figures;
    `nan` and `inf` count what is none in the output alone, and `hidden` elements of the reference
    that are none and something else in the output. `overflow` counts elements of the
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
    hidden: int = 0

    @property
    def is_finite(self) -> bool:
        """Whether the output is a number wherever the reference is one."""
        return not (self.nan or self.inf)

    @property
    def has_same_kinds(self) -> bool:
        """Whether NaN and infinities are where those of the reference are."""
        return self.is_finite and not self.hidden


def closeness(
    got: NDArray[Any], expected: NDArray[Any], *, stored: Element = "float32"
) -> Closeness:
    """Compare an output with a reference; `stored` is the output's type.

    An output of more or fewer elements is as wrong as can be. Elements that the reference masks
    (`numpy.ma`) are left out.
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
    """What each element is: 0 a number, 1 and -1 an infinity, 2 NaN."""
    signs = np.where(np.isinf(x), np.sign(x), 0)
    return np.where(np.isnan(x), 2, signs).astype(np.int8)


def _cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Of two vectors; 1 of two that are nothing but zeros. They are scaled: squares overflow."""
    x, y = (value / (np.abs(value).max(initial=0.0) or 1.0) for value in (x, y))
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not lengths:
        return float(x.any() == y.any())
    return float(np.clip(x @ y / lengths, -1.0, 1.0))


def max_rel_err(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """That of `closeness`; infinite where the output is no number and the reference is one."""
    close = closeness(got, expected)
    return close.max_rel_err if close.is_finite else inf


def worst(several: Iterable[Closeness]) -> Closeness:
    """The lowest cosine and the largest error of several, with all that is none counted."""
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
    """Whether outputs are numbers where the reference's are, and as close as they should be."""
    return close.has_same_kinds and close.cosine >= cosine and close.max_rel_err <= limit


#: How many of the largest values count as the classes that an output names.
NAMED = 5
#: Digits of a class's number; Python reads no number of thousands.
MOST_DIGITS = 9


@dataclass(frozen=True)
class Agreement:
    """Shares of samples: those of which the plan's largest value is the reference's (`top1`), or
    the reference's is among the plan's five largest (`top5`); and with labels, how often the
    largest value of either is at the label.
    """

    samples: int
    top1: float
    top5: float
    accuracy: float | None = None
    reference_accuracy: float | None = None


def agreement(
    got: Sequence[NDArray[Any]],
    expected: Sequence[NDArray[Any]],
    labels: Sequence[int] | None = None,
) -> Agreement:
    """Compare one output of every sample, one image each, and with their labels where given."""
    ranked = [np.argsort(-_numbers(output), kind="stable")[:NAMED] for output in got]
    best = [int(np.argmax(_numbers(output))) for output in expected]
    first = [int(classes[0]) for classes in ranked]
    return Agreement(
        samples=len(best),
        top1=_share_equal(best, first),
        top5=sum(label in classes for label, classes in zip(best, ranked, strict=True))
        / max(len(best), 1),
        accuracy=None if labels is None else _share_equal(first, labels),
        reference_accuracy=None if labels is None else _share_equal(best, labels),
    )


def _numbers(output: NDArray[Any]) -> NDArray[np.float64]:
    """The values in a row; what is no number is the smallest."""
    return np.nan_to_num(np.asarray(output, np.float64).ravel(), nan=-np.inf, neginf=-np.inf)


def _share_equal(classes: Sequence[int], others: Sequence[int]) -> float:
    return sum(a == b for a, b in zip(classes, others, strict=True)) / max(len(classes), 1)


def read_labels(path: Path, samples: Sequence[str]) -> list[int]:
    """The class of each of some samples' files, from lines of a file's name and a number.

    Raises `InvalidFileError` with the line that is something else, or the file without one.
    """
    labels: dict[str, int] = {}
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        name, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not (name and label.isdecimal() and len(label) <= MOST_DIGITS):
            reason = f"expected a file's name and the number of its class, got {line!r:.60}."
            raise InvalidFileError(path, reason, where=f"line {number}")
        labels[name.strip()] = int(label)
    for name in samples:
        if name not in labels:
            raise InvalidFileError(path, f"has no label of {name!r}.")
    return [labels[name] for name in samples]
