"""A double of a phone: speaks adb's protocol on loopback and runs commands on this very machine.

Nothing that is measured behind it says anything of a phone. It answers `adb connect HOST:PORT` of a
real adb server, with the services `shell:` and `shell,v2,raw:`; `python -m support.adb_device
--help` starts one by hand. The protocol is as Android's sources document it: a message is a head
of six words (command, two arguments, bytes of its payload, a sum of them that newer versions leave
at 0, and the command's complement; little-endian) and its payload.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import struct
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

HEAD = struct.Struct("<6I")
#: The first version without sums.
VERSION = 0x01000001
#: The largest payload that devices have taken since Android 9.
MOST_BYTES = 1 << 20
#: The numbers of commands, whose bytes are letters.
CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(word, "little")
    for word in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
#: What an `AUTH` holds.
TOKEN, SIGNATURE, PUBLIC_KEY = 1, 2, 3


class Message(NamedTuple):
    command: int
    first: int
    second: int
    payload: bytes = b""


async def receive(reader: StreamReader) -> Message:
    """The next message; raises `EOFError` at the end, `ValueError` for what is none."""
    command, first, second, size, _, magic = HEAD.unpack(await reader.readexactly(HEAD.size))
    if magic != command ^ 0xFFFFFFFF or size > MOST_BYTES:
        raise ValueError(f"not a message: command {command:#x}, {size} bytes, magic {magic:#x}")
    return Message(command, first, second, await reader.readexactly(size))


def send(writer: StreamWriter, message: Message) -> None:
    command, first, second, payload = message
    summed = sum(payload) & 0xFFFFFFFF if command in (CNXN, AUTH) else 0
    head = HEAD.pack(command, first, second, len(payload), summed, command ^ 0xFFFFFFFF)
    writer.write(head + payload)


#: Packets of `shell,v2`: a kind, the length, and so many bytes.
PACKET = struct.Struct("<BI")
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
PIECE = 64 << 10


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


#: Every double says that it is one.
MODEL = "device-double"
#: Files of a locked device's folder: whether hosts may debug, and the last key that asked for it.
ALLOWED, ASKED = "adb_keys", "asked_key"
#: A text at which the device is there no more, once a command has said half of it.
TRAP = "dies_at"
TOKEN_BYTES = 20


@dataclass(frozen=True)
class Phone:
    """A device in a folder: its properties, and whether its user must allow hosts to debug."""

    folder: Path
    model: str = MODEL
    is_locked: bool = False
    features: str = "shell_v2,cmd"

    @property
    def banner(self) -> bytes:
        own = f"ro.product.name={MODEL};ro.product.model={self.model};ro.product.device={MODEL}"
        return f"device::{own};features={self.features}".encode()

    @property
    def environment(self) -> dict[str, str]:
        """A command's: this process's own, with the device's home and its tools first."""
        tools = self.folder / "bin"
        path = f"{tools}:{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "HOME": str(self.folder), "PATH": path}


class Stream:
    """A stream of a connection, between their number for it and ours."""

    def __init__(self, writer: StreamWriter, own: int, other: int) -> None:
        self._writer, self._own, self._other = writer, own, other
        self._number = 0  # a stream that was never opened has none
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._may_write = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_owed = self._is_closed = False

    async def read(self) -> bytes:
        """What came next; none at the end. Only then may the other side send more."""
        self._answer()
        return b"" if self._is_closed and self._incoming.empty() else await self._incoming.get()

    async def write(self, data: bytes) -> None:
        """Send, and wait until the other side has taken it; raises `EOFError` where it went."""
        async with self._writing:
            for begin in range(0, len(data), MOST_BYTES):
                if self._is_closed:
                    raise EOFError
                self._may_write.clear()
                self._send(WRTE, data[begin : begin + MOST_BYTES])
                await self._writer.drain()
                await self._may_write.wait()

    def open(self) -> None:
        """Say that it is there."""
        self._number = self._own
        self._send(OKAY)

    def close(self) -> None:
        if not self._is_closed:
            self._send(CLSE)
        self.hear_end()

    def hear(self, message: Message) -> None:
        if message.command == OKAY:
            self._may_write.set()
        elif message.command == WRTE:
            self._is_owed = True
            self._incoming.put_nowait(message.payload)
        elif message.command == CLSE:
            self.hear_end()

    def hear_end(self) -> None:
        """There is no other side any more."""
        self._is_closed = True
        self._incoming.put_nowait(b"")
        self._may_write.set()

    def _answer(self) -> None:
        """Allow the next write, once the last one was used."""
        if self._is_owed and not self._is_closed:
            self._is_owed = False
            self._send(OKAY)

    def _send(self, command: int, payload: bytes = b"") -> None:
        send(self._writer, Message(command, self._number, self._other, payload))


class Connection:
    """An adb server that is connected."""

    def __init__(
        self, phone: Phone, commands: Commands, reader: StreamReader, writer: StreamWriter
    ) -> None:
        self._phone, self._commands = phone, commands
        self._reader, self._writer = reader, writer
        self._streams: dict[int, Stream] = {}
        self._served: set[asyncio.Task[None]] = set()
        self._last = 0

    async def serve(self) -> None:
        """Until it ends, or the device dies."""
        try:
            if await self._is_let_in():
                banner = self._phone.banner
                hello = Message(CNXN, VERSION, MOST_BYTES, banner)
                send(self._writer, hello)
                while True:
                    self._hear(await receive(self._reader))
        except (EOFError, ConnectionError, ValueError):
            pass
        finally:
            for stream in self._streams.values():
                stream.hear_end()
            with suppress(Exception):
                await asyncio.gather(*self._served)
            self._writer.close()

    async def _is_let_in(self) -> bool:
        """Greet; a locked device asks for signed tokens until its user allows hosts."""
        while (await receive(self._reader)).command != CNXN:
            pass
        is_allowed = not self._phone.is_locked
        while not is_allowed:
            token = secrets.token_bytes(TOKEN_BYTES)
            send(self._writer, Message(AUTH, TOKEN, 0, token))
            answer = await receive(self._reader)
            if answer[:2] == (AUTH, PUBLIC_KEY):
                # A phone asks its user now, who may come later.
                (self._phone.folder / ASKED).write_bytes(answer.payload.rstrip(b"\0"))
                await receive(self._reader)
            is_signed = answer[:2] == (AUTH, SIGNATURE)
            is_allowed = is_signed and (self._phone.folder / ALLOWED).exists()
        return is_allowed

    def _hear(self, message: Message) -> None:
        if message.command == OPEN:
            self._last += 1
            stream = Stream(self._writer, self._last, message.first)
            self._streams[self._last] = stream
            service = message.payload.rstrip(b"\0").decode()
            task = asyncio.create_task(self._serve_stream(self._last, stream, service))
            self._served.add(task)
            task.add_done_callback(self._served.discard)
        elif message.second in self._streams:
            self._streams[message.second].hear(message)

    async def _serve_stream(self, number: int, stream: Stream, service: str) -> None:
        kind, _, argument = service.partition(":")
        name, *options = kind.split(",")
        try:
            if name == "shell" and "v2" in options and "pty" not in options:
                stream.open()
                await self._commands.run(stream, argument)
        except Died:
            die(self._commands)
        except (EOFError, ConnectionError):
            pass
        finally:
            stream.close()
            del self._streams[number]


def die(commands: Commands) -> None:
    """End at once, with all that runs here."""
    commands.kill()
    os._exit(1)


async def serve(phone: Phone, port: int) -> None:
    """Be a device at a port of the loopback, one that is free for 0, and print which."""
    commands = Commands(phone.environment, phone.folder / TRAP)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, die, commands)

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        await Connection(phone, commands, reader, writer).serve()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=4 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the device's home and its keys")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--locked", action="store_true", help="its user must allow hosts to debug")
    parser.add_argument("--features", default=Phone.features, help="what it can, as Android says")
    given = parser.parse_args()
    phone = Phone(given.folder, given.model, given.locked, given.features)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(phone, given.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
