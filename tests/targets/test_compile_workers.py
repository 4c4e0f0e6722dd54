"""Kernels compiled ahead by other processes, also by such as die of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.devices import here
from support.whole_way import QUICK

from codl.ir import parse
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.source import compile_options, source_digest, text_of
from codl.kernels.tuning import Tuning
from codl.machine import cache
from codl.machine.placement import LocalSoc
from codl.measure import drift as anchors
from codl.measure.collector import Collection
from codl.measure.dataset import Dataset
from codl.measure.tasks import OpTask, Task, make_tasks
from codl.runtime.program_cache import Compilation
from codl.targets import compile_workers as ahead
from codl.targets.compile_workers import MOST_ON_GPU, CompileWorkers, needs_kernels, worker_count
from codl.targets.local import LocalTarget

OPS = [parse(f"conv2d in=1x16x9x9 oc=16 kernel=3x3 pad=1 {act}") for act in ("", "act=relu")]
#: A worker that dies of convolutions with an activation in one variant, as of a driver's failure.
DYING = """
import os
from codl.measure.runner import Bench
compile = Bench.compile
def deadly(self, task):
    if task.op.activation.kind == "relu" and task.variant == "gpu_direct":
        os._exit(3)
    compile(self, task)
Bench.compile = deadly
from codl.targets.agent import main
main(0.0)
"""


def kernel_tasks(soc: Soc) -> list[Task]:
    tasks = make_tasks(OPS, soc, [1.0])
    return [task for task in tasks if isinstance(task, OpTask) and needs_kernels(task)]


def compiled(soc: Soc, tasks: Sequence[Task]) -> list[bool]:
    """Of every task, whether the cache has its program."""
    programs, found = here(soc).device.programs, []
    for task in tasks:
        assert isinstance(task, OpTask)
        plan = registry.find(task.part, task.variant).plan(task.part, soc)  # type: ignore[arg-type]
        options, digest = compile_options(plan.defines), source_digest(plan)
        compilation = Compilation(plan.source, text_of(plan.source), digest, options)
        found.append(programs.slot(compilation).load() is not None)
    return found


def test_workers_compile_and_survive_each_other(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(ahead, "WORTH", 1)
    tasks = kernel_tasks(first_soc)
    assert not any(compiled(first_soc, tasks))
    with closing(CompileWorkers(first_soc, 2, [sys.executable, "-c", DYING])) as workers:
        workers.compile(tasks, Tuning(), 60)
    (fatal,) = (
        t for t in tasks if isinstance(t, OpTask) and t.variant == "gpu_direct" and t.op == OPS[1]
    )
    assert list(workers.crashing_tasks) == [fatal]
    reason = "2 processes died while it was compiled: A process ended with code 3"
    # The driver's last words follow, if it has any.
    assert workers.crashing_tasks[fatal].startswith(reason)
    assert compiled(first_soc, tasks) == [task is not fatal for task in tasks]


def test_what_workers_die_of_is_a_failed_row(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "WORTH", 1)
    dying = CompileWorkers(first_soc, 1, [sys.executable, "-c", DYING])
    monkeypatch.setattr(anchors, "SCATTER", float("inf"))
    dataset, tasks = Dataset.of("test", tmp_path), kernel_tasks(first_soc)
    with closing(LocalTarget(first_soc, workers=dying)) as target:
        done = Collection(target, dataset, tasks, rounds=replace(QUICK, span_s=30.0)).run()
    assert done.left == 0
    rows = {row.op: row for row in dataset.table("conv2d_gpu_direct").read()}
    assert [row.status for row in rows.values()].count("failed") == 1
    (failed,) = (row for row in rows.values() if row.status == "failed")
    assert parse(failed.op) == OPS[1]
    assert "2 processes died" in failed.reason


def test_workers_that_cannot_begin_are_done_without(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "WORTH", 1)
    silent = [sys.executable, "-c", "raise SystemExit(1)"]
    with closing(CompileWorkers(first_soc, 2, silent)) as workers:
        workers.compile(kernel_tasks(first_soc), Tuning(), 60)
        assert not workers.crashing_tasks
        assert not workers.is_used


def test_few_cores_are_left_alone(first_soc: LocalSoc) -> None:
    def with_cores(cpu: int, gpu: int) -> LocalSoc:
        cores = tuple(range(cpu + gpu))
        place = replace(first_soc.placement, cpu_cores=cores[:cpu], gpu_cores=cores[cpu:])
        return replace(first_soc, placement=place)

    assert worker_count(with_cores(1, 1)) == 0
    assert 1 <= worker_count(with_cores(3, 1)) <= 3
    card = with_cores(16, 0)
    assert worker_count(replace(card, gpu=replace(card.gpu, type="gpu"))) <= MOST_ON_GPU
    workers = CompileWorkers(first_soc, 0)
    workers.compile(kernel_tasks(first_soc), Tuning(), 60)
    assert not workers.is_used
