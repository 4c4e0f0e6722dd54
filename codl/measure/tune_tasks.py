"""What `codl tune` searches, and what is tuned in seconds before a SoC is first measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from codl.ir import Op, parse, to_text
from codl.ir.soc import Soc
from codl.ir.tuned import Tuned
from codl.kernels import registry
from codl.kernels.base import Choice, GpuVariant
from codl.kernels.feature_columns import unique
from codl.kernels.tuning import Tuning
from codl.kernels.typical_ops import typical_ops
from codl.measure.tasks import OpTask, make_tasks


@dataclass(frozen=True)
class TuneTask:
    """A GPU variant of an op, whose choices are to be searched.

    A `brief` search compares the variant's numbers of blocks alone; a later one goes on from there.
    """

    op: Op
    variant: GpuVariant
    brief: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return to_text(self.op), self.variant.name

    def choices(self, soc: Soc) -> tuple[Choice, ...]:
        """What is tried, the default first."""
        every = self.variant.choices(self.op, soc)
        if not self.brief:
            return every
        counts = self.variant.block_counts(soc)
        usual = (self.variant.block_choice(self.op, soc, count) for count in counts)
        return unique([every[0], *usual])

    def is_done_by(self, result: Tuned | None, soc: Soc) -> bool:
        """Whether nothing is left to be searched after a result."""
        if result is None or result.complete or not self.brief:
            return result is not None and result.complete
        tried = [dict(trial.choice) for trial in result.trials]
        return all(dict(choice) in tried for choice in self.choices(soc))


def done_before(tasks: Iterable[TuneTask], tuning: Tuning, soc: Soc) -> tuple[Tuned, ...]:
    """The results of tasks that need no search any more."""
    found = ((task, tuning.find(task.variant, task.op, soc)) for task in tasks)
    return tuple(result for task, result in found if result and task.is_done_by(result, soc))


def task_of(op: str, variant: str, *, brief: bool = False) -> TuneTask:
    """The task of an op's text and a variant's name; raises `CodlError` for what is neither."""
    parsed = parse(op)
    known: Any = registry.find(parsed, variant)
    return TuneTask(parsed, known, brief)


def tune_tasks(ops: Sequence[Op], soc: Soc, shares: Sequence[float]) -> list[TuneTask]:
    """Every GPU variant of every op, and of the parts that the GPU has at some shares of it."""
    found: dict[tuple[str, str], TuneTask] = {}
    for task in make_tasks(ops, soc, shares):
        if isinstance(task, OpTask) and task.processor == "gpu":
            variant: Any = registry.find(task.part, task.variant)
            made = TuneTask(task.part, variant)
            found.setdefault(made.key, made)
    return list(found.values())


def brief_tasks(soc: Soc) -> list[TuneTask]:
    """Of each typical op the first GPU variant whose tiles may have several blocks."""
    tasks = []
    for op in typical_ops():
        variants: list[Any] = registry.variants(op, "gpu", soc)
        able = [variant for variant in variants if variant.block_counts(soc)]
        tasks += [TuneTask(op, variant, brief=True) for variant in able[:1]]
    return tasks
