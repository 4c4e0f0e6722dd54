"""Collects a dataset by the original CoDL's program, with one call for each row."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import get_args

import numpy as np

from codl import files
from codl.errors import DeviceError, MismatchError
from codl.files import now, provenance
from codl.ir import Op, to_text
from codl.ir.ops.convolution import Conv2d
from codl.ir.records import soc as socs
from codl.ir.records.soc import Soc
from codl.ir.types import Processor
from codl.measure.budget import Budget, Progress, no_progress
from codl.measure.collector import Collected, RowWriter, Stopped, open_manifest
from codl.measure.dataset import Dataset, OpRow
from codl.measure.tasks import SEED, SHARES, OpTask, op_tasks
from codl.targets.connect import machine_of
from codl.targets.device_shell import DeviceShell
from codl_original.program import Options, as_run, op_command, read_stat
from codl_published.importer import describe
from codl_published.variants import MACE_MEMORY, mace_cpu_kernel

#: The shell of this machine.
HERE = DeviceShell("local", ("sh", "-c"), ".")
#: What rows say of these latencies, which are of kernels that codl does not have.
SOURCE = "replayed"
#: Parts of a convolution on the CPU that the program times; of every other op it is one.
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
                "cannot be mixed with them. Name another SoC, such as one of `codl soc list` with "
                "published facts."
            )
        return described
    text = f"{described.description}, with the kernels of the original CoDL"
    soc = describe(name, {"description": text}, published=described)
    soc.save(socs.own_path_of(name))
    return soc


def make_tasks(
    ops: Iterable[Op], soc: Soc, options: Options, shares: Sequence[float] = SHARES
) -> list[OpTask]:
    """All measurements of the ops that the program has: whole ops first, then in random order."""
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
    """Measure `tasks` by the program until all are done, or a limit is reached.

    Each row is written at once; a call of the program that fails gives a failed row.
    Raises `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where it is
    that of another SoC, and `DeviceError` where the device went away.
    """
    budget = budget or Budget()
    with files.locked(dataset.folder):
        manifest = open_manifest(dataset, soc, soc.source, resume=resume)
        run = f"run{len(manifest['runs']) + 1}"
        how = {"source": SOURCE, "runner": "codl_op_run", "serial": serial}
        protocol = {**asdict(options), "statistic": STATISTIC}
        manifest["runs"][run] = {**provenance(), **how, "protocol": protocol}
        dataset.write_manifest(manifest)
        writer = RowWriter(dataset)
        missing = [task for task in tasks if writer.lacks(task)]
        wanted = missing[:samples]
        stopped: Stopped = "done" if len(wanted) == len(missing) else "samples"
        for task in budget.steps(wanted, progress):
            writer.write([(task, measured(shell, task, options, run=run))])
        if budget.ended == "budget":
            stopped = "budget"
        tables = dataset.tables().values()
        manifest["runs"][run]["ended"] = now()
        manifest["files"] = {table.path.name: len(table.read()) for table in tables}
        dataset.write_manifest(manifest)
        return Collected(
            rows=writer.rows,
            failed=writer.failed,
            skipped=len(tasks) - len(missing),
            left=sum(writer.lacks(task) for task in tasks),
            again=0,
            seconds=budget.spent_s,
            stopped=stopped,
            files=tuple(str(table.path) for table in tables),
        )


def measured(shell: DeviceShell, task: OpTask, options: Options, *, run: str) -> OpRow:
    """The row of one call of the program; raises `DeviceError` where the device went away.

    Percentiles are the mean itself where the program did not print its rounds.
    """
    op, part = to_text(task.op), to_text(task.part)
    row = OpRow(op=op, dim=task.dim, share=task.share, part=part, source=SOURCE, run=run)
    try:
        output = shell.run(op_command(task.part, task.processor, options), limit_s=options.limit_s)
    except DeviceError as error:
        _check_shell(shell, str(error))
        return _failed(row, error)
    try:
        stat = read_stat(output)
        expected = PARTS.get(task.variant, 1) if isinstance(task.part, Conv2d) else 1
        if len(stat.parts_ms) != expected:  # a kernel is known by its number of parts
            raise DeviceError(
                f"{task.variant} has {expected} parts and the program printed "
                f"{len(stat.parts_ms)}: it ran another kernel"
            )
    except DeviceError as error:
        return _failed(row, error)
    rounds = stat.rounds_ms if len(stat.rounds_ms) == options.counted else (stat.latency_ms,)
    p20, p80 = map(float, np.percentile(rounds, (20, 80)))
    counted, latency_ms = options.counted, stat.latency_ms
    return replace(row, runs=counted, latency_ms=latency_ms, p20_ms=p20, p80_ms=p80)


def _failed(row: OpRow, error: Exception) -> OpRow:
    return replace(row, status="failed", reason=" ".join(str(error).split())[:300])


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
