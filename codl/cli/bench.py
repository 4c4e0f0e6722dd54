"""`codl bench`: kernels alone, and models that run on and on or beside an interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from codl.api.job import Job, RunOptions, recorded
from codl.cli import options as opt
from codl.cli.bench_models import sustained_result, sustained_table, ui_result, ui_table
from codl.cli.output import TERMINAL, emit, progress, tell
from codl.errors import CodlError
from codl.ir import Op, to_text
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.op_runner import ELSEWHERE
from codl.measure.tasks import load_ops
from codl.measure.timing import Protocol
from codl.records.results import Digests
from codl.records.tuned import BenchRow
from codl.report.text_table import Table
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import load_local

bench_app = typer.Typer(
    help="""Benchmarks: ops, a model on and on, an interface beside one, language models.

[dim]Examples:[/dim]
codl bench ops yolov2
codl bench sustained yolov2 --time 10m
codl bench ui yolov2 --strategy gpu --max-kernel-ms 1
codl bench llm smollm2_135m""",
    no_args_is_help=True,
)
SourceArgument = Annotated[
    str | None, typer.Argument(help="A built-in model, an .onnx file or a .csv file of ops.")
]
#: Said at Ctrl-C.
KEPT = "What was measured before is kept."
EveryOption = Annotated[
    bool, typer.Option("--every", help="Also variants that are not for this SoC.")
]
SustainedTimeOption = Annotated[
    str, typer.Option("--time", help="How long the model runs, such as 10m.", callback=opt.duration)
]
DrawingTimeOption = Annotated[
    str, typer.Option("--time", help="How long to draw beside each.", callback=opt.duration)
]


@bench_app.command("ops")
def bench_ops(
    source: SourceArgument = None,
    soc: opt.SocOption = "",
    ops: opt.OpsOption = None,
    every: EveryOption = False,
    precision: opt.PrecisionOption = None,
    budget: opt.BudgetOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    serial: opt.SerialOption = "local",
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Measure ops in every kernel variant of both processors, in turns.

    Variants that refuse an op, or that fail on it, are listed with the reason; those for other
    types of device, memory or element are counted, and measured with --every. With --budget no op
    is begun that would probably end too late; it and Ctrl-C keep what was measured before.

    [dim]Examples:[/dim]
    codl bench ops yolov2 --soc host
    codl bench ops --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1"
    codl bench ops yolov2 --budget 5m
    """
    sources = opt.sources_of([source] if source else [], ops)
    if not sources:
        raise CodlError('Name a model, or an op by --ops "conv2d in=1x64x56x56 oc=128 kernel=3x3".')
    described, limit = load_local(soc, serial, precision), opt.budget_of(budget)
    measured = _measured(
        load_ops(sources), described, serial, dataset=dataset, every=every, budget=limit
    )
    emit("bench", measured, lambda: _table(measured), as_json=json, output=output)
    if text := limit.left_out(measured["left"], "ops"):
        tell(text)
    limit.check(KEPT)


@bench_app.command("sustained")
def bench_sustained(
    model: opt.ModelArgument,
    soc: opt.SocOption = "",
    time: SustainedTimeOption = "10m",
    strategy: opt.StrategyOption = None,
    precision: opt.PrecisionOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    serial: opt.SerialOption = "local",
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Run a model on and on: does it become slower, and by how much?

    The table has the median and the 95th percentile, clocks and temperature over time, and the
    first minute beside the last. Ctrl-C ends it with what there is so far.

    [dim]Examples:[/dim]
    codl bench sustained yolov2 --time 10m
    codl bench sustained yolov2 --soc host --strategy gpu --time 30s
    """
    job, limit = _job(model, soc, serial, precision, strategy, dataset), Budget()
    ran = sustained_result(job, minutes=opt.read_budget(time, "--time") / 60, budget=limit)
    emit("bench", ran, lambda: sustained_table(ran), as_json=json, output=output)
    limit.check(KEPT)


@bench_app.command("ui")
def bench_interface(
    model: opt.ModelArgument,
    soc: opt.SocOption = "",
    time: DrawingTimeOption = "9s",
    strategy: opt.StrategyOption = None,
    precision: opt.PrecisionOption = None,
    max_kernel_ms: opt.LongestOption = None,
    gpu_duty: opt.DutyOption = None,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    serial: opt.SerialOption = "local",
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Draw an interface at 60 Hz beside a model, on the same GPU: its frames, and what they cost.

    Frames are drawn beside nothing, beside the model as it is, and with --max-kernel-ms and
    --gpu-duty (1 and 0.7 where neither is named). The table has the frames on time, the worst
    stall, and what the limits cost in latency. Nothing else may draw on the GPU meanwhile.

    [dim]Example:[/dim] codl bench ui yolov2 --strategy gpu --max-kernel-ms 1 --gpu-duty 0.7
    """
    job, limit = _job(model, soc, serial, precision, strategy, dataset), Budget()
    job = replace(job, options=RunOptions(max_kernel_ms=max_kernel_ms, gpu_duty=gpu_duty))
    drawn = ui_result(job, seconds=opt.read_budget(time, "--time"), budget=limit)
    emit("bench", drawn, lambda: ui_table(drawn), as_json=json, output=output)
    limit.check(KEPT)


def _job(
    model: str,
    soc: str,
    serial: str,
    precision: str | None,
    strategy: str | None,
    dataset: Path,
) -> Job:
    return Job(
        model=model,
        soc=soc,
        serial=serial,
        precision=precision,
        strategy=strategy,
        dataset=dataset,
        reporter=TERMINAL,
    )


def _measured(
    ops: Sequence[Op], soc: LocalSoc, serial: str, *, dataset: Path, every: bool, budget: Budget
) -> dict[str, Any]:
    """What --json holds, of as many ops as there is time for."""
    tuning = tuning_file.read(Dataset.found(soc.name, dataset), soc)
    done: list[Op] = []
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    elsewhere = 0
    with (
        closing(connect(serial, soc)) as target,
        progress(f"Measuring on {soc.name}") as update,
    ):
        origin = recorded(target, Digests(tuning=tuning.fingerprint), **asdict(Protocol()))
        with budget.keeping(done):
            for each in budget.steps(ops, update):
                measured, others = target.bench(each, tuning, every=every)
                rows += [_row(each, row) for row in measured]
                here = [other for other in others if every or other.reason != ELSEWHERE]
                refused += [{"op": to_text(each), **asdict(other)} for other in here]
                elsewhere += len(others) - len(here)
                done.append(each)
    return {
        "soc": soc.name,
        "source": "measured",
        "ops": rows,
        "refused": refused,
        "elsewhere": elsewhere,
        "stopped": budget.ended,
        "left": len(ops) - len(done),
        **origin,
    }


def _row(op: Op, row: BenchRow) -> dict[str, Any]:
    return {
        "op": to_text(op),
        "variant": row.variant,
        "processor": row.processor,
        "latency_ms": row.latency.level,
        "gflops": row.gflops,
        "p20_ms": row.latency.p20,
        "p80_ms": row.latency.p80,
        "runs": row.latency.runs,
        "choice": None if row.choice is None else dict(row.choice),
    }


def _table(result: Mapping[str, Any]) -> Table:
    table = Table("op", "variant", "processor", "ms", "GFLOP/s", title="Kernels")
    for row in result["ops"]:
        numbers = (f"{row['latency_ms']:.4g}", f"{row['gflops']:.1f}")
        table.add_row(row["op"], row["variant"], row["processor"], *numbers)
    for row in result["refused"]:
        table.add_row(row["op"], row["variant"], row["processor"], "-", row["reason"])
    if result["elsewhere"]:
        table.caption = f"{result['elsewhere']} more are for other SoCs: --every lists them"
    return table
