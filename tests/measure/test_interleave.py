"""Turns of several runs, by a clock that only the runs move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from codl.errors import CodlError, DeviceError
from codl.measure import timing as measuring
from codl.measure.batch import time_together
from codl.measure.timing import Effort, TimedRun, Turns, interleave, timed


class SharedCache:
    """A machine on which a run takes twice as long after somebody else's; it logs who ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ran = 0.0, list[str]()
        monkeypatch.setattr(measuring, "perf_counter", lambda: self.now)

    def run(self, name: str, seconds: float) -> Callable[[], None]:
        def once() -> None:
            self.now += seconds if self.ran[-1:] == [name] else 2 * seconds
            self.ran.append(name)

        return once


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SharedCache:
    return SharedCache(monkeypatch)


def test_only_the_first_run_of_a_turn_meets_the_caches_of_others(machine: SharedCache) -> None:
    runs = {name: timed(machine.run(name, seconds)) for name, seconds in (("a", 0.25), ("b", 0.5))}
    found = interleave(runs, Effort(min_rounds=4, min_seconds=0, warm=3))
    # Where a round begins with whom the last one ended with, nobody else ran in between.
    turns = ["".join(machine.ran[at : at + 4]) for at in range(0, len(machine.ran), 4)]
    assert set(turns) == {"aaaa", "bbbb"}
    for name, seconds in (("a", 0.25), ("b", 0.5)):
        assert found[name].warm == [seconds] * 12
        assert set(found[name].cold) <= {seconds, 2 * seconds}
        assert found[name].cold[0] == 2 * seconds


def test_everybody_has_one_turn_a_round_in_a_random_order() -> None:
    order: list[str] = []

    def turn(name: str, runs: int) -> list[float]:
        order.append(name)
        return [float(len(order))] * runs

    runs: dict[str, TimedRun] = {n: (lambda runs, name=n: turn(name, runs)) for n in "abc"}
    interleave(runs, Effort(min_rounds=30, min_seconds=0))
    rounds = ["".join(order[at : at + 3]) for at in range(0, 90, 3)]
    assert {"".join(sorted(own)) for own in rounds} == {"abc"}
    assert len(set(rounds)) > 3


def test_what_comes_before_a_turn_is_the_same_for_all() -> None:
    log: list[str] = []

    def turn(name: str, runs: int) -> list[float]:
        log.append(f"{name} {runs}")
        return [0.001] * runs

    runs: dict[str, TimedRun] = {n: (lambda runs, name=n: turn(name, runs)) for n in "ab"}
    effort = Effort(min_rounds=5, min_seconds=0, warm=2)
    times = time_together(
        runs,
        effort,
        before_turn=lambda: log.append("idle"),
        after_round=lambda: log.append("round"),
    )
    assert len(log) == 5 * 5
    for at in range(0, len(log), 5):
        assert log[at] == log[at + 2] == "idle"
        assert {log[at + 1], log[at + 3]} == {"a 3", "b 3"}
        assert log[at + 4] == "round"
    assert (times.cold_ms["a"].runs, times.latency_ms["a"].runs) == (5, 10)


def test_a_minimum_time_is_kept(machine: SharedCache) -> None:
    found = interleave(
        {"a": timed(machine.run("a", 0.25))}, Effort(min_rounds=1, min_seconds=3.0, warm=3)
    )
    assert (len(found["a"].cold), len(found["a"].warm)) == (3, 9)


def test_who_fails_leaves_and_the_others_go_on() -> None:
    turns = iter(range(1, 9))

    def fails(runs: int) -> list[float]:
        if next(turns) > 1:
            raise DeviceError("it broke")
        return [0.5] * runs

    failed: dict[str, CodlError] = {}
    runs: dict[str, TimedRun] = {"bad": fails, "good": lambda runs: [0.25] * runs}
    found = interleave(runs, Effort(min_rounds=3, min_seconds=0), failed=failed)
    assert found == {"good": Turns([0.25] * 3, [0.25] * 9)}
    assert str(failed["bad"]) == "it broke"
    with pytest.raises(DeviceError, match="it broke"):
        interleave(runs, Effort(min_rounds=3, min_seconds=0))


@pytest.mark.parametrize(("most_s", "rounds"), [(0.0, 1), (3.5, 3), (None, 5)])
def test_where_time_is_short_there_are_fewer_rounds_and_one_at_least(
    most_s: float | None, rounds: int, machine: SharedCache
) -> None:
    effort = Effort(min_rounds=5, min_seconds=0, warm=3, max_seconds=most_s)
    found = interleave({"a": timed(machine.run("a", 0.25))}, effort)
    assert len(found["a"].cold) == rounds
