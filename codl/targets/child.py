"""A child process that exchanges frames over its standard input and output.

Its standard error goes to the log `codl.agent`. Every wait has a limit, after which a hanging child
is killed. A child ends with its input, even during work: its answer has no reader, and it would
block the device for the next child.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll
from threading import Event, Thread
from time import monotonic
from typing import IO, BinaryIO

from codl.errors import DeviceError
from codl.machine import threads
from codl.registry import VARIABLE, listed

LOG = logging.getLogger("codl.agent")
#: Seconds for an idle child to end after its input.
END_S = 3.0
#: Seconds for a working child to end after SIGTERM.
TERM_S = 1.0


class TimedOutError(DeviceError):
    """A child did not read or write in time."""


class Pipe:
    """A pipe to or from a child; reads and writes raise `TimedOutError` after `deadline`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._descriptor = file, file.fileno()
        os.set_blocking(self._descriptor, False)
        self.deadline = float("inf")

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; empty at the end of the stream."""
        while True:
            try:
                return os.read(self._descriptor, size)
            except BlockingIOError:
                self._wait(POLLIN)

    def write(self, data: bytes | memoryview, /) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                self._wait(POLLOUT)

    def flush(self) -> None:
        """Do nothing: pipes are unbuffered."""

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()

    def _wait(self, event: int) -> None:
        left = self.deadline - monotonic()
        waiting = poll()
        waiting.register(self._descriptor, event | POLLHUP | POLLERR)
        limit_ms = None if left == float("inf") else max(0.0, 1e3 * left)
        if not waiting.poll(limit_ms):
            raise TimedOutError("no answer in time")


class Child:
    """A running process with pipes to its input and from its output.

    It starts on `cores`, by default the cores that this process was started on.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cores: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with threads.pinned(cores or threads.INITIAL_CORES):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(inherited() if environment is None else environment),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.input, self.output = Pipe(self._process.stdin), Pipe(self._process.stdout)
        self._lines: deque[str] = deque(maxlen=20)
        self._log = Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._log.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def limit(self, seconds: float) -> None:
        """Set the deadline of reads and writes to `seconds` from now."""
        self.input.deadline = self.output.deadline = monotonic() + seconds

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """End a working child by SIGTERM, and then by force."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TERM_S)
        self._process.kill()
        self.close()

    def close(self) -> int:
        """Close its input, which ends it; returns its exit code, or minus the ending signal."""
        self.input.close()
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.output.close()
        self._log.join(END_S)
        return code

    def ending(self, keys: Iterable[str] = ()) -> str:
        """How the child ended, with its first line with a key, or its last; ends it if needed."""
        code = self.close()
        last = f": {telling(self._lines, keys).rstrip('.')}" if self._lines else ""
        return f"crashed (signal {-code}){last}" if code < 0 else f"ended with code {code}{last}"

    def _pass_on(self, errors: IO[bytes]) -> None:
        with errors:
            for line in errors:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._lines.append(text)
                    LOG.info("%s", text)


def telling(lines: Sequence[str], keys: Iterable[str]) -> str:
    """The first line that contains a key, else the last one."""
    keys = tuple(keys)
    return next((line for line in lines if any(key in line for key in keys)), lines[-1])


def first_line(error: Exception) -> str:
    """The first line of an error; libraries write many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def inherited() -> dict[str, str]:
    """This process's environment, with its loaded plugins."""
    folders = os.pathsep.join(map(str, listed()))
    return {**os.environ, **({VARIABLE: folders} if folders else {})}


def own_streams() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output of a child, reserved for frames; other code gets replacements."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return reader, writer


#: Seconds from the end of the input to SIGTERM, and from SIGTERM to SIGKILL.
GRACE_S = 5.0
#: Poll event for an input closed by the other side, if the system supports it.
CLOSED = getattr(select, "POLLRDHUP", 0)


@contextmanager
def ending_with(descriptor: int) -> Iterator[None]:
    """Inside, end this process soon after its input `descriptor` closes: by SIGTERM, then by force.

    Unread input is ignored: without the other side, the answer has no reader.
    """
    is_over = Event()
    wake, waker = os.pipe()
    watcher = Thread(target=_watch_parent, args=(descriptor, wake, is_over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        os.close(waker)
        watcher.join()
        os.close(wake)


def _watch_parent(descriptor: int, wake: int, is_over: Event) -> None:
    waiting = select.poll()
    waiting.register(descriptor, CLOSED)
    waiting.register(wake, 0)  # closed at the end of the block
    waiting.poll()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_over.wait(GRACE_S):
            return
        os.kill(os.getpid(), number)
