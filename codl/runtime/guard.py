"""A guard process that ends a command inside a hanging driver, which Python cannot do.

Python handles Ctrl-C between two of its own instructions. A hanging driver may hold the
interpreter's lock, so that no thread of the command can end it. The guard is forked before the
command loads anything, and waits for a signal or a time limit.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import NoReturn

#: Seconds for an interrupted command to end.
END_S = 4.0
#: Signals that interrupt a command; Python writes their numbers to the pipe.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
#: Byte that announces another time limit, which is no signal number; and format of the limit.
CHANGED, SECONDS = b"\xff", struct.Struct("<d")
PR_SET_PDEATHSIG = 1
INTERRUPTED = "Interrupted. A driver or a library did not return, so the command was ended."
OVER = "The time is over. A driver or a library did not return, so the command was ended."

#: The pipe to this process's guard, if any, and the memory with the time limit.
_guards: list[tuple[int, mmap.mmap]] = []
#: Time limits by `monotonic`, one for each active `within`; the earliest applies.
_limits = [inf]


@contextmanager
def guarded() -> Iterator[None]:
    """Kill this process `END_S` seconds after an interrupt inside, unless it has ended.

    Enter it before anything is loaded, as it forks.
    """
    reader, writer = os.pipe()
    limit, command = mmap.mmap(-1, SECONDS.size), os.getpid()
    SECONDS.pack_into(limit, 0, inf)
    guard = os.fork()
    if guard == 0:
        os.close(writer)
        _watch(reader, limit, command)
    os.close(reader)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _guards.append((writer, limit))
    try:
        yield
    finally:
        if os.getpid() == command:
            _guards.remove((writer, limit))
            signal.set_wakeup_fd(before)
            os.close(writer)
            with suppress(OSError):
                os.kill(guard, signal.SIGKILL)
                os.waitpid(guard, 0)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Kill a guarded process that stays inside for `seconds`; has no effect without a guard."""
    due = monotonic() + seconds
    try:
        _limits.append(due)
        _announce()
        yield
    finally:
        _limits.remove(due)
        _announce()


def _announce() -> None:
    for pipe, limit in _guards:
        SECONDS.pack_into(limit, 0, min(_limits))
        with suppress(OSError):
            os.write(pipe, CHANGED)


def _watch(reader: int, limit: mmap.mmap, command: int) -> NoReturn:
    """Act as the guard: end the command after an interrupt or a time limit."""
    try:
        for number in (*INTERRUPTS, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with suppress(OSError, AttributeError):  # otherwise the pipe's end stops the guard
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):  # readers of the command's output wait for its end only
            os.dup2(nothing, stream)
        said = _until_due(reader, limit, command)
        if said and os.getppid() == command:
            os.write(2, f"Error: {said}\n".encode())
            os.kill(command, signal.SIGKILL)
    finally:
        os._exit(0)


def _until_due(reader: int, limit: mmap.mmap, command: int) -> str:
    """Wait until the command must end; returns the reason, or "" if it ended by itself."""
    interrupted = inf
    while os.getppid() == command:
        (due,), said = SECONDS.unpack_from(limit), OVER
        if interrupted < inf:
            due, said = interrupted, INTERRUPTED
        left = due - monotonic()
        if left <= 0:
            return said
        if not select.select([reader], [], [], None if left == inf else left)[0]:
            continue
        content = os.read(reader, 4096)
        if not content:
            return ""
        if interrupted == inf and set(content) & {*INTERRUPTS}:
            interrupted = monotonic() + END_S
    return ""
