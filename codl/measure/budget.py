"""Bounded effort: how long something may go on, what is left of that, and what ended it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Literal, TypeAlias, TypeVar

from codl.errors import InterruptedCommandError

#: Called now and then: things that are done, things in all, seconds left as far as can be told.
Progress: TypeAlias = Callable[[int, int, float], None]


def no_progress(done: int, total: int, left_s: float) -> None:
    """Default: no progress output."""


T = TypeVar("T")
#: What a device is at when a budget is over may take so many seconds more, and is then ended.
GRACE_S = 15.0
#: Why something ended: nothing was left to do, the time was over, or somebody pressed Ctrl-C.
Ended: TypeAlias = Literal["done", "budget", "interrupted"]


class Budget:
    """A limit of seconds from now, by a clock in seconds; None for as many as it takes.

    What has begun is finished, so a budget is kept by not beginning: whoever works in steps asks
    before each whether `has_time`, or works through `steps`; or through items among which it is
    `shared`, where each keeps a budget itself. `ended` says why that ended.
    """

    def __init__(
        self, seconds: float | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.limit_s, self._clock = inf if seconds is None else seconds, clock
        self.ended: Ended = "done"
        self._begin = self._asked = clock()
        self._longest_s, self._is_first = 0.0, True

    @property
    def seconds(self) -> float | None:
        """For whoever takes it as an option: None where there is no end."""
        return None if self.limit_s == inf else self.limit_s

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begin

    @property
    def left_s(self) -> float:
        """Infinite where there is no end, and 0 where it is over."""
        return max(0.0, self.limit_s - self.spent_s)

    def is_over(self) -> bool:
        return self.left_s <= 0

    def has_time(self, *, keep: float = 0.0) -> bool:
        """Whether the next step ends in time, if it takes as long as the longest one so far.

        A step is what happens between two calls, and `keep` the part of the whole that is kept for
        what comes behind the last. The first step is done in any case.
        """
        now = self._clock()
        self._longest_s = max(self._longest_s, now - self._asked)
        is_first, self._asked, self._is_first = self._is_first, now, False
        if is_first or self.limit_s == inf:
            return True
        return self._longest_s <= max(0.0, self.left_s - keep * self.limit_s)

    def skip(self, seconds: float) -> None:
        """Count `seconds` as if they had passed, as a replay does with recorded ones."""
        self._begin -= seconds

    def share(self, parts: int = 1) -> Budget:
        """One of `parts` equal parts of what is left, from now on."""
        return Budget(self.left_s / parts, self._clock)

    def to_go_s(self, done: int, total: int) -> float:
        """As long as the rest takes at this pace, but not longer than what is left."""
        return min(self.spent_s / max(done, 1) * (total - done), self.left_s)

    def steps(
        self, items: Iterable[T], progress: Progress = no_progress, *, total: int | None = None
    ) -> Iterator[T]:
        """One item after the other while there is time; `progress` hears of each that is done.

        The time until an item comes counts, too; what was done before is no step. `total` is how
        many there are of what has no length.
        """
        count, coming = len(items) if isinstance(items, Sized) else total or 0, iter(items)
        self._asked = self._clock()
        for done in range(1, count + 1):
            if self.is_over() or not self.has_time():
                self.ended = "budget"
                return
            yield next(coming)
            progress(done, count, self.to_go_s(done, count))

    def shared(
        self, items: Sequence[T], progress: Progress = no_progress
    ) -> Iterator[tuple[T, Budget]]:
        """One item after the other until the time is over, each with its share of what is left."""
        for done, item in enumerate(items):
            if self.is_over():
                self.ended = "budget"
                return
            yield item, self.share(len(items) - done)
            progress(done + 1, len(items), self.to_go_s(done + 1, len(items)))

    @contextmanager
    def keeping(self, kept: Sized) -> Iterator[None]:
        """Ctrl-C ends what is done inside, and is kept for `check` where there is something kept.

        Where there is nothing yet it is raised.
        """
        try:
            yield
        except KeyboardInterrupt:
            if not len(kept):
                raise
            self.ended = "interrupted"

    def left_out(self, left: int, things: str) -> str:
        """A sentence for people about what was not done; empty where all was."""
        if not left:
            return ""
        over = f"the budget of {self.limit_s:g} s is over"
        why = over if self.ended == "budget" else "it was interrupted"
        return f"{left} {things} left: {why}."

    def check(self, kept: str) -> None:
        """Raise `InterruptedCommandError` with what is kept, where Ctrl-C ended it."""
        if self.ended == "interrupted":
            raise InterruptedCommandError(kept)
