"""`codl collect`: measures operators and data sharing into a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from codl.cli.output import JsonOption, OutputOption, emit
from codl.jobs.collect import Collect, CollectRun
from codl.measure.devices_at_work import DeviceStatus
from codl.report.text_table import Table

#: Why a collection ended.
STOPPED = {
    "done": "all is measured",
    "budget": "the budget is over",
    "samples": "as many as wanted",
    "settled": "accuracy has settled",
    "battery": "the battery is low",
}


def collect_data(job: Collect, json: JsonOption = False, file: OutputOption = None) -> None:
    """Ops are measured in batches of about ten seconds, in turns, so that a disturbance hits a few
    samples of each and not all samples of one. Rows are written at the end of each batch; a run
    that was killed goes on with --resume.

    It ends when everything is measured, with --budget after a fixed time, and with --samples after
    a fixed number of measurements.

    --budget is of all that the command does: reading models, tuning, measuring, and the last look.
    With it, whole ops come first, then their parts, then similar ops. One of two measurements
    is random; the other is chosen by active learning. Collection ends early when more rows would
    change nothing. It prints what to expect: accuracy on shapes held out, and the regret of the
    splits that predictions would choose.

    The first collection of a SoC begins with a tune of some seconds: on a few convolutions, tiles
    with more or fewer blocks of output channels meet the default in turns. Another number is kept
    in the dataset's tuning.json only where it is faster for certain. `codl tune` finds more.

    Rows carry temperature, clocks and battery. What a throttled processor measured is measured
    again; a hot device is waited for between batches; a battery below 20 % ends the collection.

    Several devices of one SoC share the work: each measures at its own pace what no other one does.
    One that goes away is tried again later, and the others go on.

    With --serial replay:DIR nothing runs: rows of that dataset are written again, to try an
    order or a budget, which counts the time that measuring them took. What DIR has no row of is
    left out.

    [dim]Examples:[/dim]
    codl collect --soc host --serial local
    codl collect --soc host --serial local --resume --models yolov2
    codl collect --soc host --serial local --resume --budget 10m
    codl collect --soc host --serial local --resume --models yolov2 --budget 10m
    codl collect --soc phone --serial X --governor performance --cool-down 5m
    codl collect --soc rk3588 --serial ssh://pi@one.local --serial ssh://pi@two.local
    codl collect --soc host --serial replay:lat_datasets/host --budget 10m --datasets tried
    """
    run = replace(job, shown=_lines).run()
    emit("collect", run.to_json(), lambda: _table(run), as_json=json, output=file)
    run.check()


def _lines(devices: Sequence[DeviceStatus]) -> RenderableType:
    """A line for each of several devices."""
    grid = Table.grid(padding=(0, 2))
    for device in devices if len(devices) > 1 else ():
        again = f"tried again in {device.retry_s:.0f} s" if device.state == "away" else ""
        grid.add_row(Text(device.serial), device.state, f"{device.measured} measurements", again)
    return grid


def _table(run: CollectRun) -> RenderableType:
    """What was written, by table, and what it is good for where that is known."""
    dataset, done, expected = run.dataset, run.done, run.expected
    title = f"Dataset of {dataset.folder.name}"
    names = ("file", "rows") + (("within 10 %", "within 5 %", "MAPE") if expected else ())
    table = Table(*names, title=title, title_justify="left")
    looks = {look["target"]: look for look in (expected or {"targets": []})["targets"]}
    for name, rows in dataset.tables().items():
        look = looks.pop(name, {})
        accuracy = _accuracy(look) if expected else ()
        table.add_row(f"t_{name}.csv", str(len(rows.read())), *accuracy)
    for name, look in looks.items():  # the directions of data sharing
        table.add_row(name, str(look["rows"]), *_accuracy(look))
    table.caption = (
        f"{done.rows} rows written in {done.seconds:.0f} s ({STOPPED[done.stopped]}), "
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


def _line(device_news: DeviceStatus) -> str:
    """What became of one of several devices."""
    lost = f", lost {device_news.lost} times" if device_news.lost else ""
    problem = (
        f", {device_news.state}: {device_news.problem.rstrip('.')}" if device_news.problem else ""
    )
    return f". {device_news.serial}: {device_news.measured} measurements{lost}{problem}"


def _accuracy(look: dict[str, Any]) -> list[str]:
    values = [look.get(name) for name in ("acc10", "acc5", "mape")]
    return ["" if value is None else f"{value:.1f} %" for value in values]
