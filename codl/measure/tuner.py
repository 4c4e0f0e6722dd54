"""Searches each kernel's choices on the device, and keeps those that are faster for certain.

Choices are measured in small groups, in turns with the default, and ranked by their ratio to it.
The best few meet the default once more, for longer: another choice is kept only where it wins by
`GAIN` and in too many rounds to be chance. A choice that does not build, does not run or computes
something else than the default is a trial without a number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from codl.boundary import is_defect
from codl.errors import CodlError, DeviceError, MismatchError
from codl.ir import Array, Op, parse, to_text
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.cpu_device.registers import typical_ops
from codl.kernels.feature_columns import unique
from codl.kernels.kernel import Kernel
from codl.kernels.source import source_digest
from codl.kernels.tuning import Tuning
from codl.measure import tuning_file
from codl.measure.budget import Budget, Progress, no_progress
from codl.measure.check_variants import difference_of_finite, tolerance
from codl.measure.dataset import Dataset
from codl.measure.op_runner import GpuWork, operands
from codl.measure.tasks import OpTask, make_tasks
from codl.measure.timing import Protocol, measure_together
from codl.provenance import VERSION, now
from codl.records.soc import Soc
from codl.records.statistic import level
from codl.records.tuned import Trial, Tuned
from codl.runtime.opencl import OpenClDevice


@dataclass(frozen=True)
class TuneTask:
    """A GPU variant of an op, whose choices are to be searched.

    A `brief` search compares the variant's numbers of blocks alone; a later one goes on from there.
    """

    op: Op
    variant: Kernel
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
    results = ((task, tuning.find(task.variant, task.op, soc)) for task in tasks)
    return tuple(result for task, result in results if result and task.is_done_by(result, soc))


def task_of(op: str, variant: str, *, brief: bool = False) -> TuneTask:
    """The task of an op's text and a variant's name; raises `CodlError` for what is neither."""
    parsed = parse(op)
    described: Any = registry.find(parsed, variant)
    return TuneTask(parsed, described, brief)


def tune_tasks(ops: Sequence[Op], soc: Soc, shares: Sequence[float]) -> list[TuneTask]:
    """Every GPU variant of every op, and of the parts that the GPU has at some shares of it."""
    tasks: dict[tuple[str, str], TuneTask] = {}
    for task in make_tasks(ops, soc, shares):
        if isinstance(task, OpTask) and task.processor == "gpu":
            variant: Any = registry.find(task.part, task.variant)
            made = TuneTask(task.part, variant)
            tasks.setdefault(made.key, made)
    return list(tasks.values())


def brief_tasks(soc: Soc) -> list[TuneTask]:
    """Of each typical op the first GPU variant whose tiles may have several blocks."""
    tasks = []
    for op in typical_ops():
        variants: list[Any] = registry.variants(op, "gpu", soc)
        able = [variant for variant in variants if variant.block_counts(soc)]
        tasks += [TuneTask(op, variant, brief=True) for variant in able[:1]]
    return tasks


#: A choice other than the default must be this much faster.
GAIN = 0.02
#: Up to this many choices are all tried; of more, a sample, and then those beside the best.
EXHAUSTIVE = 40
SAMPLE = 20
SEED = 20220627
#: Measured in turns, beside the default, as far as memory goes.
TOGETHER = 6
TOGETHER_BYTES = 1 << 30
FINALISTS = 3
SCREENING = Protocol(warm_up=1, min_samples=3, min_time_s=0.005, max_time_s=0.04, spread=0.1)
FINAL = Protocol(
    warm_up=3, min_samples=15, min_time_s=0.05, max_time_s=0.3, sample_s=0.002, spread=0.02
)


@dataclass(frozen=True)
class Failure:
    """A task for which no choice works, and why the default does not."""

    task: TuneTask
    reason: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class TuneRun:
    """`results` and `failures` of now; `known` were tuned before, `left` did not get their turn."""

    results: tuple[Tuned, ...] = ()
    known: tuple[Tuned, ...] = ()
    failures: tuple[Failure, ...] = ()
    left: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A row for every task that has had its turn, by op and variant, and counts."""
        rows = [_row(result, is_known=False) for result in self.results]
        rows += [_row(result, is_known=True) for result in self.known]
        for failure in self.failures:
            op, variant = failure.task.key
            empty: dict[str, Any] = dict.fromkeys(("default_ms", "best_ms", "speedup"))
            head = {"op": op, "variant": variant, **empty, "choice": {}}
            status = {"status": "failed", "reason": failure.reason}
            rows.append({**head, **status, **_counts(failure.trials)})
        return {
            "rows": sorted(rows, key=lambda row: (row["op"], row["variant"])),
            "measured": len(self.results) + len(self.failures),
            "cached": len(self.known),
            "left": self.left,
            "seconds": self.seconds,
        }


def _row(result: Tuned, *, is_known: bool) -> dict[str, Any]:
    return {
        "op": result.op,
        "variant": result.variant,
        "default_ms": result.default_ms,
        "best_ms": result.best_ms,
        "speedup": result.default_ms / result.best_ms if result.default_ms else None,
        "choice": dict(result.choice),
        "status": "ok",
        "reason": "",
        "complete": result.complete,
        "cached": is_known,
        "measured": result.measured,
        **_counts(result.trials),
    }


def _counts(trials: tuple[Trial, ...]) -> dict[str, Any]:
    failures = [
        {"choice": dict(t.choice), "reason": t.reason} for t in trials if t.latency_ms is None
    ]
    return {"tried": len(trials), "failed": len(failures), "failures": failures}


def tune(
    gpu: OpenClDevice,
    tasks: Sequence[TuneTask],
    tuning: Tuning = Tuning(),
    *,
    keep: Callable[[Tuned], object] = lambda result: None,
    searching: Callable[[TuneTask], object] = lambda task: None,
    budget: Budget | None = None,
    progress: Progress = no_progress,
) -> TuneRun:
    """Search the tasks that `tuning` has no complete result for.

    `searching` is told every task when its search begins, and `keep` gets its result at the end.

    The budget is shared out: each task may take what is left over the tasks that are left. Raises
    `MismatchError` where the device's driver is not the SoC file's.
    """
    soc, budget = gpu.soc, budget or Budget()
    if gpu.mismatch:
        raise MismatchError(gpu.mismatch)
    results_before = [tuning.find(task.variant, task.op, soc) for task in tasks]
    missing = [
        (task, before)
        for task, before in zip(tasks, results_before, strict=True)
        if not task.is_done_by(before, soc)
    ]
    results: list[Tuned] = []
    failures: list[Failure] = []
    for (task, before), share in budget.shared(missing, progress):
        searching(task)
        outcome = Search(gpu, task, share, before.trials if before else ()).run()
        if isinstance(outcome, Tuned):
            results.append(outcome)
            keep(outcome)
        else:
            failures.append(outcome)
    return TuneRun(
        results=tuple(results),
        known=done_before(tasks, tuning, soc),
        failures=tuple(failures),
        left=len(missing) - len(results) - len(failures),
        seconds=budget.spent_s,
    )


def cut_short(
    tasks: Sequence[TuneTask], tuning: Tuning, soc: Soc, results: Sequence[Tuned], *, seconds: float
) -> TuneRun:
    """What there is of `tune` where it did not come to its end; of failures nothing is known."""
    done = done_before(tasks, tuning, soc)
    left = len(tasks) - len(done) - len(results)
    return TuneRun(results=tuple(results), known=done, left=left, seconds=seconds)


class Search:
    """The search for one task; `trials` are those of an earlier search that was cut short."""

    def __init__(
        self,
        gpu: OpenClDevice,
        task: TuneTask,
        budget: Budget,
        trials: Sequence[Trial] = (),
    ) -> None:
        self._gpu, self._task = gpu, task
        self._budget = budget
        self._choices = task.choices(gpu.soc)
        self._trials = {key_of(trial.choice): trial for trial in trials}
        self._inputs, self._weights = operands(task.op)
        self._expected: Array | None = None

    def run(self) -> Tuned | Failure:
        task, default = self._task, self._choices[0]
        control = self._begin(default)
        while proposed := propose(self._choices, self._trials):
            if self._budget.is_over():
                break
            self._measure(proposed[: self._together()], control)
        complete = not proposed and not task.brief
        working = [trial for trial in self._trials.values() if trial.latency_ms is not None]
        working.sort(key=lambda trial: trial.latency_ms or 0.0)
        finalists = [trial.choice for trial in working if trial.choice != default][:FINALISTS]
        won = self._final(control, finalists)
        trials = tuple(self._trials.values())
        if won is None:
            return Failure(task, self._trials[key_of(default)].reason, trials)
        choice, default_ms, best_ms = won
        plan = task.variant.plan(task.op, self._gpu.soc, choice)
        self._gpu.programs.build(plan)  # so that its binary is kept
        return Tuned(
            *task.key,
            source_digest(plan),
            choice,
            default_ms,
            best_ms,
            complete,
            trials,
            now(),
            VERSION,
        )

    def _begin(self, default: Choice) -> GpuWork | None:
        """The default, which is measured beside everything else; None where it fails."""
        keys = {key_of(choice) for choice in self._choices}
        self._trials = {key: trial for key, trial in self._trials.items() if key in keys}
        work = self._bind(default, keep=True)
        if isinstance(work, str):
            self._trials[key_of(default)] = Trial(default, None, work)
            return None
        self._expected = work.output()
        (samples,) = measure_together([work], SCREENING)
        self._trials[key_of(default)] = Trial(default, 1e3 * level(samples))
        return work

    def _measure(self, group: Sequence[Choice], control: GpuWork | None) -> None:
        """Try a few choices, in turns with the default.

        Groups come one after the other: what counts is the ratio to the default of the same group.
        """
        # The kernels of a brief search are those of other ops, too.
        bound = [(choice, self._bind(choice, keep=self._task.brief)) for choice in group]
        failed = [(choice, work) for choice, work in bound if isinstance(work, str)]
        works = [(choice, work) for choice, work in bound if not isinstance(work, str)]
        self._trials |= {key_of(choice): Trial(choice, None, why) for choice, why in failed}
        if not works:
            return
        rivals = [work for _, work in works]
        samples = measure_together([control, *rivals] if control else rivals, SCREENING)
        levels = [1e3 * level(taken) for taken in samples]
        before = self._trials[key_of(self._choices[0])].latency_ms
        drift = levels.pop(0) / before if control and before else 1.0
        for (choice, _), ms in zip(works, levels, strict=True):
            self._trials[key_of(choice)] = Trial(choice, ms / drift)

    def _final(
        self, control: GpuWork | None, finalists: Sequence[Choice]
    ) -> tuple[Choice, float | None, float] | None:
        """The winner, the default's latency and the winner's, measured against each other."""
        bound = [(choice, self._bind(choice, keep=self._task.brief)) for choice in finalists]
        contenders = [(choice, work) for choice, work in bound if not isinstance(work, str)]
        if control is not None:
            contenders.insert(0, (self._choices[0], control))
        if not contenders:
            return None
        if contenders == [(self._choices[0], control)]:  # nothing to be compared with
            only = self._trials[key_of(self._choices[0])].latency_ms or 0.0
            return self._choices[0], only, only
        samples = np.array(measure_together([work for _, work in contenders], FINAL))
        levels = [1e3 * level(taken) for taken in samples]
        able = list(range(len(contenders)))
        if control is not None:
            able = [i for i in able if i == 0 or is_faster(samples[i], samples[0])]
        best = min(able, key=lambda index: levels[index])
        default_ms = None if control is None else levels[0]
        return contenders[best][0], default_ms, levels[best]

    def _bind(self, choice: Choice, *, keep: bool = False) -> GpuWork | str:
        """The op in one choice, checked against the default's output; or why that fails."""
        gpu, task = self._gpu, self._task
        try:
            plan = task.variant.plan(task.op, gpu.soc, choice)
            with nullcontext() if keep else gpu.programs.trying():
                work = GpuWork(gpu, task.op, plan, self._weights, self._inputs)
            if self._expected is not None:
                check_same(task.variant, work.output(), self._expected)
            return work
        except Exception as error:  # a failed choice is a result, not the end
            if is_defect(error):
                raise
            return " ".join(str(error).split())[:300] or type(error).__name__

    def _together(self) -> int:
        op = self._task.op
        sizes = sum(shape.bytes for shape in (*op.inputs, op.output))
        sizes += sum(4 * int(np.prod(shape)) for shape in op.weight_shapes.values())
        return int(np.clip(TOGETHER_BYTES // max(sizes, 1), 1, TOGETHER))


def check_same(variant: Any, output: Array, default: Array) -> None:
    """Raise `DeviceError` where a choice computes something else than a variant's default does.

    Each of the two may be off by what rounding costs the variant. NaNs and infinities are the same
    in both, such as the root of a negative number.
    """
    error, limit = difference_of_finite(output, default), 2 * tolerance(variant)
    if error > limit:
        raise DeviceError(
            f"the result differs from the default's by {error:.2g} of the largest value, "
            f"at most {limit:.2g} is rounding"
        )


def is_faster(samples: Any, than: Any) -> bool:
    """Whether one thing beats another for certain, by samples from the same rounds.

    By `GAIN`, and in more rounds than chance gives once in a hundred (a sign test).
    """
    ratios = np.asarray(samples) / np.asarray(than)
    needed = ratios.size / 2 + 2.33 * ratios.size**0.5 / 2
    return bool(level(samples) <= (1 - GAIN) * level(than) and (ratios < 1).sum() >= needed)


def propose(
    choices: Sequence[Choice], trials: dict[tuple[tuple[str, int], ...], Trial]
) -> list[Choice]:
    """The choices to try next; none when the search is over.

    All of them where they are few. Of many, first the default and a sample, then time and again
    those that differ from the best in one parameter: coordinate descent.
    """
    untried = [choice for choice in choices if key_of(choice) not in trials]
    if len(choices) <= EXHAUSTIVE:
        return untried
    sample = random.Random(SEED).sample(list(choices[1:]), SAMPLE)
    first = [choice for choice in (choices[0], *sample) if key_of(choice) not in trials]
    working = [trial for trial in trials.values() if trial.latency_ms is not None]
    if first or not working:
        return first or untried
    best = min(working, key=lambda trial: trial.latency_ms or 0.0).choice
    return list(_beside(best, untried))


def _beside(best: Choice, choices: Sequence[Choice]) -> Iterator[Choice]:
    for choice in choices:
        names = choice.keys() | best.keys()
        if sum(choice.get(name) != best.get(name) for name in names) == 1:
            yield choice


def key_of(choice: Choice) -> tuple[tuple[str, int], ...]:
    """The choice as a key of a dict."""
    return tuple(sorted(choice.items()))


#: Seconds of a brief tune.
BUDGET_S = 15.0


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
    search: Callable[..., TuneRun],
    dataset: Dataset,
    soc: Soc,
    tasks: list[TuneTask],
    *,
    progress: Progress,
    budget_s: float = BUDGET_S,
) -> tuple[Tuning, str]:
    """Tune for a budget, before the first measurements of a SoC: how large are its tiles?

    `search` is a target's `tune`; every result is in the dataset's file as soon as it is there. The
    tuning of then, and why it was not done where it could not be: a SoC can be measured all the
    same.
    """

    def keep(result: Tuned) -> None:
        tuning_file.add(dataset, soc, [result])

    try:
        before = tuning_file.read(dataset, soc)
        search(tasks, before, keep=keep, budget_s=budget_s, progress=progress)
    except CodlError as error:
        return tuning_file.read(dataset, soc), str(error)
    return tuning_file.read(dataset, soc), ""
