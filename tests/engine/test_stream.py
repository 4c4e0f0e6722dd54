"""Streams of frames: order, errors, bounds and ends, and outputs beside ONNX Runtime's."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from time import monotonic, sleep
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.devices import here
from support.plans import image, make_plan, row
from support.references import imported

from codl.engine.engine import Engine
from codl.engine.stream import Lanes, Stream
from codl.errors import CodlError, DeviceError
from codl.frontend.models.builder import ModelBuilder
from codl.jobs.streams import SPLIT, StreamPlan, off_the_cpu_side
from codl.machine.placement import LocalSoc
from codl.measure.closeness import max_rel_err
from codl.plan.build_plan import default_plan

PREFIX = "codl-"


class Doubles:
    """An engine that doubles a frame, after a time, or raises what a negative frame means."""

    def __init__(self, seconds: float = 0.0, gate: threading.Event | None = None) -> None:
        self.seconds, self.gate = seconds, gate

    def __call__(self, frame: NDArray[Any]) -> NDArray[Any]:
        if self.gate is not None:
            self.gate.wait(10)
        sleep(self.seconds * abs(int(frame)) % 0.003)
        if frame < 0:
            raise DeviceError(f"no {frame}")
        doubled: NDArray[Any] = 2 * frame
        return doubled

    def close(self) -> None:
        """Nothing is held."""


def lanes(count: int = 2, *, seconds: float = 0.0, frame_bytes: int = 8) -> Lanes:
    engines = {f"engine {at}": Doubles((at + 1) * seconds) for at in range(count)}
    return Lanes(engines, count + 1, frame_bytes)


def of(numbers: list[int], kind: type = np.int64) -> Iterator[NDArray[Any]]:
    return (np.array(number, kind) for number in numbers)


def taken(stream: Stream) -> list[int | str]:
    """Results, and errors in their places."""
    found: list[int | str] = []
    while True:
        try:
            found.append(int(next(stream)))  # type: ignore[arg-type]
        except StopIteration:
            return found
        except CodlError as error:
            found.append(str(error))


def stream_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(PREFIX)]


def until(holds: Callable[[], bool]) -> bool:
    end = monotonic() + 10
    while not holds() and monotonic() < end:
        sleep(0.002)
    return holds()


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.integers(-3, 40), max_size=30),
    count=st.integers(1, 3),
    in_flight=st.integers(1, 8),
    seconds=st.sampled_from([0.0, 0.0004, 0.0011]),
)
def test_results_and_errors_keep_the_places_of_their_frames(
    numbers: list[int], count: int, in_flight: int, seconds: float
) -> None:
    read, most, handed_out = 0, 0, 0

    def frames() -> Iterator[NDArray[Any]]:
        nonlocal read, most
        for frame in of(numbers):
            read += 1
            most = max(most, read - handed_out)
            yield frame

    expected = [2 * x if x >= 0 else f"Frame {at}: no {x}" for at, x in enumerate(numbers)]
    found: list[int | str] = []
    with Stream(lanes(count, seconds=seconds), frames(), in_flight) as stream:
        for _ in numbers:
            try:
                found.append(int(next(stream)))  # type: ignore[arg-type]
            except DeviceError as error:
                found.append(str(error))
            handed_out += 1
        assert next(stream, None) is None
        assert sum(stream.counts.values()) == len(numbers)
    assert found == expected
    assert most <= in_flight + 1, "the next frame may be read before this test counts a result"


def test_frames_go_to_whichever_engine_is_free() -> None:
    gate = threading.Event()
    engines = {"slow": Doubles(gate=gate), "fast": Doubles()}
    with Stream(Lanes(engines, 4, 8), of([*range(20)]), 20) as stream:
        assert until(lambda: stream.counts["fast"] == 19), "the others do not wait for the first"
        gate.set()
        assert taken(stream) == [2 * x for x in range(20)]
        assert stream.counts == {"slow": 1, "fast": 19}


def test_an_array_may_be_filled_again_for_every_frame() -> None:
    array = np.zeros((), np.int64)

    def frames() -> Iterator[NDArray[Any]]:
        for number in range(30):
            array[()] = number
            yield array

    assert taken(Stream(lanes(seconds=0.0004), frames())) == [2 * x for x in range(30)]


def test_a_frame_that_is_no_array_is_an_error_of_its_own() -> None:
    frames: list[Any] = [*of([1, 2]), [[1], [2, 3]], np.array(4)]
    found = taken(Stream(lanes(), frames))
    assert found[:2] + found[3:] == [2, 4, 8]
    assert str(found[2]).startswith("Frame 2: it is no array")


def test_an_iterator_that_raises_does_so_behind_the_results_before() -> None:
    def frames() -> Iterator[NDArray[Any]]:
        yield from of([1, 2, 3])
        raise OSError("the camera is gone")

    stream = Stream(lanes(), frames())
    assert [int(next(stream)) for _ in range(3)] == [2, 4, 6]  # type: ignore[arg-type]
    with pytest.raises(OSError, match="the camera is gone"):
        next(stream)
    assert taken(stream) == []


@pytest.mark.parametrize(
    ("frames", "in_flight", "message"),
    [
        ([], 0, "in_flight must be a whole number of at least 1, got 0"),
        ([], 1.5, "in_flight must be a whole number"),
        (5, 1, "frames must be an iterable of arrays, .* got 5"),
        ([], 10**9, r"in_flight must be at most \d+, got 1000000000: a frame and its result take"),
    ],
)
def test_what_a_stream_refuses(frames: Any, in_flight: Any, message: str) -> None:
    with pytest.raises(CodlError, match=message):
        Stream(lanes(frame_bytes=10**6), frames, in_flight)
    assert until(lambda: not stream_threads())


def test_a_stream_that_is_dropped_ends_its_threads() -> None:
    read: list[int] = []

    def frames() -> Iterator[NDArray[Any]]:
        for number in range(10**6):
            read.append(number)
            yield np.array(number)

    stream = Stream(lanes(), frames(), 3)
    assert int(next(stream)) == 0  # type: ignore[arg-type]
    assert until(lambda: len(read) == 4)
    del stream
    gc.collect()
    assert until(lambda: not stream_threads())
    assert len(read) <= 5, "a stream that goes lets no further frames be read"


def test_a_closed_stream_has_no_results_and_no_threads() -> None:
    stream = Stream(lanes(seconds=0.001), repeat(np.array(3)), 5)
    next(stream)
    waiting = Stream(lanes(), iter(partial(sleep, 0.2), 0), 1)
    found: list[Any] = []
    consumer = threading.Thread(target=lambda: found.append(next(waiting, "closed")))
    consumer.start()
    sleep(0.05)
    for each in (stream, waiting):
        each.close()
        each.close()
        assert next(each, None) is None
    consumer.join(10)
    assert found == ["closed"]
    assert until(lambda: not stream_threads())


#: A process that ends with streams that nobody consumes, one of them waiting for a frame.
LEFT = """
import threading
import numpy as np
from itertools import repeat
from codl.engine.stream import Lanes, Stream

class Double:
    def __call__(self, frame): return 2 * frame
    def close(self): pass

def never():
    threading.Event().wait()
    yield

lanes = Lanes({"one": Double(), "two": Double()}, 4, 8)
left = [Stream(lanes, repeat(np.ones(3))), Stream(lanes, never())]
print(next(left[0]).sum())
"""


def test_a_process_ends_with_streams_that_are_not_consumed() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "6.0\n", "")


# On a device.


def test_two_engines_agree_with_onnx_runtime_frame_by_frame(first_soc: LocalSoc) -> None:
    """The CPU on one target, the GPU on another one; frames of another shape fail alone."""
    b = ModelBuilder("small")
    x = b.relu(b.conv(b.input("image", (1, 3, 24, 24)), 16, 3, pad=1))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 2, 2)), 10))
    model = b.build()
    network = imported(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(7)
    frames = [random.random((1, 3, 24, 24), np.float32) for _ in range(40)]
    sent = [*frames[:20], np.zeros((1, 3, 24, 25), np.float32), *frames[20:]]
    beside = off_the_cpu_side(first_soc, "local")
    if first_soc.gpu.is_cpu:
        assert beside.placement.cpu_cores == first_soc.placement.gpu_cores
    with (
        Engine(network, default_plan(network, first_soc, "cpu"), here(first_soc)) as cpu,
        Engine(network, default_plan(network, first_soc, "gpu"), here(beside)) as gpu,
    ):
        cpu.make_lanes = lambda engine: engine.lanes_of({"cpu": engine, "gpu": gpu}, 4)
        with cpu.stream(sent) as stream:
            assert (stream.lanes, stream.in_flight) == (("cpu", "gpu"), 4)
            found = [next(stream) for _ in range(20)]
            with pytest.raises(CodlError, match=r"Frame 20: The input 'image' must be"):
                next(stream)
            found += [*stream]
            assert all(stream.counts.values()), "both have worked"
    for frame, result in zip(frames, found, strict=True):
        (expected,) = session.run(None, {"image": frame})
        assert max_rel_err(result, expected) <= 1e-4  # type: ignore[arg-type]


def test_an_engine_without_others_streams_alone(first_soc: LocalSoc) -> None:
    network = row(2)
    plan = make_plan(network, first_soc, [(2, "H", 0.5)], "missing")
    with Engine(network, plan, here(first_soc)) as engine:
        inputs = [image(network, seed) for seed in range(5)]
        expected = [engine(x) for x in inputs]
        with engine.stream(inputs) as stream:
            found = [*stream]
    assert len(found) == len(expected)
    for right, result in zip(expected, found, strict=True):
        for name in network.outputs:
            np.testing.assert_array_equal(result[name], right[name])  # type: ignore[index]


# The choice.


@pytest.mark.parametrize(
    ("latency_ms", "chosen", "in_flight"),
    [
        ({"cpu": 10.0, "gpu": 12.0}, ("cpu", "gpu"), 4),
        ({"cpu": 30.0, "gpu": 10.0, SPLIT: 8.0}, ("gpu", "cpu"), 5),
        ({"cpu": 10.0, "gpu": 10.0, SPLIT: 4.0}, (SPLIT,), 2),
        ({"cpu": 10.0, "gpu": 300.0}, ("cpu",), 2),
        ({"gpu": 3.0, SPLIT: 4.0}, ("gpu",), 2),
    ],
)
def test_the_highest_rate_is_chosen(
    latency_ms: dict[str, float], chosen: tuple[str, ...], in_flight: int
) -> None:
    network = row(1)
    plan: Any = network  # plans are not looked at
    found = StreamPlan(dict.fromkeys(latency_ms, plan), latency_ms)
    assert (found.chosen, found.in_flight) == (chosen, in_flight)
    unknown = StreamPlan(dict.fromkeys(("cpu", "gpu", SPLIT), plan), {SPLIT: 4.0})
    assert (unknown.chosen, unknown.in_flight) == (("cpu", "gpu"), 3)
