"""Frames: typed JSON messages with binary blobs over a byte stream.

A frame is a head of 16 bytes (`MAGIC`, its number in this direction, length of the JSON, count of
blobs; little-endian), the length of every blob (8 bytes each), the JSON and the blobs. Numbers
count from 0, which reveals lost or repeated frames. Messages are msgspec structs; values of another
type are refused. The first error ends a connection.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from codl.errors import CodlError, DeviceError

MAGIC = b"CDL1"
HEAD = struct.Struct("<4sIII")
#: Largest JSON in bytes, number of blobs, and size of all blobs of a frame.
MOST_JSON, MOST_BLOBS, MOST_BYTES = 64 << 20, 1 << 16, 8 << 30
#: Bytes per read, so that a wrong length allocates no memory before its bytes arrive.
PIECE = 1 << 20

In = TypeVar("In")
Out = TypeVar("Out")


class FrameError(CodlError):
    """An invalid frame of the other side, or the end of the connection."""


class AgentLostError(DeviceError):
    """An agent crashed, was killed, hung, or sent an invalid message; it has ended.

    `is_blameless` means a cause outside its work: a cut connection, or the caller's time limit.
    `has_hung` means that the agent was ended because it did not answer.
    """

    def __init__(self, message: str, *, is_blameless: bool = False, has_hung: bool = False) -> None:
        super().__init__(message)
        self.is_blameless, self.has_hung = is_blameless, has_hung


class ConnectionEnded(FrameError):  # noqa: N818 (an end is no defect)
    """The other side closed the stream between two frames."""


class ConnectionCut(FrameError):  # noqa: N818
    """The stream ended in the middle of a frame."""


class Reader(Protocol):
    """A byte stream to read; `read` returns at most `size` bytes, none at the end."""

    def read(self, size: int, /) -> bytes: ...


class Writer(Protocol):
    """A byte stream to write; `write` accepts all bytes."""

    def write(self, data: bytes | memoryview, /) -> object: ...
    def flush(self) -> object: ...


def _check_size(size: int, most: int, what: str) -> None:
    if size > most:
        raise FrameError(f"A frame has {size} {what}; at most {most} are allowed.")


#: Binary data of a message, read in place: it may fill most of a device's memory.
Blob = bytearray


class Connection(Generic[In, Out]):
    """Messages to and from the other side of a byte stream; `incoming` is the received type.

    Every method raises `FrameError`; after the first error, all calls fail.
    """

    def __init__(self, reader: Reader, writer: Writer, incoming: Any) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = msgspec.json.Decoder(incoming)
        self._encoder = msgspec.json.Encoder()
        self._sent = self._received = 0
        self._error: FrameError | None = None
        #: Held while writing a frame, as any thread may send.
        self._sending = Lock()

    def send(self, message: Out, blobs: Sequence[bytes | memoryview] = ()) -> None:
        """Write a message with its blobs, and flush."""
        self._check_open()
        try:
            text = self._encoder.encode(message)
            views = [memoryview(blob).cast("B") for blob in blobs]
            lengths = [view.nbytes for view in views]
            _check_size(len(text), MOST_JSON, "bytes of JSON")
            _check_size(len(views), MOST_BLOBS, "blobs")
            _check_size(sum(lengths), MOST_BYTES, "bytes of blobs")
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
        """The next message and its blobs; raises `ConnectionEnded` at the end of the stream."""
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
        """Send the reason of the connection's end, if the other side still reads."""
        self._error = None
        try:
            self.send(message)
        finally:
            self._error = self._error or ConnectionEnded("It was ended from this side.")

    def refuse(self, problem: str) -> FrameError:
        """End the connection because of an invalid message; returns the error to raise."""
        return self._ended(FrameError(problem))

    def _frame(self) -> tuple[Blob, list[Blob]]:
        head = self._read(HEAD.size, "its head", may_end=True)
        magic, number, json_bytes, count = HEAD.unpack(head)
        if magic != MAGIC:
            raise FrameError(f"Expected a frame, which begins with {MAGIC!r}; got {magic!r}.")
        if number != self._received & 0xFFFFFFFF:
            raise FrameError(f"Expected frame {self._received}, got frame {number}: out of order.")
        _check_size(json_bytes, MOST_JSON, "bytes of JSON")
        _check_size(count, MOST_BLOBS, "blobs")
        sizes = self._read(8 * count, "the lengths of its blobs")
        lengths = struct.unpack(f"<{count}Q", sizes)
        _check_size(sum(lengths), MOST_BYTES, "bytes of blobs")
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
