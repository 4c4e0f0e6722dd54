"""Rows from a device: only numbers for what was asked reach a dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.device_doubles import measured
from support.simulated import conv_tasks

from codl.ir import to_text
from codl.kernels.tuning import Tuning
from codl.measure.batch import MeasureBatch
from codl.measure.timing import Rounds
from codl.runtime.connection import FrameError
from codl.targets.arriving import MOST_LETTERS, Arriving, Remaining, check_anchors, checked_row
from codl.targets.client import AgentLostError

TASKS = tuple(conv_tasks()[:3])
BATCH = MeasureBatch(TASKS, "run2", Rounds(), Tuning(), float("inf"), {}, {})


def content(**changes: Any) -> dict[str, Any]:
    """A row of the first task as it is sent."""
    row = msgspec.to_builtins(replace(TASKS[0].row_template, run="run2"))
    return {**row, "latency_ms": 1.5, "runs": 3, **changes}


def arriving(*events: tuple[Any, ...]) -> Arriving:
    """After some calls, each a name with its arguments."""
    heard = Arriving(BATCH)
    for name, *values in events:
        getattr(heard, name)(*values)
    return heard


def test_a_row_comes_as_it_is() -> None:
    row = checked_row(TASKS[0], "run2", content())
    assert (row.latency_ms, row.runs, row.key) == (1.5, 3, TASKS[0].key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "fc in=1x1x1x1 oc=1"}, "whose op is"),
        ({"part": "../../x"}, "whose part is"),
        ({"dim": "N"}, "whose dim is"),
        ({"dim": "W"}, "Invalid enum value 'W'"),
        ({"share": 0.123}, "It sent the row of"),
        ({"run": "run1"}, "whose run is 'run1', where 'run2' was asked"),
        ({"source": "replayed"}, "whose source is"),
        ({"latency_ms": 0.0}, "a latency of 0.0 ms"),
        ({"latency_ms": -1.0}, "a latency of -1.0 ms"),
        ({"latency_ms": float("inf")}, "whose latency_ms is inf"),
        ({"p20_ms": float("nan")}, "whose p20_ms is nan"),
        ({"latency_ms": "fast"}, "a row that is none"),
        ({"status": "fine"}, "a row that is none"),
        ({"runs": None}, "a row that is none"),
    ],
)
def test_what_is_not_the_row_that_was_asked_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FrameError, match=message):
        checked_row(TASKS[0], "run2", content(**changes))


def test_a_devices_own_words_are_made_plain() -> None:
    """Nothing steers the terminal on which they are shown, and no line of a table is broken."""
    said = "no\nroom\0 \x1b]0;title\x07" + "x" * 1000
    row = checked_row(TASKS[0], "run2", content(status="failed", reason=said, latency_ms=0.0))
    assert row.reason.startswith("no room ]0;title x")
    assert len(row.reason) == MOST_LETTERS
    row = checked_row(TASKS[0], "run2", content(throttled="cpu\ngpu\x1b"))
    assert row.throttled == "cpu gpu"


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_tasks_that_were_not_sent_are_refused(index: int) -> None:
    for event in (("building", index), ("measured", index, content(), False)):
        with pytest.raises(FrameError, match=f"It spoke of task {index} of 3"):
            arriving(event)


def test_a_row_comes_once() -> None:
    twice = [("measured", 0, content(), False)] * 2
    with pytest.raises(FrameError, match="the row of task 0 twice"):
        arriving(*twice)


def test_whose_row_is_here_is_no_suspect() -> None:
    begun = [("building", 0), ("measured", 0, content(), False), ("building", 1), ("building", 2)]
    assert arriving(*begun[:1]).suspects == TASKS[:1]
    assert arriving(*begun[:2]).suspects == ()
    assert arriving(*begun).suspects == TASKS[2:]
    assert arriving(*begun, ("timing",)).suspects == TASKS[1:]
    assert [one.task for one in arriving(*begun).measurements] == [TASKS[0]]


def test_anchors_are_codls_own() -> None:
    anchors = measured(BATCH, 1.0, 0).anchors
    check_anchors(anchors, "run2")
    for wrong in (
        {"op": to_text(TASKS[0].op)},
        {"processor": "npu"},
        {"run": "run1"},
        {"status": "failed"},
        {"latency_ms": float("nan")},
        {"latency_ms": 0.0},
    ):
        changed: dict[str, Any] = vars(anchors[0]) | wrong
        with pytest.raises(FrameError, match="It sent"):
            check_anchors([type(anchors[0])(**changed)], "run2")


def test_another_agent_does_the_tasks_behind_the_one_that_an_agent_was_lost_with() -> None:
    left, asked, lost = Remaining("abcd"), [], []

    def ask(tasks: tuple[str, ...]) -> None:
        asked.append("".join(tasks))
        for task in tasks[:-1] if tasks[-1] == "d" and len(asked) < 3 else tasks:
            left.begins(task)
            if task in "bc" and task not in lost:
                raise AgentLostError(f"died of {task}")
            left.done(task)

    left.work(ask, lambda task, why: lost.append(task))
    assert (asked, lost, left.tasks) == (["abcd", "cd", "d"], ["b", "c"], [])


@pytest.mark.parametrize(
    "error", [AgentLostError("at once"), AgentLostError("x", is_blameless=True)]
)
def test_an_agent_that_is_lost_with_no_task_is_an_error(error: AgentLostError) -> None:
    left = Remaining("ab")

    def ask(tasks: tuple[str, ...]) -> None:
        if error.is_blameless:
            left.begins("a")
        raise error

    with pytest.raises(AgentLostError):
        left.work(ask, lambda task, why: None)
    assert left.tasks == ["a", "b"]


def test_what_was_not_asked_or_is_done_is_refused() -> None:
    left = Remaining("ab")
    left.done("a")
    for said in (left.begins, left.done):
        for task in "ax":
            with pytest.raises(FrameError, match="was not asked, or is done"):
                said(task)
