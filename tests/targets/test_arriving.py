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
from codl.measure.tasks import MeasureBatch
from codl.measure.timing import Rounds
from codl.targets.connection import FrameError
from codl.targets.kernel_runs import Remaining
from codl.targets.measuring import MOST_LETTERS, Arriving, MeasuredRow, check_anchors, checked_row

TASKS = tuple(conv_tasks()[:3])
BATCH = MeasureBatch(TASKS, "run2", Rounds(), Tuning(), float("inf"), {}, {})


def content(**changes: Any) -> dict[str, Any]:
    """A row of the first task as it is sent."""
    row = msgspec.to_builtins(replace(TASKS[0].row_template, run="run2"))
    return {**row, "latency_ms": 1.5, "runs": 3, **changes}


def row(index: int) -> tuple[Any, ...]:
    """The event of a row."""
    return "done", index, MeasuredRow(content(), False)


def arriving(*events: tuple[Any, ...]) -> Arriving:
    """After some events."""
    heard = Arriving(BATCH)
    for kind, index, value in events:
        heard.on_event(kind, index, value)
    return heard


def test_a_row_comes_as_it_is() -> None:
    row = checked_row(TASKS[0], "run2", content())
    assert (row.latency_ms, row.runs, row.key) == (1.5, 3, TASKS[0].key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "fc in=1x1x1x1 oc=1"}, "whose op is"),
        ({"run": "run1"}, "whose run is 'run1' instead of 'run2'"),
        ({"source": "replayed"}, "whose source is"),
        ({"latency_ms": 0.0}, "a latency of 0.0 ms"),
        ({"latency_ms": float("inf")}, "whose latency_ms is inf"),
        ({"latency_ms": "fast"}, "an invalid row"),
        ({"status": "fine"}, "an invalid row"),
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
    for event in (("begin", index, None), row(index)):
        with pytest.raises(FrameError, match=f"of task {index} of 3"):
            arriving(event)


def test_events_of_another_request_are_refused() -> None:
    with pytest.raises(FrameError, match="it sent 'round' of task 0 of 3"):
        arriving(("round", 0, None))


def test_a_row_comes_once() -> None:
    twice = [row(0)] * 2
    with pytest.raises(FrameError, match="the row of task 0 twice"):
        arriving(*twice)


def test_whose_row_is_here_is_no_suspect() -> None:
    begun = [("begin", 0, None), row(0), ("begin", 1, None), ("begin", 2, None)]
    assert arriving(*begun[:1]).suspects == TASKS[:1]
    assert arriving(*begun[:2]).suspects == ()
    assert arriving(*begun).suspects == TASKS[2:]
    assert arriving(*begun, ("timing", 0, None)).suspects == TASKS[1:]
    assert [one.task for one in arriving(*begun).measurements] == [TASKS[0]]


def test_anchors_are_codls_own() -> None:
    anchors = measured(BATCH, 1.0, 0).anchors
    check_anchors(anchors)
    for wrong in (
        {"op": to_text(TASKS[0].op)},
        {"processor": "npu"},
        {"latency_ms": float("nan")},
        {"latency_ms": 0.0},
    ):
        changed: dict[str, Any] = vars(anchors[0]) | wrong
        with pytest.raises(FrameError, match="it sent"):
            check_anchors([type(anchors[0])(**changed)])


def test_events_of_other_tasks_or_of_finished_ones_are_refused() -> None:
    left = Remaining("ab")
    left.event("done", "ab", 0)
    for kind in ("begin", "done"):
        with pytest.raises(FrameError, match=f"it sent '{kind}' of task 0, which is done"):
            left.event(kind, "ab", 0)
        with pytest.raises(FrameError, match=f"it sent '{kind}' of task 2 of 2"):
            left.event(kind, "ab", 2)
