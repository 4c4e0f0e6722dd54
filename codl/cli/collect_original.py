"""`codl collect --runner codl_op_run`: the original CoDL's program measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args

import typer

from codl.cli.base_options import MOST_ROUNDS
from codl.cli.output import note, progress
from codl.errors import CodlError, UnknownNameError
from codl.measure.budget import Budget
from codl.measure.codl_op_run import collector
from codl.measure.codl_op_run.command import WARM_UP, MemoryType, Options, as_run
from codl.measure.codl_op_run.shell import LocalShell, Shell
from codl.measure.collector import Collected
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.targets.connect import machine_of

RUNNERS = ("codl", "codl_op_run")


def _known_runner(runner: str) -> str:
    if runner not in RUNNERS:
        raise UnknownNameError("runner", runner, RUNNERS)
    return runner


RunnerOption = Annotated[
    str,
    typer.Option(
        "--runner",
        callback=_known_runner,
        help=f"What measures: {RUNNERS[0]}, or {RUNNERS[1]}, the original CoDL's program on the "
        "device, which has kernels of its own.",
    ),
]
ProgramOption = Annotated[
    str, typer.Option("--program", help="Where codl_op_run lies on the device.")
]
MemoryTypeOption = Annotated[
    str,
    typer.Option(
        "--gpu-memory-type",
        help=f"What codl_op_run keeps the GPU's tensors in: {' or '.join(get_args(MemoryType))}.",
    ),
]
RoundsOption = Annotated[
    int,
    typer.Option(
        "--rounds",
        min=WARM_UP + 1,
        max=MOST_ROUNDS,
        help=f"How often codl_op_run runs an op; the first {WARM_UP} do not count.",
    ),
]
DEFAULTS = Options()


def options_of(program: str, memory_type: str, rounds: int) -> Options:
    """How the program is called, but for its threads; raises `CodlError` for what cannot be."""
    if "=" in program or program.startswith("-"):
        raise CodlError(f"--program must be a path without =, got {program!r}.")
    for known in get_args(MemoryType):
        if memory_type == known:
            return Options(program=program, memory_type=known, rounds=rounds)
    raise UnknownNameError("type of memory", memory_type, get_args(MemoryType))


def collect_original(
    soc: str,
    serial: str,
    options: Options,
    *,
    ops: Sequence[str],
    shares: Sequence[float],
    root: Path,
    resume: bool,
    budget_s: float | None,
    samples: int | None,
) -> tuple[Dataset, Collected]:
    """Collect a dataset of the program's kernels; the SoC's file is completed where it must be."""
    shell = shell_of(serial)
    collector.check_program(shell, options.program, serial)
    described = collector.soc_of(soc)
    options = replace(options, threads=described.cpu.threads)
    wanted = load_ops(ops)
    tasks = collector.make_tasks(wanted, described, options, shares)
    if not tasks:
        raise CodlError(
            "codl_op_run has none of these ops: it has convolutions without groups or dilation, "
            "pooling and fully connected layers."
        )
    others = sum(as_run(op) is None for op in wanted)
    if others:
        note(f"{others} ops left out: codl_op_run has none like them")
    dataset = Dataset.of(described.name, root)
    with progress(f"codl_op_run on {described.name}") as update:
        done = collector.collect(
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
    return dataset, done


def shell_of(serial: str) -> Shell:
    """The shell of a device, or of this machine."""
    shell = machine_of(serial, "run codl_op_run").shell
    return LocalShell() if shell is None else shell(serial)
