"""What takes bytes of strangers is fuzzed in one way: an input is taken, or one clear error comes.

The suite takes a few mutations of sound inputs; `scripts/fuzz.py` takes many, guided by coverage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codl.errors import CodlError
from support.mutations import Maker


@dataclass(frozen=True)
class Subject:
    """Something that takes bytes and raises nothing but a `CodlError`."""

    name: str
    #: Sound inputs to begin with, and ways to change them.
    seeds: Sequence[bytes]
    makers: Sequence[Maker]
    take: Callable[[bytes], object]


def fuzz(subject: Subject, count: int, seed: int = 1) -> tuple[int, int]:
    """How many of so many mutated inputs were taken, and how many refused.

    Raises what should not come of an input, which is in a note.
    """
    dice, taken = random.Random(seed), 0
    for content in subject.seeds:
        subject.take(content)
    for _ in range(count):
        content = dice.choice(subject.seeds)
        for _ in range(dice.choice([1, 1, 2, 4])):
            content = dice.choice(subject.makers)(dice, content)
        try:
            taken += is_taken(subject, content)
        except Exception as error:
            error.add_note(f"{content[:2000]!r}")
            raise
    return taken, count - taken


def is_taken(subject: Subject, content: bytes) -> bool:
    """Whether an input is taken and not refused; raises where anything else comes of it."""
    try:
        subject.take(content)
    except CodlError as error:
        _check(error)
        return False
    return True


def _check(error: CodlError) -> None:
    """An error says something that can be read, and is none of memory that was asked for."""
    assert str(error).strip(), "an error has a message"
    assert len(str(error)) < 100_000, "an error can be read"
    cause: BaseException | None = error
    while cause is not None:
        is_memory = isinstance(cause, MemoryError) or "bad_alloc" in str(cause)
        assert not is_memory, f"more memory was asked for than any input may take: {cause}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
