"""Streams: frames on whichever processor is free, with results in the order of the frames.

One thread reads the frames. Every other thread runs one frame at a time, on the fastest free
engine. A frame takes a slot before it is read and returns it with its result, so a stream holds a
bounded number of frames.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, check_argument
from codl.machine import threads
from codl.machine.examination import memory_of

#: A single array, or all inputs by name; a result has the same form as its frame.
Frame: TypeAlias = "NDArray[Any] | Mapping[str, NDArray[Any]]"
Result: TypeAlias = "NDArray[Any] | dict[str, NDArray[Any]]"


class Lane(Protocol):
    """An engine of a stream, called from one thread at a time."""

    def __call__(self, inputs: Any) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Lanes:
    """The engines of a stream by name, the fastest first; they run at once.

    `in_flight` frames keep all of them busy. A frame and its result take `frame_bytes`.
    """

    engines: Mapping[str, Lane]
    in_flight: int
    frame_bytes: int


class Stream(Iterator[Any]):
    """Iterator over the results of frames, in the order of the frames (see `Engine.stream`).

    At most `in_flight` frames are read ahead of the results. The error of a frame is raised in
    place of its result, and the next call continues with the next frame. An error of the iterator
    of frames is raised after the results of all earlier frames, and ends the stream. `lanes` are
    the names of the engines, and `counts` the frames that each has finished. Closing the stream, or
    dropping its last reference, ends its threads.

    >>> results = engine.stream(frames, in_flight=4)
    >>> y = next(results)
    """

    def __init__(self, lanes: Lanes, frames: Iterable[Frame], in_flight: int | None = None) -> None:
        """Begin to read frames.

        Raises `CodlError` for frames that are not iterable, and for an `in_flight` below 1 or
        beyond the free memory.
        """
        self.in_flight = lanes.in_flight if in_flight is None else in_flight
        _check_slots(self.in_flight, lanes.frame_bytes)
        if not isinstance(frames, Iterable):
            raise CodlError(
                f"frames must be an iterable of arrays, such as a list or a generator, got "
                f"{frames!r:.60}."
            )
        self._work = _Work(lanes.engines, self.in_flight)
        # Without a reference from the thread, a dropped stream is collected while the thread waits.
        reader = threading.Thread(
            target=self._work.read, args=(iter(frames),), name="codl-frames", daemon=True
        )
        self._end = finalize(self, self._work.end)
        reader.start()

    @property
    def lanes(self) -> tuple[str, ...]:
        """Names of the engines, the fastest first."""
        return tuple(self._work.engines)

    @property
    def counts(self) -> dict[str, int]:
        """Frames that each engine has finished, including failed ones."""
        return {name: self._work.finished[name] for name in self._work.engines}

    def __next__(self) -> Result:
        return self._work.next_result()

    def close(self) -> None:
        """Stop reading frames, wait for running frames, and drop all results."""
        self._end()
        self._work.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Work:
    """The threads of a stream, and its frames from reading until their results are returned."""

    def __init__(self, engines: Mapping[str, Lane], in_flight: int) -> None:
        self.engines, self.finished = engines, Counter[str]()
        self._slots = threading.Semaphore(in_flight)
        #: Results in the order of the frames; None ends the stream.
        self._results: SimpleQueue[Future[Result] | None] = SimpleQueue()
        self._lock = threading.Lock()
        #: A heap of idle engines, the fastest first.
        self._free = [*enumerate(engines)]
        #: Memory of finished frames for reuse: new memory costs the system more than the copy.
        self._spare: list[dict[str, NDArray[Any]]] = []
        self._pool = ThreadPoolExecutor(len(engines), "codl-stream")
        self._process, self._has_ended = os.getpid(), False

    def read(self, frames: Iterator[Frame]) -> None:
        """Read frames as slots become free, until the frames or the stream end."""
        number = 0
        try:
            while True:
                self._slots.acquire()
                if self._has_ended:
                    return
                frame = next(frames)
                if self._has_ended:
                    return
                spare = self._spare.pop() if self._spare else {}
                is_mapping = isinstance(frame, Mapping)
                named: Mapping[str, Any] = frame if isinstance(frame, Mapping) else {"": frame}
                try:
                    copied = _copied(named, spare)
                except CodlError as error:
                    self._results.put(_failed(_named(error, number)))
                else:
                    work = self._pool.submit(self._run, number, copied, is_mapping=is_mapping)
                    self._results.put(work)
                number += 1
        except StopIteration:
            pass
        except BaseException as error:  # any error is raised by the call that asks for the result
            if not self._has_ended:
                self._results.put(_failed(error))
        finally:
            self._results.put(None)

    def _run(self, number: int, arrays: dict[str, NDArray[Any]], *, is_mapping: bool) -> Result:
        """Run a frame on the fastest idle engine; each engine has a thread, so one is idle."""
        with self._lock:
            place, name = heappop(self._free)
        try:
            result: Result = self.engines[name](arrays if is_mapping else arrays[""])
            return result
        except CodlError as error:
            _named(error, number)
            raise
        finally:
            self.finished[name] += 1
            with self._lock:
                heappush(self._free, (place, name))
            self._spare.append(arrays)

    def next_result(self) -> Result:
        threads.check_process(self._process, "This stream was made")
        future = None if self._has_ended else self._results.get()
        if future is None:
            self.end()
            raise StopIteration
        try:
            return future.result()
        except CancelledError:  # another thread has closed the stream
            raise StopIteration from None
        finally:
            self._slots.release()

    def end(self) -> None:
        """End the threads after their running frames, without waiting for them."""
        self._has_ended = True
        self._slots.release()
        self._results.put(None)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for running frames, but not for the thread that reads frames."""
        self._pool.shutdown(wait=True)


def _copied(frame: Mapping[str, Any], spare: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Copy the arrays of a frame, because an iterator may reuse one array for all frames.

    `spare` is memory for reuse. Raises `CodlError` for a value that is no array.
    """
    copied: dict[str, NDArray[Any]] = {}
    for name, value in frame.items():
        try:
            array = np.asarray(value)
        except Exception as error:
            what = f"the input {name!r}" if name else "it"
            raise CodlError(f"{what} is no array: {error}.") from error
        place = spare.get(name)
        if place is None or (place.shape, place.dtype) != (array.shape, array.dtype):
            place = np.empty_like(array)
        np.copyto(place, array)
        copied[name] = place
    return copied


def _named(error: CodlError, number: int) -> CodlError:
    """Put the number of its frame, counted from 0, in front of an error."""
    error.args = (f"Frame {number}: {error}",)
    return error


def _failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _check_slots(in_flight: int, frame_bytes: int) -> None:
    """Raise `CodlError` for fewer than one frame, or for more than free memory holds."""
    check_argument("in_flight", in_flight, "a whole number of at least 1", int)
    if in_flight < 1:
        raise CodlError(f"in_flight must be a whole number of at least 1, got {in_flight}.")
    free = memory_of().available
    if free and in_flight * frame_bytes > free:
        raise CodlError(
            f"in_flight must be at most {free // frame_bytes}, got {in_flight}: a frame and its "
            f"result take {frame_bytes / 1e6:.1f} MB, and {free / 1e9:.1f} GB of memory are free."
        )
