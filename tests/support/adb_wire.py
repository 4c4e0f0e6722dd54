"""Messages of the protocol between an adb server and a device, as Android's sources document it.

A message is a head of six words (command, two arguments, bytes of its payload, a sum of them that
newer versions leave at 0, and the command's complement; little-endian) and its payload.
"""

from __future__ import annotations

import struct
from asyncio import StreamReader, StreamWriter
from typing import NamedTuple

HEAD = struct.Struct("<6I")
#: The first version without sums.
VERSION = 0x01000001
#: The largest payload that devices have taken since Android 9.
MOST_BYTES = 1 << 20


def word(text: bytes) -> int:
    """The number of a command, or of a request to `sync:`, from its four letters."""
    return int.from_bytes(text, "little")


CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = map(
    word, (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
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
