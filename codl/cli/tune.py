"""`codl tune`: the fastest tiles and work-groups of GPU kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from codl.api.job import recorded
from codl.cli import options as opt
from codl.cli.output import emit, note, progress, tell
from codl.errors import UnknownNameError
from codl.frontend.models import MEASURED
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.measure.tuner import FINAL, TuneTask, cut_short, tune_tasks
from codl.records.results import Digests
from codl.records.tuned import Tuned
from codl.report.text_table import Table
from codl.runtime import cache
from codl.targets.base import Target
from codl.targets.connect import connect
from codl.targets.detect import load_local

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
    dataset: opt.ToDatasetsOption = datasets.FOLDER,
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
    described, limit = load_local(soc, serial, precision), opt.budget_of(budget)
    sources = opt.sources_of(models, ops)
    tasks = tune_tasks(load_ops(sources or MEASURED), described, opt.read_shares(shares))
    data = Dataset.of(described.name, dataset)
    if anew:
        tuning_file.forget(data)
    with closing(connect(serial, described)) as target:
        result = _tuned(target, _only(tasks, opt.names_of(variants)), data, limit)
    result["cache"] = asdict(cache.prune())
    emit("tune", result, lambda: _table(result), as_json=json, output=output)
    limit.check(f"All results so far are kept in {tuning_file.path_of(data)}.")


def _tuned(
    target: Target, tasks: Sequence[TuneTask], dataset: Dataset, budget: Budget
) -> dict[str, Any]:
    """What --json holds; of a search that Ctrl-C ended, what was found until then."""
    soc = target.soc
    tuning = tuning_file.read(dataset, soc)
    results: list[Tuned] = []

    def keep(result: Tuned) -> None:
        tuning_file.add(dataset, soc, [result])
        results.append(result)

    origin = recorded(target, Digests(), **asdict(FINAL))
    with progress(f"Tuning on {soc.name}") as update, budget.keeping(results):
        done = target.tune(
            tasks, tuning, keep=keep, budget_s=budget.share().seconds, progress=update
        )
    if budget.ended == "interrupted":
        done = cut_short(tasks, tuning, soc, results, seconds=budget.spent_s)
    elif done.left:
        budget.ended = "budget"
    note(f"Results are kept in {tuning_file.path_of(dataset)}")
    if text := budget.left_out(done.left, "kernels"):
        tell(f"{text} The same command goes on.")
    of = {"soc": soc.name, "device": soc.gpu.name, "driver": soc.gpu.driver, "source": "measured"}
    digests = Digests(tuning=tuning_file.read(dataset, soc).fingerprint)
    return {**of, "stopped": budget.ended, **done.to_json(), **origin, "digests": asdict(digests)}


def _only(tasks: Sequence[TuneTask], wanted: Sequence[str]) -> Sequence[TuneTask]:
    if not wanted:
        return tasks
    names = {task.variant.name for task in tasks}
    for name in wanted:
        if name not in names:
            raise UnknownNameError("GPU kernel variant of these ops", name, names)
    return [task for task in tasks if task.variant.name in wanted]


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
