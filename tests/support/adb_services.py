"""What a device does on the streams that are opened to it: commands run here."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

#: Packets of `shell,v2`: a kind, the length, and so many bytes.
PACKET = struct.Struct("<BI")
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
PIECE = 64 << 10


class Stream(Protocol):
    """One of the streams of a connection."""

    async def read(self) -> bytes:
        """What came next; none at the end. Only then may the other side send more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send, and wait until the other side has taken it; raises `EOFError` where it went."""
        ...


class Buffered:
    """Reads exactly so many bytes of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._rest = stream, b""

    async def exactly(self, size: int) -> bytes:
        """So many bytes; raises `EOFError` where the stream ends before."""
        while len(self._rest) < size:
            piece = await self._stream.read()
            if not piece:
                raise EOFError
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class Trap:
    """A file with a text: a device is there no more once a command has said half of it."""

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, b""

    def before_end(self, data: bytes) -> bytes | None:
        """What is still sent of some output; None where the device goes on."""
        if not self._file.exists():
            return None
        text, before = self._file.read_bytes(), len(self._seen)
        self._seen += data
        at = self._seen.find(text)
        if at < 0:
            self._seen = self._seen[-len(text) :]
            return None
        self._file.unlink()
        return data[: max(0, at - before) + len(text) // 2]


class Died(Exception):  # noqa: N818 (an end is no defect)
    """The device is to be there no more."""


class Commands:
    """The commands that run on a device, in its environment."""

    def __init__(self, environment: Mapping[str, str], trap: Path) -> None:
        self._environment, self._trap = dict(environment), trap
        self._running: set[Process] = set()

    async def run(self, stream: Stream, text: str) -> None:
        """Run a line of shell text, whose input, outputs and exit code are packets."""
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            text,
            cwd="/",
            env=self._environment,
            start_new_session=True,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        self._running.add(process)
        feeding, trap = asyncio.create_task(_feed(stream, process)), Trap(self._trap)
        try:
            await asyncio.gather(
                _pass_on(stream, process.stdout, STDOUT, trap),
                _pass_on(stream, process.stderr, STDERR, trap),
            )
            code = await process.wait()
            code = 128 - code if code < 0 else code
            await stream.write(PACKET.pack(EXIT, 1) + bytes([code]))
        finally:
            feeding.cancel()
            end(process, signal.SIGHUP)
            self._running.discard(process)

    def kill(self) -> None:
        """End them all, as a device does that loses its power."""
        for process in self._running:
            end(process, signal.SIGKILL)


def end(process: Process, by: signal.Signals) -> None:
    """Send a command that still runs a signal, and what it started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, by)


async def _feed(stream: Stream, process: Process) -> None:
    """Give a command what comes for it; the stream's end, or its other side's, ends its input."""
    received, given = Buffered(stream), process.stdin
    try:
        while given is not None:
            kind, size = PACKET.unpack(await received.exactly(PACKET.size))
            data = await received.exactly(size)
            if kind == CLOSE_STDIN:
                given.close()
            elif kind == STDIN:
                with suppress(ConnectionError):  # it reads no more, which is its own affair
                    given.write(data)
                    await given.drain()
    except EOFError:
        pass
    end(process, signal.SIGHUP)


async def _pass_on(
    stream: Stream, output: asyncio.StreamReader | None, kind: int, trap: Trap
) -> None:
    """Send what a command says."""
    while output is not None and (data := await output.read(PIECE)):
        last = trap.before_end(data)
        data = data if last is None else last
        await stream.write(PACKET.pack(kind, len(data)) + data)
        if last is not None:
            raise Died
