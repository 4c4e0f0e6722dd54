"""`codl bench`: kernels alone, on this device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from codl.api.job import Job, RunOptions, recorded
from codl.cli import options as opt
from codl.cli.bench_models import sustained_result, sustained_table, ui_result, ui_table
from codl.cli.output import TERMINAL, emit, note, progress
from codl.errors import CodlError
from codl.ir import Op, to_text
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.op_runner import ELSEWHERE
from codl.measure.timing import Protocol
from codl.records.results import Digests
from codl.records.tuned import BenchRow
from codl.report.text_table import Table
from codl.runtime.placement import LocalSoc
from codl.targets.connect import connect
from codl.targets.detect import load_local

ModelArgument = Annotated[
    str | None, typer.Argument(help="A built-in model, an .onnx file or a .csv file of ops.")
]
OpOption = Annotated[list[str] | None, typer.Option("--op", help="An op as text; may be repeated.")]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        callback=opt.positive,
        help="Run the model on and on for this time, instead of its ops.",
    ),
]
UiOption = Annotated[
    bool, typer.Option("--ui", help="Draw an interface at 60 Hz beside the model instead.")
]
SecondsOption = Annotated[
    float,
    typer.Option(
        "--seconds", callback=opt.positive, help="With --ui: how long to draw beside each."
    ),
]
#: Said at Ctrl-C.
KEPT = "What was measured before is kept."
EveryOption = Annotated[
    bool, typer.Option("--every", help="Also variants that are not for this SoC.")
]


def bench_kernels(
    soc: opt.SocOption,
    model: ModelArgument = None,
    op: OpOption = None,
    every: EveryOption = False,
    precision: opt.PrecisionOption = None,
    budget: opt.BudgetOption = None,
    minutes: MinutesOption = None,
    ui: UiOption = False,
    strategy: opt.StrategyOption = None,
    max_kernel_ms: opt.LongestOption = None,
    gpu_duty: opt.DutyOption = None,
    seconds: SecondsOption = 9.0,
    dataset: opt.DatasetsOption = datasets.FOLDER,
    serial: opt.SerialOption = "local",
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Measure ops in every kernel variant of both processors, in turns.

    Variants that refuse an op, or that fail on it, are listed with the reason; those for other
    types of device, memory or element are counted, and measured with --every. With --budget no op
    is begun that would probably end too late; it and Ctrl-C keep what was measured before.

    With --minutes the model runs as a whole, one inference behind the other: median and 95th
    percentile, clocks and temperature over time, the first minute beside the last, and how much
    slower it has become. Ctrl-C ends it with what there is so far.

    With --ui the model runs as a whole, while another process draws an interface at 60 Hz on the
    same GPU: its frames on time and its worst stall, beside nothing, beside the model as it is, and
    with --max-kernel-ms and --gpu-duty (1 and 0.7 where neither is named), and what those cost in
    latency. Nothing else may draw on the GPU meanwhile.

    [dim]Examples:[/dim]
    codl bench yolov2 --soc host
    codl bench --soc host --op "conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=1 pad=1"
    codl bench yolov2 --soc host --budget 5m
    codl bench yolov2 --soc host --minutes 10
    codl bench yolov2 --soc host --ui --strategy gpu --max-kernel-ms 1 --gpu-duty 0.7
    """
    sources = [*([model] if model else []), *(op or [])]
    if not sources:
        raise CodlError('Name a model, or an op by --op "conv2d in=1x64x56x56 oc=128 kernel=3x3".')
    described, limit = load_local(soc, serial, precision), opt.budget_of(budget)
    if minutes is not None and ui:
        raise CodlError("--minutes and --ui are two benchmarks: name one of them.")
    if budget is not None and (ui or minutes is not None):
        raise CodlError("--budget is for ops: --minutes and --seconds say how long a model runs.")
    if ui or minutes is not None:
        if model is None or op:
            raise CodlError(
                f"{'--ui' if ui else '--minutes'} runs one model: name it, and no --op."
            )
        limits = RunOptions(max_kernel_ms=max_kernel_ms, gpu_duty=gpu_duty) if ui else RunOptions()
        job = Job(
            model=model,
            soc=soc,
            serial=serial,
            precision=precision,
            strategy=strategy,
            dataset=dataset,
            options=limits,
            reporter=TERMINAL,
        )
        if minutes is None:
            drawn = ui_result(job, seconds=seconds, budget=limit)
            emit("bench", drawn, lambda: ui_table(drawn), as_json=json, output=output)
        else:
            ran = sustained_result(job, minutes=minutes, budget=limit)
            emit("bench", ran, lambda: sustained_table(ran), as_json=json, output=output)
        limit.check(KEPT)
        return
    ops = opt.read_ops(sources)
    measured = _measured(ops, described, serial, dataset=dataset, every=every, budget=limit)
    emit("bench", measured, lambda: _table(measured), as_json=json, output=output)
    if text := limit.left_out(measured["left"], "ops"):
        note(text)
    limit.check(KEPT)


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
