"""Reporters of progress, which functions that take long are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from codl.errors import CodlWarning
from codl.measure.budget import Progress, no_progress


class Reporter:
    """Keeps progress to itself, and makes a `CodlWarning` of a warning; a subclass shows both."""

    def note(self, text: str) -> None:
        """A line about what was done."""

    def stage(self, text: str, expected_s: float | None = None) -> None:
        """A line about what is done from now on, and how long it takes where that is known."""

    def warn(self, text: str) -> None:
        """Something that went wrong and does not end the function."""
        warnings.warn(text, CodlWarning, stacklevel=3)

    @contextmanager
    def progress(self, label: str, below: Callable[[], Any] | None = None) -> Iterator[Progress]:
        """Yields what is told of steps done, steps in all, and seconds left.

        `below` returns what there is to show beside, whenever it is shown anew.
        """
        yield no_progress


SILENT = Reporter()
