"""The tune of some seconds before a SoC is first measured: what it asks for, and what it keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.simulated import SOC
from support.whole_way import QUICK
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, DeviceError
from codl.ir import parse
from codl.kernels.cpu_device.registers import typical_ops
from codl.kernels.source import source_digest
from codl.kernels.tuning import Tuning
from codl.measure import tuner, tuning_file
from codl.measure.dataset import Dataset
from codl.measure.timing import Protocol
from codl.measure.tuner import (
    TuneRun,
    TuneTask,
    brief_tasks,
    task_of,
    tasks_before,
    tune,
    tune_briefly,
)
from codl.records.soc import Soc
from codl.records.tuned import Trial, Tuned
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc

CONV = parse("conv2d in=1x16x12x12 oc=32 kernel=3 pad=1")
CPU = replace(SOC, gpu=replace(SOC.gpu, type="cpu", vector_width=8, vector_registers=16))


def done(task: TuneTask, soc: Soc = CPU) -> Tuned:
    """As a brief search ends."""
    *_, last = choices = task.choices(soc)
    source = source_digest(task.variant.plan(task.op, soc, last))
    trials = tuple(Trial(choice, 1.0) for choice in choices)
    return Tuned(*task.key, source, last, 2.0, 1.0, False, trials, "now", "0")


class Device:
    """Tunes at once, or fails after some tasks."""

    def __init__(self, most: int = 99) -> None:
        self.most = most
        self.asked: list[TuneTask] = []

    def tune(
        self,
        tasks: Sequence[TuneTask],
        tuning: Tuning,
        *,
        keep: Callable[[Tuned], object],
        budget_s: float | None,
        progress: Any,
    ) -> TuneRun:
        assert budget_s == tuner.BUDGET_S <= 20
        self.asked = list(tasks)
        for task in self.asked[: self.most]:
            keep(done(task))
        if len(tasks) > self.most:
            raise DeviceError("it went away")
        return TuneRun()


def test_typical_ops_have_whole_tiles_of_any_number_of_blocks() -> None:
    for width, registers in ((8, 16), (16, 32), (4, 32)):
        gpu = replace(CPU.gpu, vector_width=width, vector_registers=registers)
        tasks = brief_tasks(replace(CPU, gpu=gpu))
        assert {task.variant.name for task in tasks} == {"gpu_direct", "gpu_winograd"}
        for task in tasks:
            outs = [choice["outs"] for choice in task.choices(replace(CPU, gpu=gpu))]
            assert sorted(outs) == [1, 2, 4]


def test_nothing_is_tuned_where_nothing_can_be(tmp_path: Path) -> None:
    dataset, fc = Dataset.at(tmp_path), parse("fc in=1x32x5x5 oc=40")
    assert tasks_before(dataset, CPU, [CONV], Tuning())
    assert not tasks_before(dataset, CPU, [fc], Tuning())
    for gpu in (SOC.gpu, replace(CPU.gpu, vector_registers=None)):
        assert not tasks_before(dataset, replace(CPU, gpu=gpu), [CONV], Tuning())
    (tmp_path / "t_conv2d_gpu_direct.csv").write_text("op\n")
    assert not tasks_before(dataset, CPU, [CONV], Tuning()), "its rows are of the kernels of then"


def test_results_are_kept_at_once_and_the_rest_is_done_next_time(tmp_path: Path) -> None:
    dataset = Dataset.at(tmp_path)
    every = tasks_before(dataset, CPU, [CONV], Tuning())

    def tuned(device: Device, tasks: list[TuneTask]) -> tuple[Tuning, str]:
        return tune_briefly(device.tune, dataset, CPU, tasks, progress=lambda *how: None)

    tuning, problem = tuned(Device(most=2), every)
    assert problem == "it went away"
    assert len(tuning.results) == 2
    rest = tasks_before(dataset, CPU, [CONV], tuning)
    assert rest == every[2:]
    tuning, problem = tuned(Device(), rest)
    assert not problem
    assert tuning == tuning_file.read(dataset, CPU)
    assert not tasks_before(dataset, CPU, [CONV], tuning)
    assert tuning.blocks[("conv2d", every[0].variant.name)] == 4, (
        "the last of the choices won everywhere"
    )


def test_a_search_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    dataset = Dataset.at(tmp_path)
    task = brief_tasks(CPU)[0]
    cut = replace(done(task), trials=done(task).trials[:1])
    assert task in tasks_before(dataset, CPU, [CONV], Tuning.of([cut], CPU))
    assert not task.is_done_by(cut, CPU)
    assert task.is_done_by(done(task), CPU)
    assert not replace(task, brief=False).is_done_by(done(task), CPU), "`codl tune` tries more"
    assert task_of(*task.key, brief=True) == task


def test_a_brief_search_tries_a_choice_for_each_number_of_blocks(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device, where the third of them takes no time."""
    from support import devices

    def measured(works: Any, protocol: Protocol) -> list[list[float]]:
        return [[1e-5 if at == 2 else 1e-4] * 15 for at in range(len(works))]

    monkeypatch.setattr(tuner, "measure_together", measured)
    gpu: OpenClDevice = devices.here(first_soc).device
    task = brief_tasks(gpu.soc)[0]
    tried = task.choices(gpu.soc)
    kept: list[Tuned] = []
    assert tune(gpu, [task], keep=kept.append).left == 0
    (found,) = kept
    assert [dict(trial.choice) for trial in found.trials] == [dict(choice) for choice in tried]
    assert not found.complete
    assert tune(gpu, [task], Tuning.of(kept, gpu.soc)).known == (found,)


def test_the_first_collection_tunes_and_the_next_one_does_not(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_soc.save(tmp_path / "socs" / "test.yaml")
    (tmp_path / "ops.csv").write_text('op\n"conv2d in=1x8x6x6 oc=16 kernel=1"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: QUICK)
    asked: list[int] = []

    def tuned(self: Any, tasks: Sequence[TuneTask], *given: Any, **options: Any) -> TuneRun:
        asked.append(len(tasks))
        raise CodlError("no luck today")

    monkeypatch.setattr("codl.targets.local.LocalTarget.tune", tuned)
    command = ["collect", "--soc", "test", "--ops", "ops.csv", "--shares", "1", "--samples", "2"]
    for more in (["--no-tune", "--datasets", "others"], [], ["--resume"]):
        answered = CliRunner().invoke(app, [*command, *more, "--json"])
        assert answered.exit_code == 0, answered.output
        assert json.loads(answered.stdout)["rows"] == 2
    expected = len(brief_tasks(first_soc))
    assert asked == ([expected] if expected else [])
    assert len(typical_ops()) < 6
