"""`codl tune`: the fastest tiles and work-groups of GPU kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codl.cli.output import JsonOption, OutputOption, emit, tell
from codl.jobs.tune import Tune
from codl.report.text_table import Table


def tune_kernels(job: Tune, json: JsonOption = False, output: OutputOption = None) -> None:
    """Without --models and --ops it tunes for the models that `codl collect` measures.

    Results are kept in tuning.json of the SoC's dataset, as soon as each op is done: a run that
    --budget or Ctrl-C stopped goes on where it was. Tune before `codl collect`, so that predictors
    learn from tuned kernels. `codl cache` tends the cache of compiled ones.

    [dim]Examples:[/dim]
    codl tune --soc host --serial local --models yolov2 --budget 10m
    codl tune --soc host --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    """
    run = job.run()
    if text := run.budget.left_out(run.result["left"], "kernels"):
        tell(f"{text} The same command goes on.")
    emit("tune", run.result, lambda: _table(run.result), as_json=json, output=output)
    run.budget.check(run.kept)


def _table(result: Mapping[str, Any]) -> Table:
    columns = ("op", "variant", "default ms", "best ms", "speedup", "choice", "tried", "failed")
    table = Table(
        *columns,
        spare=("tried", "failed", "default ms"),
        title="Tuned kernels",
        title_justify="left",
    )
    for row in result["rows"]:
        numbers = [f"{row[k]:.4g}" if row[k] else "-" for k in ("default_ms", "best_ms")]
        times = f"{row['speedup']:.2f}" if row["speedup"] else "-"
        chosen = ", ".join(f"{k}={v}" for k, v in row["choice"].items()) or "-"
        counts = (str(row["tried"]), str(row["failed"]))
        table.add_row(row["op"], row["variant"], *numbers, times, chosen, *counts)
    usage = result["cache"]
    table.caption = (
        f"{result['measured']} measured in {result['seconds']:.0f} s, {result['cached']} known "
        f"before, {result['left']} left; the cache in {usage['folder']} has "
        f"{usage['files']} files, {usage['bytes'] / 1e6:.1f} MB, {usage['pruned_files']} were "
        "pruned"
    )
    return table
