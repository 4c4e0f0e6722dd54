"""`codl collect --runner codl_op_run`: the original CoDL's program measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from codl.cli.output import note, progress
from codl.contrib.original import collector
from codl.contrib.original.program import WARM_UP, LocalShell, MemoryType, Options, Shell, as_run
from codl.errors import CodlError, UnknownNameError
from codl.measure.budget import Budget
from codl.measure.collector import Collected
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.targets.connect import machine_of


def options_of(given: Mapping[str, Any]) -> Options:
    """How the program is called, but for its threads; raises `CodlError` for what cannot be."""
    options = Options(**given)
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
    given: Mapping[str, Any],
    *,
    ops: Sequence[str],
    shares: Sequence[float],
    root: Path,
    resume: bool,
    budget_s: float | None,
    samples: int | None,
) -> tuple[Dataset, Collected]:
    """Collect a dataset of the program's kernels; the SoC's file is completed where it must be.

    `given` are fields of `Options`.
    """
    shell, options = shell_of(serial), options_of(given)
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
