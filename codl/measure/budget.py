"""Bounded effort: how long something may go on, what is left of that, and what ended it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Literal, TypeAlias, TypeVar

from codl.errors import InterruptedCommandError

#: Called now and then: the number of things done, of all things, and the estimated seconds left.
Progress: TypeAlias = Callable[[int, int, float], None]


def no_progress(done: int, total: int, left_s: float) -> None:
    """Default: no progress output."""


T = TypeVar("T")
#: What a device is doing when a budget ends may take this many more seconds before it is stopped.
GRACE_S = 15.0
#: Why something ended: nothing was left to do, the time was over, or Ctrl-C was pressed.
Ended: TypeAlias = Literal["done", "budget", "interrupted"]


class Budget:
    """A limit of seconds from now, by a clock in seconds; None for no limit.

    A step that has begun is finished, so a budget is kept by not beginning the next one. Callers
    ask `has_time` before each step, iterate over `steps`, or over items that `shared` gives a
    budget each. `ended` says why the iteration ended.
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
        """The limit, None without one."""
        return None if self.limit_s == inf else self.limit_s

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds left: infinite without a limit, 0 when the budget is over."""
        return max(0.0, self.limit_s - self.spent_s)

    def is_over(self) -> bool:
        return self.left_s <= 0

    def has_time(self, *, keep: float = 0.0) -> bool:
        """Whether the next step ends in time, if it takes as long as the longest one so far.

        A step is the time between two calls. `keep` is the part of the budget that is left over for
        later work. The first step always has time.
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
        """Seconds that the rest takes at this pace, at most those that are left."""
        return min(self.spent_s / max(done, 1) * (total - done), self.left_s)

    def steps(
        self, items: Iterable[T], progress: Progress = no_progress, *, total: int | None = None
    ) -> Iterator[T]:
        """Iterate over items while there is time, calling `progress` after each.

        The time to produce an item counts, too. `total` is the number of items of an iterable
        without a length.
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
        """Ctrl-C inside ends the block; `check` raises it later.

        While `kept` is empty it is raised at once.
        """
        try:
            yield
        except KeyboardInterrupt:
            if not len(kept):
                raise
            self.ended = "interrupted"

    def left_out(self, left: int, things: str) -> str:
        """A sentence about what was not done; empty if everything was."""
        if not left:
            return ""
        over = f"the budget of {self.limit_s:g} s is over"
        why = over if self.ended == "budget" else "it was interrupted"
        return f"{left} {things} left: {why}."

    def check(self, kept: str) -> None:
        """Raise `InterruptedCommandError`, naming what is `kept`, if Ctrl-C ended the block."""
        if self.ended == "interrupted":
            raise InterruptedCommandError(kept)
