"""A double of a phone: speaks adb's protocol on loopback and runs commands on this very machine.

Nothing that is measured behind it says anything of a phone. It answers `adb connect HOST:PORT` of a
real adb server, with the services `shell:` and `shell,v2,raw:`; `python -m support.adb_device
--help` starts one by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support import adb_wire
from support.adb_services import Commands, Died
from support.adb_wire import Message

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
        self._answer()
        return b"" if self._is_closed and self._incoming.empty() else await self._incoming.get()

    async def write(self, data: bytes) -> None:
        async with self._writing:
            for begin in range(0, len(data), adb_wire.MOST_BYTES):
                if self._is_closed:
                    raise EOFError
                self._may_write.clear()
                self._send(adb_wire.WRTE, data[begin : begin + adb_wire.MOST_BYTES])
                await self._writer.drain()
                await self._may_write.wait()

    def open(self) -> None:
        """Say that it is there."""
        self._number = self._own
        self._send(adb_wire.OKAY)

    def close(self) -> None:
        if not self._is_closed:
            self._send(adb_wire.CLSE)
        self.hear_end()

    def hear(self, message: Message) -> None:
        if message.command == adb_wire.OKAY:
            self._may_write.set()
        elif message.command == adb_wire.WRTE:
            self._is_owed = True
            self._incoming.put_nowait(message.payload)
        elif message.command == adb_wire.CLSE:
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
            self._send(adb_wire.OKAY)

    def _send(self, command: int, payload: bytes = b"") -> None:
        adb_wire.send(self._writer, Message(command, self._number, self._other, payload))


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
                hello = Message(adb_wire.CNXN, adb_wire.VERSION, adb_wire.MOST_BYTES, banner)
                adb_wire.send(self._writer, hello)
                while True:
                    self._hear(await adb_wire.receive(self._reader))
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
        while (await adb_wire.receive(self._reader)).command != adb_wire.CNXN:
            pass
        is_allowed = not self._phone.is_locked
        while not is_allowed:
            token = secrets.token_bytes(TOKEN_BYTES)
            adb_wire.send(self._writer, Message(adb_wire.AUTH, adb_wire.TOKEN, 0, token))
            answer = await adb_wire.receive(self._reader)
            if answer[:2] == (adb_wire.AUTH, adb_wire.PUBLIC_KEY):
                # A phone asks its user now, who may come later.
                (self._phone.folder / ASKED).write_bytes(answer.payload.rstrip(b"\0"))
                await adb_wire.receive(self._reader)
            is_signed = answer[:2] == (adb_wire.AUTH, adb_wire.SIGNATURE)
            is_allowed = is_signed and (self._phone.folder / ALLOWED).exists()
        return is_allowed

    def _hear(self, message: Message) -> None:
        if message.command == adb_wire.OPEN:
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
