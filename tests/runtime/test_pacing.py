"""How a GPU rests, by a clock and a GPU that are not real."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codl.records.gpu_limits import GpuLimits
from codl.runtime.limited import IN_FLIGHT_MS, Pacer


@dataclass
class FakeGpu:
    """A clock in seconds, and a queue; sleeps end `late_ms` too late."""

    late_ms: float = 0.0
    slower: float = 1.0
    now: float = 0.0
    until: float = 0.0
    worked: float = 0.0
    sleeps: list[float] = field(default_factory=list)
    most_ms: float = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert self.until <= self.now, "only an empty queue rests"
        self.sleeps.append(1e3 * seconds)
        self.now += seconds + 1e-3 * self.late_ms

    def drain(self) -> bool:
        was_empty = self.until <= self.now
        self.now = max(self.now, self.until)
        return was_empty

    def enqueue(self, ms: float) -> None:
        taken = 1e-3 * self.slower * ms
        self.until = max(self.until, self.now) + taken
        self.worked += taken
        self.most_ms = max(self.most_ms, 1e3 * (self.until - self.now))

    def pacer(self, duty: float) -> Pacer:
        return Pacer(GpuLimits(gpu_duty=duty), self.drain, clock=self.clock, sleep=self.sleep)

    def run(self, duty: float, kernels_ms: list[float]) -> None:
        pacer = self.pacer(duty)
        for ms in kernels_ms:
            pacer.before(ms)
            self.enqueue(ms)


@given(st.floats(0.05, 1.0), st.lists(st.floats(0.01, 3.0), min_size=80, max_size=120))
@settings(deadline=None, derandomize=True)
def test_the_gpu_works_its_part_of_the_time(duty: float, kernels_ms: list[float]) -> None:
    gpu = FakeGpu()
    gpu.run(duty, kernels_ms)
    last_ms = IN_FLIGHT_MS  # the rest behind the last work is not taken yet
    assert gpu.worked <= duty * gpu.until + 1e-3 * last_ms
    assert gpu.worked >= duty * gpu.until - 1e-9, "it rests no longer than it must"
    assert gpu.most_ms <= IN_FLIGHT_MS + 1e-9


def test_work_is_followed_by_its_rest() -> None:
    gpu = FakeGpu()
    gpu.run(0.5, [2.0] * 6)
    assert gpu.sleeps == pytest.approx([4.0, 4.0])


def test_without_rests_only_the_queue_is_bounded() -> None:
    gpu = FakeGpu()
    gpu.run(1.0, [1.0] * 100)
    assert gpu.sleeps == []
    assert gpu.until == pytest.approx(0.1)
    assert gpu.most_ms <= IN_FLIGHT_MS + 1e-9


def test_a_kernel_longer_than_the_queue_may_be_goes_alone() -> None:
    gpu = FakeGpu()
    gpu.run(0.5, [10.0, 10.0])
    assert gpu.sleeps == pytest.approx([10.0])
    assert gpu.most_ms == pytest.approx(10.0)


def test_late_sleeps_are_made_up_for() -> None:
    gpu = FakeGpu(late_ms=0.5)
    gpu.run(0.5, [2.0] * 60)
    assert gpu.worked / gpu.until == pytest.approx(0.5, abs=0.01)


def test_a_gpu_that_had_nothing_to_do_has_rested() -> None:
    gpu = FakeGpu()
    pacer = gpu.pacer(0.5)
    for _ in range(10):
        pacer.before(4.0)
        gpu.enqueue(4.0)
        gpu.now += 0.010  # the CPU computes its own share meanwhile
    assert gpu.sleeps == []


def test_a_gpu_that_is_slower_than_it_was_rests_all_the_same() -> None:
    gpu = FakeGpu(slower=2.0)
    gpu.run(0.5, [2.0] * 6)
    assert gpu.sleeps == pytest.approx([4.0, 4.0])
    assert gpu.most_ms == pytest.approx(2 * IN_FLIGHT_MS)
