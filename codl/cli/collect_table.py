"""What `codl collect` prints at its end."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from codl.cli.collect_course import Course
from codl.measure.collector import Collected
from codl.measure.dataset import Dataset
from codl.measure.devices_at_work import DeviceNews
from codl.report.terminal import Table

#: Why a collection ended.
STOPPED = {
    "done": "all is measured",
    "budget": "the budget is over",
    "samples": "as many as wanted",
    "settled": "more would change nothing",
    "battery": "the battery is low",
}


def collected_table(
    dataset: Dataset, done: Collected, expected: dict[str, Any] | None, course: Course | None
) -> RenderableType:
    """What was written, by table, and what it is good for where that is known."""
    title = f"Dataset of {dataset.folder.name}"
    names = ("file", "rows") + (("within 10 %", "within 5 %", "MAPE") if expected else ())
    table = Table(*names, title=title, title_justify="left")
    looks = {look["target"]: look for look in (expected or {"targets": []})["targets"]}
    for name, rows in dataset.tables().items():
        look = looks.pop(name, {})
        table.add_row(f"t_{name}.csv", str(len(rows.read())), *_accuracy(look))
    for name, look in looks.items():  # the directions of data sharing
        table.add_row(name, str(look["rows"]), *_accuracy(look))
    stopped = course.settled if course and done.stopped == "settled" else STOPPED[done.stopped]
    table.caption = (
        f"{done.rows} rows written in {done.seconds:.0f} s ({stopped}), "
        f"{done.failed} failed, {done.skipped} there before, {done.left} measurements left, "
        f"{done.again} measured twice"
    )
    if done.paused_s:
        table.caption += f", {done.paused_s:.0f} s of pauses to cool down"
    if len(done.devices) > 1:
        table.caption += "".join(map(_line, done.devices))
    if expected:
        table.caption += f". Accuracy: what {expected['predictor']} reaches on shapes held out"
        if expected["regret"]:
            table.caption += ", regret {mean} % in the mean, {p95} % at p95, ops: {ops}".format(
                **expected["regret"]
            )
    return table


def _line(own: DeviceNews) -> str:
    """What became of one of several devices."""
    lost = f", lost {own.lost} times" if own.lost else ""
    problem = f", {own.state}: {own.problem.rstrip('.')}" if own.problem else ""
    return f". {own.serial}: {own.measured} measurements{lost}{problem}"


def _accuracy(look: dict[str, Any]) -> list[str]:
    values = [look.get(name) for name in ("acc10", "acc5", "mape")]
    return ["" if value is None else f"{value:.1f} %" for value in values]
