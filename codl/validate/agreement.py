"""Classes that a plan and its reference see in several samples, and how often they are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl import files
from codl.errors import InvalidFileError

#: So many of the largest values count as the classes that an output names.
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
    ranked = [np.argsort(-_numbers(one), kind="stable")[:NAMED] for one in got]
    best = [int(np.argmax(_numbers(one))) for one in expected]
    first = [int(own[0]) for own in ranked]
    return Agreement(
        samples=len(best),
        top1=_share([one == own for one, own in zip(best, first, strict=True)]),
        top5=_share([one in own for one, own in zip(best, ranked, strict=True)]),
        accuracy=None if labels is None else _share(_same(first, labels)),
        reference_accuracy=None if labels is None else _share(_same(best, labels)),
    )


def _numbers(output: NDArray[Any]) -> NDArray[np.float64]:
    """The values in a row; what is no number is the smallest."""
    return np.nan_to_num(np.asarray(output, np.float64).ravel(), nan=-np.inf, neginf=-np.inf)


def _same(classes: Sequence[int], labels: Sequence[int]) -> list[bool]:
    return [one == label for one, label in zip(classes, labels, strict=True)]


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / max(len(hits), 1)


def read_labels(path: Path, samples: Sequence[str]) -> list[int]:
    """The class of each of some samples' files, from lines of a file's name and a number.

    Raises `InvalidFileError` with the line that is something else, or the file without one.
    """
    known: dict[str, int] = {}
    for number, line in enumerate(files.read_text(path).splitlines(), start=1):
        name, _, label = line.strip().rpartition(" ")
        if line.strip() and not (name and label.isdecimal() and len(label) <= MOST_DIGITS):
            reason = f"expected a file's name and the number of its class, got {line!r:.60}."
            raise InvalidFileError(path, reason, where=f"line {number}")
        if line.strip():
            known[name.strip()] = int(label)
    return [_label(name, known, path) for name in samples]


def _label(name: str, known: Mapping[str, int], path: Path) -> int:
    if name not in known:
        raise InvalidFileError(path, f"has no label of {name!r}.")
    return known[name]
