"""Kernel tuner: a search for choices that are clearly faster than a variant's default.

A choice is a set of kernel parameters. Small groups of choices are timed in turns with the default
and ranked by their ratio to it. The best few are timed again for longer: one replaces the default
if it is faster by `GAIN`, in more rounds than chance explains. A choice that fails or computes
another result is a trial without latency.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from codl.errors import DeviceError, MismatchError, is_defect
from codl.files import VERSION, now
from codl.ir import Array, Op, to_text
from codl.ir.records.soc import Soc
from codl.ir.records.statistic import level
from codl.ir.records.tuned import Trial, Tuned
from codl.kernels import registry
from codl.kernels.base import Choice
from codl.kernels.kernel import Kernel
from codl.kernels.source import compile_options, source_digest, text_of
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget
from codl.measure.closeness import difference, tolerance
from codl.measure.op_runner import GpuWork, operands
from codl.measure.tasks import OpTask, make_tasks
from codl.measure.timing import Protocol, measure_together
from codl.runtime.opencl import OpenClDevice


@dataclass(frozen=True)
class TuneTask:
    """A search over an op's choices in a GPU variant."""

    op: Op
    variant: Kernel

    @property
    def key(self) -> tuple[str, str]:
        return to_text(self.op), self.variant.name


def done_before(tasks: Iterable[TuneTask], tuning: Tuning, soc: Soc) -> tuple[Tuned, ...]:
    """The results in `tuning` of tasks without further choices to search."""
    results = (tuning.find(task.variant, task.op, soc) for task in tasks)
    return tuple(result for result in results if result and result.complete)


def tune_tasks(ops: Sequence[Op], soc: Soc, shares: Sequence[float]) -> list[TuneTask]:
    """Tasks of every GPU variant of every op, and of its parts with `shares` of the output."""
    tasks: dict[tuple[str, str], TuneTask] = {}
    for task in make_tasks(ops, soc, shares):
        if isinstance(task, OpTask) and task.processor == "gpu":
            variant: Any = registry.find(task.part, task.variant)
            made = TuneTask(task.part, variant)
            tasks.setdefault(made.key, made)
    return list(tasks.values())


#: Relative gain for which a choice replaces the default.
GAIN = 0.02
#: Most choices of an exhaustive search; otherwise a sample is tried, then neighbours of the best.
EXHAUSTIVE = 40
SAMPLE = 20
SEED = 20220627
#: Most choices measured in turns with the default, and most bytes of these.
TOGETHER = 6
TOGETHER_BYTES = 1 << 30
FINALISTS = 3
SCREENING = Protocol(warm_up=1, min_samples=3, min_time_s=0.005, max_time_s=0.04, spread=0.1)
FINAL = Protocol(
    warm_up=3, min_samples=15, min_time_s=0.05, max_time_s=0.3, sample_s=0.002, spread=0.02
)


@dataclass(frozen=True)
class Failure:
    """The end of a task without a working choice, with its default's reason of failure."""

    op: str
    variant: str
    reason: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class TuneRun:
    """Outcome of a tuning: new `results`, earlier (`known`) ones, `failures`, the count `left`."""

    results: tuple[Tuned, ...] = ()
    known: tuple[Tuned, ...] = ()
    failures: tuple[Failure, ...] = ()
    left: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON with a row of each finished task, in order of op and variant, and counts."""
        rows = [_row(result, is_known=False) for result in self.results]
        rows += [_row(result, is_known=True) for result in self.known]
        for failure in self.failures:
            empty: dict[str, Any] = dict.fromkeys(("default_ms", "best_ms", "speedup"))
            head = {"op": failure.op, "variant": failure.variant, **empty, "choice": {}}
            rows.append({**head, **_end("failed", failure.reason, failure.trials)})
        return {
            "rows": sorted(rows, key=lambda row: (row["op"], row["variant"])),
            "measured": len(self.results) + len(self.failures),
            "cached": len(self.known),
            "left": self.left,
            "seconds": self.seconds,
        }


def _row(result: Tuned, *, is_known: bool) -> dict[str, Any]:
    own = asdict(result)
    return {
        **{name: own[name] for name in ("op", "variant", "default_ms", "best_ms")},
        "speedup": result.default_ms / result.best_ms if result.default_ms else None,
        **{name: own[name] for name in ("choice", "complete", "measured")},
        "cached": is_known,
        **_end("ok", "", result.trials),
    }


def _end(status: str, reason: str, trials: tuple[Trial, ...]) -> dict[str, Any]:
    failures = [
        {"choice": dict(t.choice), "reason": t.reason} for t in trials if t.latency_ms is None
    ]
    counts = {"tried": len(trials), "failed": len(failures), "failures": failures}
    return {"status": status, "reason": reason, **counts}


#: Callback for a search's progress: a task's index at its start, its index and outcome.
Emit: TypeAlias = Callable[[Literal["begin", "done"], int, Tuned | Failure | None], object]


def tune(
    gpu: OpenClDevice,
    tasks: Sequence[TuneTask],
    begun: Sequence[Tuned] = (),
    *,
    emit: Emit = lambda *event: None,
    budget: Budget | None = None,
) -> None:
    """Search tasks, each from its trials in `begun`.

    Tasks share the remaining budget equally. Raises `MismatchError` for a driver other than the
    SoC file's.
    """
    if gpu.mismatch:
        raise MismatchError(gpu.mismatch)
    before, budget = {result.key: result.trials for result in begun}, budget or Budget()
    for index, (task, share) in enumerate(budget.shared(tasks)):
        emit("begin", index, None)
        emit("done", index, Search(gpu, task, share, before.get(task.key, ())).run())


def cut_short(
    tasks: Sequence[TuneTask], tuning: Tuning, soc: Soc, results: Sequence[Tuned], *, seconds: float
) -> TuneRun:
    """The run of an interrupted `tune`, whose failures are unknown."""
    done = done_before(tasks, tuning, soc)
    left = len(tasks) - len(done) - len(results)
    return TuneRun(results=tuple(results), known=done, left=left, seconds=seconds)


class Search:
    """The search of a task, which continues the `trials` of an earlier one."""

    def __init__(
        self,
        gpu: OpenClDevice,
        task: TuneTask,
        budget: Budget,
        trials: Sequence[Trial] = (),
    ) -> None:
        self._gpu, self._task = gpu, task
        self._budget = budget
        self._choices = task.variant.choices(task.op, gpu.soc)
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
        working = [trial for trial in self._trials.values() if trial.latency_ms is not None]
        working.sort(key=lambda trial: trial.latency_ms or 0.0)
        finalists = [trial.choice for trial in working if trial.choice != default][:FINALISTS]
        won = self._final(control, finalists)
        trials = tuple(self._trials.values())
        if won is None:
            return Failure(*task.key, self._trials[key_of(default)].reason, trials)
        choice, default_ms, best_ms = won
        plan = task.variant.plan(task.op, self._gpu.soc, choice)
        text, options = text_of(plan.source), compile_options(plan.defines)
        self._gpu.programs.build_text(plan.source, text, options)  # stores the binary
        return Tuned(
            *task.key,
            source_digest(plan),
            choice,
            default_ms,
            best_ms,
            not proposed,
            trials,
            now(),
            VERSION,
        )

    def _begin(self, default: Choice) -> GpuWork | None:
        """The work of the default, the control of every group; None if it fails."""
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
        """Try a group of choices; latencies are scaled by the default of the same group."""
        bound = [(choice, self._bind(choice)) for choice in group]
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
        """The winner among finalists and default, the default's latency (ms), and the winner's.

        None if no choice works.
        """
        bound = [(choice, self._bind(choice)) for choice in finalists]
        contenders = [(choice, work) for choice, work in bound if not isinstance(work, str)]
        if control is not None:
            contenders.insert(0, (self._choices[0], control))
        if not contenders:
            return None
        if contenders == [(self._choices[0], control)]:  # no rival
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
        """The work of a choice, checked against the default's output, or its reason of failure."""
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
    """Raise `DeviceError` if outputs differ beyond rounding of both, or in NaNs or infinities."""
    error, limit = difference(output, default), 2 * tolerance(variant)
    if error > limit:
        raise DeviceError(
            f"the result differs from the default's by {error:.2g} of the largest value, "
            f"at most {limit:.2g} is rounding"
        )


def is_faster(samples: Any, than: Any) -> bool:
    """Whether samples beat those of `than` (same rounds) by `GAIN` and a sign test at 1 %."""
    ratios = np.asarray(samples) / np.asarray(than)
    needed = ratios.size / 2 + 2.33 * ratios.size**0.5 / 2
    return bool(level(samples) <= (1 - GAIN) * level(than) and (ratios < 1).sum() >= needed)


def propose(
    choices: Sequence[Choice], trials: dict[tuple[tuple[str, int], ...], Trial]
) -> list[Choice]:
    """The choices to try next; none when the search is over.

    Up to `EXHAUSTIVE` choices are all tried. Of more, the default and a sample come first, then
    repeatedly the choices that differ from the best in one parameter (coordinate descent).
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
    """A hashable key of a choice."""
    return tuple(sorted(choice.items()))
