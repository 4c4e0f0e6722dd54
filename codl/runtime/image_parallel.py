"""Images side by side: lanes of the CPU's threads, each with an image of a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import TypeVar

from codl.runtime import threads
from codl.runtime.placement import LocalSoc

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Lanes:
    """So many lanes on these cores, with so many `threads` each.

    Most layers share a core's time better with another image than with another thread: these wait
    for each other after every layer. One image has all the threads in one lane.
    """

    cores: tuple[int, ...]
    count: int
    threads: int

    @classmethod
    def of(cls, soc: LocalSoc, images: int) -> Lanes:
        """As many lanes as there are images, as long as each has a thread."""
        own = soc.placement
        count = max(1, min(images, own.threads))
        return cls(own.cpu_cores, count, own.threads // count)

    def narrow(self, most: int) -> Lanes:
        """So many of these lanes at most."""
        return replace(self, count=min(self.count, most))

    def each(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """`work` of every item, in order; the calling thread is the first lane.

        Whoever is done with an item takes the next.
        """
        count = min(self.count, len(items))
        if count < 2:
            return [work(item) for item in items]
        left, lock, made = iter(range(len(items))), Lock(), dict[int, Made]()

        def lane() -> None:
            while True:
                with lock:
                    index = next(left, None)
                if index is None:
                    return
                made[index] = work(items[index])

        others = [_pool(self.cores).submit(lane) for _ in range(count - 1)]
        try:
            lane()
        finally:  # nobody works on the same arrays when this returns, not even after an error
            # Whoever has not begun yet would find nothing left.
            errors = [other.exception() for other in others if not other.cancel()]
        for error in filter(None, errors):
            raise error
        return [made[index] for index in range(len(items))]


@cache
def _pool(cores: tuple[int, ...]) -> ThreadPoolExecutor:
    """Threads that stay on these cores, made as they are first needed."""
    most = max(1, len(cores) - 1)
    return ThreadPoolExecutor(most, "lane", threads.pin, ([0], cores))
