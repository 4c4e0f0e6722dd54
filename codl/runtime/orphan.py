"""Ends a process whose input is gone even while it works: nobody waits for what it does any more.

A request that hangs never comes back to its input. Without this a device whose cable was pulled
would be busy for ever, and in the way of the agent that is started next.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

#: So long may what is under way last when the input is gone, and then its end.
GRACE_S = 5.0
#: The other side has closed its end; a pipe's hang-up is always told. Not every system has this.
CLOSED = getattr(select, "POLLRDHUP", 0)


@contextmanager
def ending_with(descriptor: int) -> Iterator[None]:
    """Inside, this process ends soon after the input `descriptor` has: by SIGTERM, then by force.

    What is still to be read does not count: without the other side nobody would take the answer.
    """
    is_over = Event()
    wake, waker = os.pipe()
    watcher = Thread(target=_watch, args=(descriptor, wake, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        os.close(waker)
        watcher.join()
        os.close(wake)


def _watch(descriptor: int, wake: int, is_over: Event) -> None:
    waiting = select.poll()
    waiting.register(descriptor, CLOSED)
    waiting.register(wake, 0)  # closed when there is nothing more to watch
    waiting.poll()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_over.wait(GRACE_S):
            return
        os.kill(os.getpid(), number)
