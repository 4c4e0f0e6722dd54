"""`codl tune` and `codl bench`: kernels alone, on this device."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from codl import cache
from codl import soc as socs
from codl.cli.collect import parse_shares, seconds
from codl.cli.devices import SerialOption, check_serial
from codl.cli.output import JsonOption, OutputOption, SocOption, emit, note, progress
from codl.collect.bench import BenchRow, bench
from codl.collect.tasks import load_ops
from codl.collect.tuner import Failure, TuneTask, tune, tune_tasks
from codl.errors import CodlError, UnknownNameError
from codl.kernels.tuned import Trial, Tuned, path_of
from codl.models import MEASURED
from codl.ops import Op, parse, to_text

OpsOption = Annotated[
    list[str] | None,
    typer.Option(help="A .csv file of ops, or an op as text; may be repeated."),
]


def tune_kernels(
    soc: Annotated[
        str | None, typer.Option("--soc", help="A SoC: a name in ./socs, or a .yaml file.")
    ] = None,
    serial: SerialOption = "local",
    models: Annotated[
        str | None,
        typer.Option(
            help=f"Built-in models or .onnx files, by commas; by default {', '.join(MEASURED)}."
        ),
    ] = None,
    ops: OpsOption = None,
    variants: Annotated[
        str | None, typer.Option(help="Only these kernel variants, by commas.")
    ] = None,
    shares: Annotated[
        str, typer.Option(help="The GPU's shares of an op's output that are tuned, 0 ... 1.")
    ] = "1",
    budget: Annotated[
        str | None, typer.Option(help="Stop after this time, such as 90s, 10m or 1h.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop from the cache what was not used for long.")
    ] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Empty the cache first.")] = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Find the fastest tiles and work-groups of every GPU kernel on this device, and keep them.

    What is found holds from then on for measuring, planning and running; tune before `codl
    collect`, so that predictors learn from tuned kernels. Each op is kept as soon as it is done: a
    run that was stopped goes on where it was. --prune and --clear tend the cache, and do so alone
    where no --soc is given.

    [dim]Examples:[/dim]
    codl tune --soc host --serial local --models yolov2 --budget 10m
    codl tune --soc host --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 pad=1"
    codl tune --prune
    """
    check_serial(serial)
    if soc is None and not (prune or clear):
        raise CodlError("Name the SoC to tune for by --soc, or tend the cache by --prune, --clear.")
    cleared = cache.clear() if clear else None
    result = _tuned(soc, models, ops, variants, shares, budget) if soc else _nothing()
    usage = cleared if cleared and not soc else cache.prune()
    result["cache"] = asdict(usage)

    def render() -> Table:
        columns = ("op", "variant", "default ms", "best ms", "speedup", "choice", "tried", "failed")
        table = Table(*columns, title="Tuned kernels", title_justify="left")
        for row in result["rows"]:
            numbers = [f"{row[k]:.4g}" if row[k] else "-" for k in ("default_ms", "best_ms")]
            times = f"{row['speedup']:.2f}" if row["speedup"] else "-"
            chosen = ", ".join(f"{k}={v}" for k, v in row["choice"].items()) or "-"
            counts = (str(row["tried"]), str(row["failed"]))
            table.add_row(row["op"], row["variant"], *numbers, times, chosen, *counts)
        table.caption = (
            f"{result['measured']} measured in {result['seconds']:.0f} s, {result['cached']} in "
            f"the cache before, {result['left']} left; the cache in {usage.folder} has "
            f"{usage.files} files, {usage.bytes / 1e6:.1f} MB, {usage.pruned_files} were pruned"
        )
        return table

    emit("tune", result, render, as_json=json, output=output)


def _nothing() -> dict[str, Any]:
    return {"rows": [], "measured": 0, "cached": 0, "left": 0, "seconds": 0.0}


def _tuned(
    soc: str,
    models: str | None,
    ops: list[str] | None,
    variants: str | None,
    shares: str,
    budget: str | None,
) -> dict[str, Any]:
    described = socs.load(soc)
    limit = None if budget is None else seconds(budget)
    sources = (models.split(",") if models else []) + (ops or [])
    found = _ops(sources or [*MEASURED])
    tasks = _only(tune_tasks(found, described, parse_shares(shares)), variants)
    with progress(f"Tuning on {described.name}") as update:
        done = tune(described, tasks, budget_s=limit, progress=update)
    note(f"Results are kept in {path_of(described)}")
    rows = [_row(result, cached=False) for result in done.results]
    rows += [_row(result, cached=True) for result in done.known]
    rows += [_failed(failure) for failure in done.failures]
    return {
        "soc": described.name,
        "device": described.gpu.name,
        "driver": described.gpu.driver,
        "rows": sorted(rows, key=lambda row: (row["op"], row["variant"])),
        "measured": len(done.results) + len(done.failures),
        "cached": len(done.known),
        "left": done.left,
        "seconds": done.seconds,
    }


def _ops(sources: list[str]) -> list[Op]:
    """The ops of models, of files and of texts; a text is what has a space in it."""
    found: dict[Op, None] = {}
    for source in sources:
        ops = [parse(source)] if " " in source.strip() else load_ops([source])
        found.update(dict.fromkeys(ops))
    return list(found)


def _only(tasks: list[TuneTask], variants: str | None) -> list[TuneTask]:
    if variants is None:
        return tasks
    known, wanted = {task.variant.name for task in tasks}, variants.split(",")
    for name in wanted:
        if name not in known:
            raise UnknownNameError("GPU kernel variant of these ops", name, known)
    return [task for task in tasks if task.variant.name in wanted]


def _row(result: Tuned, *, cached: bool) -> dict[str, Any]:
    return {
        "op": result.op,
        "variant": result.variant,
        "default_ms": result.default_ms,
        "best_ms": result.best_ms,
        "speedup": result.default_ms / result.best_ms if result.default_ms else None,
        "choice": dict(result.choice),
        "status": "ok",
        "reason": "",
        "complete": result.complete,
        "cached": cached,
        "measured": result.measured,
        **_counts(result.trials),
    }


def _failed(failure: Failure) -> dict[str, Any]:
    op, variant = failure.task.key
    empty: dict[str, Any] = dict.fromkeys(("default_ms", "best_ms", "speedup"))
    return {
        "op": op,
        "variant": variant,
        **empty,
        "choice": {},
        "status": "failed",
        "reason": failure.reason,
        **_counts(failure.trials),
    }


def _counts(trials: tuple[Trial, ...]) -> dict[str, Any]:
    failures = [
        {"choice": dict(t.choice), "reason": t.reason} for t in trials if t.latency_ms is None
    ]
    return {"tried": len(trials), "failed": len(failures), "failures": failures}


def bench_kernels(
    soc: SocOption,
    model: Annotated[
        str | None, typer.Argument(help="A built-in model, an .onnx file or a .csv file of ops.")
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="An op as text; may be repeated.")] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Also variants that are not for this SoC.")
    ] = False,
    serial: SerialOption = "local",
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Measure ops in every kernel variant of both processors, in turns.

    Variants that refuse an op, or that fail on it, are listed with the reason.

    [dim]Examples:[/dim]
    codl bench yolov2 --soc host
    codl bench --soc host --op "conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1"
    """
    check_serial(serial)
    found = _ops([*([model] if model else []), *(op or [])])
    if not found:
        raise CodlError('Name a model, or an op by --op "conv2d in=1x64x56x56 oc=128 kernel=3x3".')
    described = socs.load(soc)
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    with progress(f"Measuring on {described.name}") as update:
        for index, each in enumerate(found):
            measured, others = bench(each, described, every=every)
            rows += [_bench_row(each, row) for row in measured]
            refused += [{"op": to_text(each), **asdict(other)} for other in others]
            update(index + 1, len(found), 0.0)
    result = {"soc": described.name, "source": "measured", "ops": rows, "refused": refused}

    def render() -> Table:
        table = Table("op", "variant", "processor", "ms", "GFLOP/s", title="Kernels")
        for row in rows:
            numbers = (f"{row['latency_ms']:.4g}", f"{row['gflops']:.1f}")
            table.add_row(row["op"], row["variant"], row["processor"], *numbers)
        for row in refused:
            table.add_row(row["op"], row["variant"], row["processor"], "-", row["reason"])
        return table

    emit("bench", result, render, as_json=json, output=output)


def _bench_row(op: Op, row: BenchRow) -> dict[str, Any]:
    return {
        "op": to_text(op),
        "variant": row.variant,
        "processor": row.processor,
        "latency_ms": row.latency.median,
        "gflops": row.gflops,
        "p20_ms": row.latency.p20,
        "p80_ms": row.latency.p80,
        "runs": row.latency.runs,
        "choice": None if row.choice is None else dict(row.choice),
    }
