"""Frames: typed JSON messages with binary blobs over a byte stream, lengths first.

A frame is a head of 16 bytes (`MAGIC`, its number in this direction, bytes of JSON, count of
blobs; little-endian), the length of every blob (8 bytes each), the JSON and the blobs. Numbers
count from 0, so a lost or repeated frame is noticed. Messages are msgspec structs: a value of
another type is refused. The first error ends a connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from codl.errors import CodlError

MAGIC = b"CDL1"
HEAD = struct.Struct("<4sIII")
#: Most bytes of JSON, blobs, and bytes of all blobs of a frame.
MOST_JSON, MOST_BLOBS, MOST_BYTES = 64 << 20, 1 << 16, 8 << 30
#: Bytes that are read at a time: a wrong length costs no memory before its bytes arrive.
PIECE = 1 << 20

In = TypeVar("In")
Out = TypeVar("Out")


class FrameError(CodlError):
    """The other side sent an invalid frame, or the connection has ended."""


class ConnectionEnded(FrameError):  # noqa: N818 (an end is no defect)
    """The other side closed the stream between two frames."""


class ConnectionCut(FrameError):  # noqa: N818
    """The stream ended in the middle of a frame."""


class Reader(Protocol):
    """A byte stream to read; `read` gives at most `size` bytes, none at the end."""

    def read(self, size: int, /) -> bytes: ...


class Writer(Protocol):
    """A byte stream to write; `write` takes all bytes."""

    def write(self, data: bytes | memoryview, /) -> object: ...
    def flush(self) -> object: ...


@dataclass(frozen=True)
class FrameLimits:
    """Limits of a frame, received or sent."""

    json_bytes: int = MOST_JSON
    blobs: int = MOST_BLOBS
    blob_bytes: int = MOST_BYTES

    def check(self, json_bytes: int, blobs: int) -> None:
        if json_bytes > self.json_bytes:
            raise FrameError(
                f"A frame has {json_bytes} bytes of JSON; at most {self.json_bytes} are allowed."
            )
        if blobs > self.blobs:
            raise FrameError(f"A frame has {blobs} blobs; at most {self.blobs} are allowed.")

    def check_blobs(self, lengths: Sequence[int]) -> None:
        if sum(lengths) > self.blob_bytes:
            raise FrameError(
                f"A frame has {sum(lengths)} bytes of blobs; at most {self.blob_bytes} are allowed."
            )


LIMITS = FrameLimits()


#: Binary data of a message. It is read in place: it may be most of a device's memory.
Blob = bytearray


class Connection(Generic[In, Out]):
    """Messages to and from the other side of a byte stream; `incoming` is their type.

    Every method raises `FrameError`; after the first one, all do.
    """

    def __init__(
        self, reader: Reader, writer: Writer, incoming: Any, *, limits: FrameLimits = LIMITS
    ) -> None:
        self._reader, self._writer, self._limits = reader, writer, limits
        self._decoder = msgspec.json.Decoder(incoming)
        self._encoder = msgspec.json.Encoder()
        self._sent = self._received = 0
        self._error: FrameError | None = None
        #: Held while a frame is written: any thread may send.
        self._sending = Lock()

    def send(self, message: Out, blobs: Sequence[bytes | memoryview] = ()) -> None:
        """Write a message with its blobs, and flush."""
        self._check_open()
        try:
            text = self._encoder.encode(message)
            views = [memoryview(blob).cast("B") for blob in blobs]
            lengths = [view.nbytes for view in views]
            self._limits.check(len(text), len(views))
            self._limits.check_blobs(lengths)
            with self._sending:
                head = HEAD.pack(MAGIC, self._sent & 0xFFFFFFFF, len(text), len(views))
                self._writer.write(head + struct.pack(f"<{len(views)}Q", *lengths) + text)
                for view in views:
                    self._writer.write(view)
                self._writer.flush()
                self._sent += 1
        except FrameError as error:
            raise self._ended(error) from None
        except (OSError, ValueError) as error:
            raise self._ended(ConnectionEnded(f"The other side cannot be reached: {error}.")) from (
                error
            )

    def receive(self) -> tuple[In, list[Blob]]:
        """The next message and its blobs; raises `ConnectionEnded` where there is none."""
        self._check_open()
        try:
            text, blobs = self._frame()
            message: In = self._decoder.decode(text)
        except FrameError as error:
            raise self._ended(error) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"Frame {self._received} holds no message that is expected here: {error}"
            raise self._ended(FrameError(problem)) from error
        except (OSError, ValueError) as error:
            raise self._ended(ConnectionEnded(f"The other side cannot be reached: {error}.")) from (
                error
            )
        self._received += 1
        return message, blobs

    def send_last(self, message: Out) -> None:
        """Send why the connection ends, where the other side still reads."""
        self._error = None
        try:
            self.send(message)
        finally:
            self._error = self._error or ConnectionEnded("It was ended from this side.")

    def last(self) -> In | None:
        """The last message of the other side, which may have come before a `send` failed."""
        error, self._error = self._error, None
        message: In | None = None
        try:
            while True:
                message, _ = self.receive()
        except FrameError:
            return message
        finally:
            self._error = error

    def refuse(self, problem: str) -> FrameError:
        """End the connection because of a message that is not valid now; the error to raise."""
        return self._ended(FrameError(problem))

    def _frame(self) -> tuple[Blob, list[Blob]]:
        head = self._read(HEAD.size, "its head", may_end=True)
        magic, number, json_bytes, count = HEAD.unpack(head)
        if magic != MAGIC:
            raise FrameError(f"Expected a frame, which begins with {MAGIC!r}; got {magic!r}.")
        if number != self._received & 0xFFFFFFFF:
            raise FrameError(f"Expected frame {self._received}, got frame {number}: out of order.")
        self._limits.check(json_bytes, count)
        sizes = self._read(8 * count, "the lengths of its blobs")
        lengths = struct.unpack(f"<{count}Q", sizes)
        self._limits.check_blobs(lengths)
        text = self._read(json_bytes, "its JSON")
        return text, [self._read(n, f"blob {i}") for i, n in enumerate(lengths)]

    def _read(self, size: int, part: str, *, may_end: bool = False) -> Blob:
        content = bytearray()
        while len(content) < size:
            piece = self._reader.read(min(PIECE, size - len(content)))
            if not piece:
                if may_end and not content:
                    raise ConnectionEnded("The other side ended the connection.")
                raise ConnectionCut(
                    f"Frame {self._received} is cut short: {part} should have {size} bytes, "
                    f"{len(content)} came."
                )
            content += piece
        return content

    def _check_open(self) -> None:
        if self._error is not None:
            raise type(self._error)(f"The connection has ended: {self._error}")

    def _ended(self, error: FrameError) -> FrameError:
        self._error = error
        return error
