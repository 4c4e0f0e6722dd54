"""A tune of some seconds, before the first measurements of a SoC: how large its tiles should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from codl.errors import CodlError
from codl.ir import Op
from codl.kernels.cpu_device.registers import typical_ops
from codl.kernels.tuning import Tuning
from codl.measure import tuning_file
from codl.measure.budget import Progress
from codl.measure.dataset import Dataset
from codl.measure.tuner import TuneRun, TuneTask, brief_tasks
from codl.records.soc import Soc
from codl.records.tuned import Tuned

BUDGET_S = 15.0


class Tunes(Protocol):
    """What a target can do, as far as tuning goes."""

    def tune(
        self,
        tasks: list[TuneTask],
        tuning: Tuning,
        *,
        keep: Callable[[Tuned], object],
        budget_s: float | None,
        progress: Progress,
    ) -> TuneRun: ...


def tasks_before(dataset: Dataset, soc: Soc, ops: Iterable[Op], tuning: Tuning) -> list[TuneTask]:
    """What is to be tuned before `ops` are measured into a dataset.

    Nothing where it has rows already, which would be of other kernels, nor where no op of theirs
    is of a kind that can be tuned so. What was done before a kill is not done again.
    """
    kinds = {op.kind for op in typical_ops()}
    if dataset.tables() or not any(op.kind in kinds for op in ops):
        return []
    return [
        task
        for task in brief_tasks(soc)
        if not task.is_done_by(tuning.find(task.variant, task.op, soc), soc)
    ]


def tune_briefly(
    target: Tunes,
    dataset: Dataset,
    soc: Soc,
    tasks: list[TuneTask],
    *,
    progress: Progress,
    budget_s: float = BUDGET_S,
) -> tuple[Tuning, str]:
    """Tune for so many seconds, and keep every result in the dataset's file as soon as it is there.

    The tuning of then, and why it was not done where it could not be: a SoC can be measured all the
    same.
    """

    def keep(result: Tuned) -> None:
        tuning_file.add(dataset, soc, [result])

    try:
        before = tuning_file.read(dataset, soc)
        target.tune(tasks, before, keep=keep, budget_s=budget_s, progress=progress)
    except CodlError as error:
        return tuning_file.read(dataset, soc), str(error)
    return tuning_file.read(dataset, soc), ""
