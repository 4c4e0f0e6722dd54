"""Messages of `codl doctor`: what a machine has, whether it holds its pace, kernels that are right.

What takes an agent down is the finding: nothing else is asked of it at the same time.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from codl.runtime.examination import Examination
from codl.targets.message_base import Reply, Request


class Examined(Reply, frozen=True):
    examination: Examination


class Examine(Request, frozen=True):
    """What the machine has for codl; nothing is imported or opened."""

    reply: ClassVar[type[Reply]] = Examined


class Imported(Reply, frozen=True):
    seconds: float


class Import(Request, frozen=True):
    """Import a package of codl's base or extras, to see whether it works there."""

    package: str
    reply: ClassVar[type[Reply]] = Imported
    limit_s: ClassVar[float] = 120.0


class Paced(Reply, frozen=True):
    samples_s: tuple[float, ...]


class MeasurePace(Request, frozen=True):
    """Do the same work over and over for so many seconds, and time every round."""

    seconds: float
    reply: ClassVar[type[Reply]] = Paced


class CheckRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `CheckTask`: an op's text and the name of a variant."""

    op: str
    variant: str


class Checking(Reply, frozen=True):
    """An event of `CheckKernels`: the task of this index begins."""

    index: int


class KernelChecked(Reply, frozen=True):
    """An event of `CheckKernels`: the task of this index is done; no problem is ""."""

    index: int
    problem: str


class ChecksEnded(Reply, frozen=True):
    left: int


class CheckKernels(Request, frozen=True):
    """Check kernel variants against the NumPy interpreter."""

    tasks: tuple[CheckRecord, ...]
    budget_s: float | None
    reply: ClassVar[type[Reply]] = ChecksEnded
    limit_s: ClassVar[float] = 120.0
