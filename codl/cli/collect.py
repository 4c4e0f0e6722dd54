"""`codl collect`: measures operators and data sharing into a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codl.cli.output import Output, tell
from codl.jobs.collect import Collect, Tune
from codl.report.results import CollectResult, parse_as
from codl.report.tables import collect_content
from codl.report.text_table import TextTable


def collect_data(job: Collect, out: Output) -> None:
    """Ops are measured in turns, in batches of about ten seconds, so a disturbance hits few samples
    of each. Rows are written after each batch; --resume continues a run that was killed. The run
    ends when everything is measured, after --budget, or after --samples.

    --budget includes reading models. It measures whole ops first, then their parts, then similar
    ops, in random order each.

    Rows have temperature, clocks and battery. Throttled rows are repeated, hot devices get pauses,
    and a battery below 20 % ends the run.

    A SoC file with published facts alone is completed by the device before anything is measured.
    A device with another chip is refused.

    A lost device is tried again for five minutes.
    With --serial replay:DIR nothing runs: the rows of that dataset are written again, in another
    order or within a budget.

    [dim]Examples:[/dim]
    codl collect --soc host --serial local
    codl collect --soc host --serial local --resume --models yolov2 --budget 10m
    codl collect --soc sdm865 --serial R58M123ABC --budget 30m
    codl collect --soc phone --serial X --cool-down 5m
    codl collect --soc rk3588 --serial ssh://pi@one.local
    codl collect --soc host --serial replay:lat_datasets/host --budget 10m --datasets tried
    """
    run = job.run()
    result = run.to_json()

    def render() -> TextTable:
        soc = run.dataset.folder.name
        return collect_content(parse_as(CollectResult, {"soc": soc, **result}))

    out.emit("collect", result, render)
    run.check()


def tune_kernels(job: Tune, out: Output) -> None:
    """Without --models and --ops it tunes for the models of `codl collect`. Results are saved in
    the dataset's tuning.json after each op, and a second start continues. Tune before `codl
    collect`, so that predictors learn from tuned kernels.

    [dim]Examples:[/dim]
    codl tune --soc host --serial local --models yolov2 --budget 10m
    codl tune --soc host --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    """
    run = job.run()
    if text := run.budget.left_out(run.result["left"], "kernels"):
        tell(f"{text} The same command goes on.")
    out.emit("tune", run.result, lambda: _tuned_table(run.result))
    run.budget.check(run.kept)


def _tuned_table(result: Mapping[str, Any]) -> TextTable:
    rows = [
        (row["op"], row["variant"], row["default_ms"] or None, row["best_ms"] or None,
         row["speedup"] or None, ", ".join(f"{k}={v}" for k, v in row["choice"].items()),
         row["tried"], row["failed"])
        for row in result["rows"]
    ]  # fmt: skip
    caption = (
        f"{result['measured']} measured in {result['seconds']:.0f} s, {result['cached']} known "
        f"before, {result['left']} left.",
    )
    heads = ("op", "variant", "default (ms)", "best (ms)", "speedup", "choice", "tried", "failed")
    spare = ("tried", "failed", "default (ms)")
    return TextTable.plain("Tuned kernels", heads, rows, caption, spare=spare)
