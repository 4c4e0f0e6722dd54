"""A process beside a command that ends it where Python cannot: inside a driver that hangs.

Python acts on Ctrl-C between two of its own instructions. A driver that does not return leaves
none, and may hold the interpreter's lock, so that no thread of the command can end it either. The
guard is forked before the command loads anything, and waits: for a signal, or for a time limit.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NoReturn

#: So long a command may take to end once it was interrupted, in seconds.
END_S = 4.0
#: The signals that interrupt a command. Python writes the number of each that comes to the pipe.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
#: The byte in front of a time limit, which is no signal's number, and the limit's format.
LIMIT, SECONDS = 255, struct.Struct("<d")
PR_SET_PDEATHSIG = 1
INTERRUPTED = "Interrupted. A driver or a library did not return, so the command was ended."
OVER = "The time is over. A driver or a library did not return, so the command was ended."

#: The pipe to the guard of this process; none where there is no guard.
_pipes: list[int] = []
#: When this process ends, by `monotonic`, of each `within` that was entered; the first counts.
_due = [float("inf")]


@contextmanager
def guarded() -> Iterator[None]:
    """Inside, a signal of `INTERRUPTS` ends this process after `END_S`; forks, so enter it first.

    It is ended by SIGKILL where it has not ended by itself.
    """
    reader, writer = os.pipe()
    command = os.getpid()
    guard = os.fork()
    if guard == 0:
        os.close(writer)
        _watch(reader, command)
    os.close(reader)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _pipes.append(writer)
    try:
        yield
    finally:
        if os.getpid() == command:
            _pipes.remove(writer)
            signal.set_wakeup_fd(before)
            os.close(writer)
            with suppress(OSError):
                os.kill(guard, signal.SIGKILL)
                os.waitpid(guard, 0)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Inside, a guarded process is ended after `seconds`; an unguarded one is not."""
    due = monotonic() + seconds
    try:
        _due.append(due)
        _tell(min(_due))
        yield
    finally:
        _due.remove(due)
        _tell(min(_due))


def _tell(due: float) -> None:
    for pipe in _pipes:
        with suppress(OSError):
            os.write(pipe, bytes([LIMIT]) + SECONDS.pack(due))


def _watch(reader: int, command: int) -> NoReturn:
    """Be the guard: end the command once it was interrupted, or its time is over."""
    try:
        for number in (*INTERRUPTS, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with suppress(OSError, AttributeError):  # where the guard cannot end with it, the pipe does
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):  # whoever reads the command's output waits for its end alone
            os.dup2(nothing, stream)
        said = _until_due(reader, command)
        if said and os.getppid() == command:
            os.write(2, f"Error: {said}\n".encode())
            os.kill(command, signal.SIGKILL)
    finally:
        os._exit(0)


def _until_due(reader: int, command: int) -> str:
    """Wait until the command must end, and say why; empty where it has ended by itself."""
    due, said, content = float("inf"), "", b""
    while os.getppid() == command:
        left = due - monotonic()
        if left <= 0:
            return said
        if not select.select([reader], [], [], None if left == float("inf") else left)[0]:
            continue
        more = os.read(reader, 4096)
        if not more:
            return ""
        content += more
        while content and (content[0] != LIMIT or len(content) > SECONDS.size):
            if content[0] == LIMIT:
                if said != INTERRUPTED:
                    (due,), said = SECONDS.unpack(content[1 : 1 + SECONDS.size]), OVER
                content = content[1 + SECONDS.size :]
                continue
            if content[0] in INTERRUPTS and said != INTERRUPTED:
                due, said = monotonic() + END_S, INTERRUPTED
            content = content[1:]
    return ""
