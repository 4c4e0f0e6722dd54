"""Time budgets of commands: limit, remaining time, and the reason of the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Literal, TypeAlias, TypeVar

from codl.errors import InterruptedCommandError

#: Progress callback: number of finished items, of all items, and estimated seconds left.
Progress: TypeAlias = Callable[[int, int, float], None]


def no_progress(done: int, total: int, left_s: float) -> None:
    """Default: no progress output."""


T = TypeVar("T")
#: Seconds after a budget's end until a device's request is stopped.
GRACE_S = 15.0
#: Reason of an end: all work done, the time over, or Ctrl-C.
Ended: TypeAlias = Literal["done", "budget", "interrupted"]


class Budget:
    """A limit of seconds from now, by a clock in seconds; None for no limit.

    Running steps are finished; a budget only prevents the next step. Callers ask `has_time` before
    each step, or iterate over `steps`, or over `shared`, which gives each item a budget. `ended`
    is the reason of the iteration's end.
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
        """The limit in seconds; None for no limit."""
        return None if self.limit_s == inf else self.limit_s

    @property
    def spent_s(self) -> float:
        """Seconds since the budget began."""
        return self._clock() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds left: infinite without a limit, 0 when the budget is over."""
        return max(0.0, self.limit_s - self.spent_s)

    def is_over(self) -> bool:
        return self.left_s <= 0

    def has_time(self, *, keep: float = 0.0) -> bool:
        """Whether the next step ends in time, if it takes as long as the longest so far.

        A step is the time between two calls. `keep` is the share of the budget reserved for later
        work. The first step always has time.
        """
        now = self._clock()
        self._longest_s = max(self._longest_s, now - self._asked)
        is_first, self._asked, self._is_first = self._is_first, now, False
        if is_first or self.limit_s == inf:
            return True
        return self._longest_s <= max(0.0, self.left_s - keep * self.limit_s)

    def skip(self, seconds: float) -> None:
        """Count `seconds` as passed, such as a replay's recorded time."""
        self._begin -= seconds

    def share(self, parts: int = 1) -> Budget:
        """A budget of the remaining time over `parts`, starting now."""
        return Budget(self.left_s / parts, self._clock)

    def to_go_s(self, done: int, total: int) -> float:
        """Estimated seconds of the remaining items at this pace, at most the time left."""
        return min(self.spent_s / max(done, 1) * (total - done), self.left_s)

    def steps(
        self, items: Iterable[T], progress: Progress = no_progress, *, total: int | None = None
    ) -> Iterator[T]:
        """Iterate over items while there is time, calling `progress` after each.

        The time to produce an item counts. `total` is the number of items of an unsized iterable.
        """
        count, coming = len(items) if isinstance(items, Sized) else total or 0, iter(items)
        self._asked = self._clock()
        for done in range(1, count + 1):
            if self.is_over() or not self.has_time():
                self.ended = "budget"
                return
            yield next(coming)
            progress(done, count, self.to_go_s(done, count))

    def shared(self, items: Sequence[T]) -> Iterator[tuple[T, Budget]]:
        """Iterate over items while there is time, each with an equal share of the time left."""
        for done, item in enumerate(items):
            if self.is_over():
                self.ended = "budget"
                return
            yield item, self.share(len(items) - done)

    @contextmanager
    def keeping(self, kept: Sized) -> Iterator[None]:
        """A block that Ctrl-C ends quietly, for `check` to raise later, unless `kept` is empty."""
        try:
            yield
        except KeyboardInterrupt:
            if not len(kept):
                raise
            self.ended = "interrupted"

    def left_out(self, left: int, things: str) -> str:
        """A sentence about `left` undone `things` and the reason; empty if none is left."""
        if not left:
            return ""
        over = f"the budget of {self.limit_s:g} s is over"
        why = over if self.ended == "budget" else "it was interrupted"
        return f"{left} {things} left: {why}."

    def check(self, kept: str) -> None:
        """Raise `InterruptedCommandError` with the sentence `kept` if Ctrl-C ended the block."""
        if self.ended == "interrupted":
            raise InterruptedCommandError(kept)
