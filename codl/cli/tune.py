"""`codl tune`: the fastest tiles and work-groups of GPU kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, tell
from codl.measure import FOLDER as DATASETS
from codl.report.text_table import Table

SharesOption = Annotated[
    str,
    typer.Option("--shares", help="The GPU's shares of an op's output that are tuned, 0 ... 1."),
]
AnewOption = Annotated[
    bool, typer.Option("--anew", help="Forget what was tuned for the SoC before.")
]


def tune_kernels(
    soc: opt.SocOption = "",
    serial: opt.SerialOption = "local",
    models: opt.ModelsOption = None,
    ops: opt.OpsOption = None,
    variants: opt.VariantsOption = None,
    shares: SharesOption = "1",
    precision: opt.PrecisionOption = None,
    budget: opt.BudgetOption = None,
    dataset: opt.ToDatasetsOption = DATASETS,
    anew: AnewOption = False,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Find the fastest tiles and work-groups of every GPU kernel on this device, and keep them.

    Without --models and --ops it tunes for the models that `codl collect` measures.

    Results are kept in tuning.json of the SoC's dataset, as soon as each op is done: a run that
    --budget or Ctrl-C stopped goes on where it was. Tune before `codl collect`, so that predictors
    learn from tuned kernels. `codl cache` tends the cache of compiled ones.

    [dim]Examples:[/dim]
    codl tune --soc host --serial local --models yolov2 --budget 10m
    codl tune --soc host --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    """
    from codl.api.tune import tune
    from codl.measure import tuning_file
    from codl.measure.dataset import Dataset
    from codl.targets.detect import load_local

    described, limit = load_local(soc, serial, precision), opt.budget_of(budget)
    data = Dataset.of(described.name, dataset)
    result = tune(
        described,
        serial,
        data,
        sources=opt.sources_of(models, ops),
        variants=opt.names_of(variants),
        shares=opt.read_shares(shares),
        anew=anew,
        budget=limit,
        reporter=TERMINAL,
    )
    if text := limit.left_out(result["left"], "kernels"):
        tell(f"{text} The same command goes on.")
    emit("tune", result, lambda: _table(result), as_json=json, output=output)
    limit.check(f"All results so far are kept in {tuning_file.path_of(data)}.")


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
