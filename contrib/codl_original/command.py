"""`codl collect-original`: the original CoDL's program measures a dataset."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from codl.cli.output import Output, note, progress
from codl.errors import CodlError, UnknownNameError
from codl.frontend.models import MEASURED
from codl.jobs import options as opt
from codl.jobs.collect import SharesOption
from codl.measure import FOLDER as DATASETS
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.tasks import FEW_SHARES, SHARES, load_ops
from codl_original.collector import check_program, collect, make_tasks, shell_of, soc_of
from codl_original.program import MEMORY_TYPES, PROGRAM, ROUNDS, WARM_UP, Options, as_run

ProgramOption = Annotated[
    str, typer.Option("--program", help="Where codl_op_run is on the device.")
]
MemoryTypeOption = Annotated[
    str,
    typer.Option(
        "--gpu-memory-type", help=f"Memory of the GPU's tensors: {' or '.join(MEMORY_TYPES)}."
    ),
]
RoundsOption = Annotated[
    int,
    typer.Option(
        "--rounds",
        min=WARM_UP + 1,
        max=opt.MOST_ROUNDS,
        help=f"Runs of each op; the first {WARM_UP} do not count.",
    ),
]


def collect_original(
    out: Output,
    soc: opt.SocOption = "",
    serial: opt.SerialOption = "local",
    models: opt.ModelNamesOption = (),
    ops: opt.OpsOption = (),
    shares: SharesOption = None,
    budget_s: opt.BudgetOption = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="Stop after this many measurements.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Add to an existing dataset.")] = False,
    program: ProgramOption = PROGRAM,
    gpu_memory_type: MemoryTypeOption = "image",
    rounds: RoundsOption = ROUNDS,
    datasets_folder: opt.ToDatasetsOption = DATASETS,
) -> None:
    """Measure ops with the original CoDL's program codl_op_run and its kernels.

    Rows have `source: replayed`: predictors can be trained and plans made, but nothing can run.
    A published SoC is completed in ./socs.

    [dim]Example:[/dim] codl collect-original --soc sdm855 --serial 3a9c4f5 --models yolov2
    """
    if "=" in program or program.startswith("-"):
        raise CodlError(f"--program must be a path without =, got {program!r}.")
    if gpu_memory_type not in MEMORY_TYPES:
        raise UnknownNameError("type of memory", gpu_memory_type, MEMORY_TYPES)
    shell = shell_of(serial)
    check_program(shell, program, serial)
    described = soc_of(str(soc))
    options = Options(program, gpu_memory_type, described.cpu.threads, rounds)  # type: ignore[arg-type]
    wanted = load_ops((*models, *ops) or MEASURED)
    usual = SHARES if budget_s is None else FEW_SHARES
    tasks = make_tasks(wanted, described, options, shares or usual)
    if not tasks:
        raise CodlError(
            "codl_op_run has none of these ops: it has convolutions without groups or dilation, "
            "pooling and fully connected layers."
        )
    if others := sum(as_run(op) is None for op in wanted):
        note(f"{others} ops left out: codl_op_run has none like them")
    dataset = Dataset.of(described.name, datasets_folder)
    with progress(f"codl_op_run on {described.name}") as update:
        done = collect(
            shell,
            dataset,
            described,
            tasks,
            options,
            serial=serial,
            resume=resume,
            budget=Budget(budget_s),
            samples=samples,
            progress=update,
        )
    text = f"{done.rows} rows in {dataset.folder} ({done.failed} failed), {done.left} left"
    out.emit("collect-original", asdict(done), lambda: text)
