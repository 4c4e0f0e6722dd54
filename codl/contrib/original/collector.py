"""Collects a dataset by the original CoDL's program: a call a row, of the program's own kernels."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from codl import files
from codl.cli.output import note
from codl.cli.output import progress as shown
from codl.contrib.importers.importer import describe
from codl.contrib.original.program import (
    WARM_UP,
    MemoryType,
    Options,
    Stat,
    as_run,
    op_command,
    read_stat,
)
from codl.errors import CodlError, DeviceError, MismatchError, UnknownNameError
from codl.ir import Op, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.types import Processor
from codl.kernels.replayed import MACE_MEMORY, mace_cpu_kernel
from codl.measure.budget import Budget, Progress, no_progress
from codl.measure.collector import Collected, Stopped
from codl.measure.dataset import Dataset, OpRow
from codl.measure.dataset_writer import RowWriter, open_manifest
from codl.measure.tasks import SEED, SHARES, OpTask, load_ops, op_tasks
from codl.provenance import now, provenance
from codl.records import soc as socs
from codl.records.soc import Soc
from codl.targets.connect import machine_of
from codl.targets.device_shell import DeviceShell

#: Programs of this machine are run as those of a device are.
HERE = DeviceShell("local", ("sh", "-c"), ".")
#: What rows and manifests say of these latencies.
SOURCE = "codl_op_run"
#: How many parts the program times of a convolution on the CPU; of everything else it is one.
PARTS = {"cpu_mace_direct": 3, "cpu_mace_gemm": 3, "cpu_mace_winograd": 5}
STATISTIC = "the mean over the rounds behind the first 10"


def shell_of(serial: str) -> DeviceShell:
    """The shell of a device, or of this machine."""
    shell = machine_of(serial, "run codl_op_run").shell
    return HERE if shell is None else shell(serial)


def soc_of(name: str) -> Soc:
    """The SoC whose latencies the program is to measure.

    One with published facts is completed, and written to `./socs`. Raises `MismatchError` for a SoC
    whose latencies are of codl's own kernels.
    """
    described = socs.read(name)
    if isinstance(described, Soc):
        if not described.is_replayed:
            raise MismatchError(
                f"{socs.path_of(name)} describes a SoC of codl's own kernels; those of codl_op_run "
                "cannot be mixed with them. Name another SoC: `codl soc list` has those of "
                "published facts, `codl soc import` makes one."
            )
        return described
    text = f"{described.description}, with the kernels of the original CoDL"
    soc = describe(name, {"description": text}, published=described)
    soc.save(socs.own_path_of(name))
    return soc


def make_tasks(
    ops: Iterable[Op], soc: Soc, options: Options, shares: Sequence[float] = SHARES
) -> list[OpTask]:
    """All measurements of those ops that the program has: whole ops first, else in random order."""
    runs = dict.fromkeys(run for run in map(as_run, ops) if run is not None)
    memory = next(name for name, kind in MACE_MEMORY.items() if kind == options.memory_type)
    tasks = [
        task
        for op in runs
        for processor in get_args(Processor)
        for task in op_tasks(op, processor, soc, shares)
        if task.variant in (f"cpu_{mace_cpu_kernel(task.part)}", f"gpu_{memory}")
    ]
    random.Random(SEED).shuffle(tasks)
    return sorted(tasks, key=lambda task: task.share != 1)


def collect(
    shell: DeviceShell,
    dataset: Dataset,
    soc: Soc,
    tasks: Sequence[OpTask],
    options: Options,
    *,
    serial: str,
    resume: bool = False,
    budget: Budget | None = None,
    samples: int | None = None,
    progress: Progress = no_progress,
) -> Collected:
    """Measure `tasks` by the program behind a shell until all are done, or a limit is reached.

    A row is on disk before the next is begun. What the program cannot measure is a failed row.
    Raises `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where it is
    that of another SoC, and `DeviceError` where the device went away.
    """
    budget = budget or Budget()
    with files.locked(dataset.folder):
        run = _begin(dataset, soc, options, serial=serial, resume=resume)
        writer = RowWriter(dataset)
        missing = [task for task in tasks if writer.lacks(task)]
        wanted = missing[:samples]
        stopped: Stopped = "done" if len(wanted) == len(missing) else "samples"
        for task in budget.steps(wanted, progress):
            writer.write([(task, measured(shell, task, options, run=run))])
        if budget.ended == "budget":
            stopped = "budget"
        _finish(dataset, run)
        return Collected(
            rows=writer.rows,
            failed=writer.failed,
            skipped=len(tasks) - len(missing),
            left=sum(writer.lacks(task) for task in tasks),
            again=0,
            seconds=budget.spent_s,
            stopped=stopped,
            files=tuple(str(table.path) for table in dataset.tables().values()),
        )


def measured(shell: DeviceShell, task: OpTask, options: Options, *, run: str) -> OpRow:
    """The row of one call of the program; raises `DeviceError` where the device went away."""
    row = OpRow(
        op=to_text(task.op),
        dim=task.dim,
        share=task.share,
        part=to_text(task.part),
        source=SOURCE,
        run=run,
    )
    command = op_command(task.part, task.processor, options)
    try:
        output = shell.run(command, limit_s=options.limit_s)
    except DeviceError as error:
        _check_shell(shell, str(error))
        return _failed(row, error)
    try:
        stat = read_stat(output)
        _check_parts(stat, task)
    except DeviceError as error:
        return _failed(row, error)
    return _filled(row, stat, options)


def _filled(row: OpRow, stat: Stat, options: Options) -> OpRow:
    """The row with its latency; percentiles where the rounds were printed, else the mean itself."""
    whole = stat.rounds_ms if len(stat.rounds_ms) == options.counted else (stat.latency_ms,)
    p20, p80 = np.percentile(whole, (20, 80))
    return replace(
        row,
        latency_ms=stat.latency_ms,
        p20_ms=float(p20),
        p80_ms=float(p80),
        runs=options.counted,
    )


def _failed(row: OpRow, error: Exception) -> OpRow:
    reason = " ".join(str(error).split())[:300]
    return replace(row, status="failed", reason=reason)


def _check_parts(stat: Stat, task: OpTask) -> None:
    """A kernel is known by how many parts it has: another number means that another one ran."""
    expected = PARTS.get(task.variant, 1) if isinstance(task.part, Conv2d) else 1
    if len(stat.parts_ms) != expected:
        raise DeviceError(
            f"{task.variant} has {expected} parts and the program printed {len(stat.parts_ms)}: it "
            "ran another kernel, as one that is built otherwise than the original's does"
        )


def check_program(shell: DeviceShell, program: str, serial: str) -> None:
    """Raise `DeviceError` where the program is not there or cannot be run."""
    try:
        shell.run(["test", "-x", program])
    except DeviceError as error:
        _check_shell(shell, str(error))
        raise DeviceError(
            f"There is no program {program!r} on {serial!r} that can be run. "
            "push_executable_files.sh of the original puts it on a phone; --program says where "
            "else it lies."
        ) from None


def _check_shell(shell: DeviceShell, problem: str) -> None:
    """Raise `DeviceError` with a problem where the device does not even run `true`."""
    try:
        shell.run(["true"])
    except DeviceError:
        raise DeviceError(f"{problem} Rows so far are kept: --resume goes on from there.") from None


def _begin(dataset: Dataset, soc: Soc, options: Options, *, serial: str, resume: bool) -> str:
    """Write or extend the manifest; returns the name of this run."""
    manifest = open_manifest(dataset, soc, soc.source, resume=resume)
    run = f"run{len(manifest['runs']) + 1}"
    protocol = {**asdict(options), "statistic": STATISTIC}
    manifest["runs"][run] = {
        **provenance(),
        "source": SOURCE,
        "runner": SOURCE,
        "serial": serial,
        "protocol": protocol,
    }
    dataset.write_manifest(manifest)
    return run


def _finish(dataset: Dataset, run: str) -> None:
    manifest = dataset.manifest()
    manifest["runs"][run]["ended"] = now()
    manifest["files"] = {t.path.name: len(t.read()) for t in dataset.tables().values()}
    dataset.write_manifest(manifest)


def options_of(fields: Mapping[str, Any]) -> Options:
    """How the program is called, but for its threads; raises `CodlError` for what cannot be."""
    options = Options(**fields)
    if "=" in options.program or options.program.startswith("-"):
        raise CodlError(f"--program must be a path without =, got {options.program!r}.")
    if options.memory_type not in get_args(MemoryType):
        raise UnknownNameError("type of memory", options.memory_type, get_args(MemoryType))
    if options.counted < 1:
        raise CodlError(f"--rounds must be at least {WARM_UP + 1}, got {options.rounds}.")
    return options


def collect_original(
    soc: str,
    serial: str,
    fields: Mapping[str, Any],
    *,
    ops: Sequence[str],
    shares: Sequence[float],
    root: Path,
    resume: bool,
    budget_s: float | None,
    samples: int | None,
) -> tuple[Dataset, Collected]:
    """Collect a dataset of the program's kernels; the SoC's file is completed where it must be.

    `fields` are those of `Options`.
    """
    shell, options = shell_of(serial), options_of(fields)
    check_program(shell, options.program, serial)
    described = soc_of(soc)
    options = replace(options, threads=described.cpu.threads)
    wanted = load_ops(ops)
    tasks = make_tasks(wanted, described, options, shares)
    if not tasks:
        raise CodlError(
            "codl_op_run has none of these ops: it has convolutions without groups or dilation, "
            "pooling and fully connected layers."
        )
    others = sum(as_run(op) is None for op in wanted)
    if others:
        note(f"{others} ops left out: codl_op_run has none like them")
    dataset = Dataset.of(described.name, root)
    with shown(f"codl_op_run on {described.name}") as update:
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
    return dataset, done
