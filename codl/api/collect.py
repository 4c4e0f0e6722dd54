"""`codl.collect`: measures ops and data sharing; what it measures, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codl.api.job import controlled
from codl.api.reporter import SILENT, Reporter
from codl.errors import CodlError, DeviceError, InterruptedCommandError
from codl.frontend.models import MEASURED
from codl.ir import Op
from codl.kernels.tuning import Tuning
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.budget import GRACE_S, Budget
from codl.measure.collector import Collected
from codl.measure.collector import collect as collect_tasks
from codl.measure.cool_down import HOT_C, LONGEST_S, CoolDown
from codl.measure.dataset import Dataset
from codl.measure.dataset_writer import check_is_new
from codl.measure.devices_at_work import DeviceStatus
from codl.measure.measurement_order import TaskFilter, within
from codl.measure.measurement_order import everything as all_tasks
from codl.measure.tasks import FEW_SHARES, SHARES, Task, check_sources, load_ops
from codl.measure.tuner import BUDGET_S, tasks_before, tune_briefly
from codl.records.soc import Soc
from codl.targets.base import Target
from codl.targets.connect import connect, transport_of
from codl.targets.detect import load_measured
from codl.targets.environment import environment_of

if TYPE_CHECKING:
    from codl.predict.active_learning import ActiveLearner

#: At most this part of what a budget has left is tuned in, and so long is measured in any case.
TUNING, LEAST_S = 0.15, 1.0
#: The part of a budget that is left for a last look at what came of it; or the seconds that takes
#: with a few hundred rows, where these are more, but not more than half of the budget.
LAST_LOOK, LAST_LOOK_S = 0.03, 20.0


@dataclass(frozen=True)
class StopRule:
    """What ends a collection before everything is measured: seconds, or a number of tasks."""

    budget_s: float | None = None
    samples: int | None = None

    def check(self) -> None:
        """Raise `CodlError` for a budget of no time."""
        if self.budget_s is not None and self.budget_s <= 0:
            raise CodlError(f"--budget must be above 0, got {self.budget_s:g} s.")


@dataclass(frozen=True)
class Agenda:
    """The tasks of a collection in their order, and the learner that chooses among them.

    Measuring takes `time_s` seconds at most.
    """

    tasks: Sequence[Task]
    time_s: float | None = None
    learner: ActiveLearner | None = None

    @classmethod
    def of(
        cls,
        rule: StopRule,
        scope: TaskFilter,
        *,
        soc: Soc,
        dataset: Dataset,
        tuning: Tuning,
    ) -> Agenda:
        """With a budget a learner chooses; without, everything is measured."""
        if rule.budget_s is not None:
            from codl.predict.active_learning import ActiveLearner  # needs the extra `train`

            last_s = max(LAST_LOOK * rule.budget_s, min(LAST_LOOK_S, rule.budget_s / 2))
            tasks, tiers = within(rule.budget_s - last_s, scope, soc)
            learner = ActiveLearner(soc, dataset, rule.budget_s, tiers, tuning=tuning)
            return cls(tasks, rule.budget_s - last_s, learner)
        return cls(all_tasks(scope, soc))

    def answered_by(self, replay: Target, reporter: Reporter) -> Agenda:
        """The same of the tasks that a replay has rows of; notes the number of the others."""
        tasks = [task for task in self.tasks if replay.can_measure(task)]
        if left := len(self.tasks) - len(tasks):
            reporter.note(
                f"{left} of {len(self.tasks)} measurements are left out: the replay has no row of "
                "them"
            )
        return replace(self, tasks=tasks)


@dataclass(frozen=True)
class CollectRun:
    """What a collection wrote, why it ended, and what its dataset is good for where known."""

    dataset: Dataset
    done: Collected
    expected: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """What `codl collect --json` holds."""
        return {**asdict(self.done), "expected": self.expected}

    def check(self) -> None:
        """Raise `CodlError` where a device ended it."""
        if self.done.reason:
            raise CodlError(f"{self.done.reason} All rows so far are kept, and --resume goes on.")


def collect(
    soc: str = "host",
    *,
    serial: str | Sequence[str] = "local",
    precision: str | None = None,
    ops: Sequence[str] | None = None,
    shares: Sequence[float] | None = None,
    similar: int | None = None,
    batches: Sequence[int] = (),
    budget_s: float | None = None,
    samples: int | None = None,
    resume: bool = False,
    tune: bool = True,
    governor: str | None = None,
    cool_down_s: float = LONGEST_S,
    hot_c: float = HOT_C,
    output: Path = datasets.FOLDER,
    reporter: Reporter = SILENT,
    shown: Callable[[Sequence[DeviceStatus]], Any] | None = None,
) -> CollectRun:
    """Measure ops in every kernel variant of both processors, and what data sharing costs.

    The words are those of `codl collect`. `ops` are built-in models, `.onnx` files and `.csv` files
    of ops; several serials are devices of the same SoC that share the work. Progress is shown with
    what `shown` makes of the state of each device. Raises `CodlError` for an invalid limit or a
    missing model or file, `DeviceError` where no device is left, and `InterruptedCommandError` at
    Ctrl-C; all rows so far are kept, and `resume` goes on.

    >>> codl.collect("host", budget_s=600).expected
    """
    serials = [serial] if isinstance(serial, str) else list(serial)
    sources = list(ops or MEASURED)
    command = Budget(budget_s)
    rule = StopRule(budget_s, samples)
    rule.check()
    described = _described(soc, serials, precision)
    dataset = Dataset.of(described.name, output)
    check_sources(sources)
    if not resume:
        check_is_new(dataset)  # before models are read, which takes longer
    scope = TaskFilter(
        ops=load_ops(sources),
        similar=similar,
        batches=tuple(dict.fromkeys(batches)),
        shares=shares or (SHARES if budget_s is None else FEW_SHARES),
        others=ops is None,
    )
    replay = _replay(serials, described)
    tuning = tuning_file.read(_recorded(replay) or dataset, described)
    if tune and replay is None:
        time_s = min(BUDGET_S, TUNING * command.left_s)
        tuning = _tuned_briefly(serials[0], dataset, described, scope.ops, tuning, time_s, reporter)
    if budget_s is not None and replay is None:  # the time of a replay is that of its rows
        rule = replace(rule, budget_s=max(LEAST_S, command.left_s))
    agenda = Agenda.of(rule, scope, soc=described, dataset=dataset, tuning=tuning)
    if replay is not None:
        agenda = agenda.answered_by(replay, reporter)
    with ExitStack() as opened:
        targets = {
            name: opened.enter_context(closing(connect(name, described))) for name in serials
        }
        done = _collected(
            targets,
            dataset,
            agenda,
            tuning,
            cooling=lambda target: controlled(target, governor, cool_down_s, hot_c, reporter),
            reporter=reporter,
            shown=shown,
            resume=resume,
            samples=samples,
        )
    if replay is not None and tuning.results:
        tuning_file.add(dataset, described, tuning.results.values())
    expected = agenda.learner.expected() if agenda.learner else None
    return CollectRun(dataset, done, expected)


def _collected(
    targets: Mapping[str, Target],
    dataset: Dataset,
    agenda: Agenda,
    tuning: Tuning,
    *,
    cooling: Callable[[Target], CoolDown],
    reporter: Reporter,
    shown: Callable[[Sequence[DeviceStatus]], Any] | None,
    **how: Any,
) -> Collected:
    """Measure what is on the agenda; raises `InterruptedCommandError` at Ctrl-C."""
    devices: Sequence[DeviceStatus] = ()
    below = None if shown is None else lambda: shown(devices)

    def watch(news: Sequence[DeviceStatus]) -> None:
        nonlocal devices
        devices = news

    with reporter.progress(f"Collecting on {dataset.folder.name}", below) as update:
        try:
            return collect_tasks(
                list(targets.values()),
                dataset,
                agenda.tasks,
                tuning,
                budget_s=agenda.time_s,
                chooser=agenda.learner,
                progress=update,
                cooling=lambda device: cooling(targets[device.serial]),
                tells=lambda device: environment_of(targets[device.serial], {}),
                watch=watch,
                **how,
            )
        except KeyboardInterrupt as error:
            kept = f"All rows so far are kept in {dataset.folder}, and --resume goes on."
            raise InterruptedCommandError(kept) from error


def _described(name: str, serials: Sequence[str], precision: str | None) -> Soc:
    """The SoC, and where it is on the first device that tells."""
    *others, last = serials
    for serial in others:
        with suppress(DeviceError):
            return load_measured(name, serial, precision)
    return load_measured(name, last, precision)


def _replay(serials: Sequence[str], soc: Soc) -> Target | None:
    """The target that answers from a dataset; None where the serials are of machines."""
    replays = [serial for serial in serials if not transport_of(serial).is_machine]
    if replays and len(serials) > 1:
        raise CodlError(f"A replay is collected from alone, got {', '.join(serials)}.")
    return connect(replays[0], soc) if replays else None


def _recorded(replay: Target | None) -> Dataset | None:
    """The dataset of a replay, whose kernels were tuned as it says."""
    return Dataset.at(Path(replay.replays["folder"])) if replay and replay.replays else None


def _tuned_briefly(
    serial: str,
    dataset: Dataset,
    soc: Soc,
    ops: Sequence[Op],
    tuning: Tuning,
    time_s: float,
    reporter: Reporter,
) -> Tuning:
    """The tuning to measure with: of a SoC's first collection, what a few seconds find."""
    tasks = tasks_before(dataset, soc, ops, tuning)
    if not tasks:
        return tuning
    try:
        with (
            closing(connect(serial, soc)) as target,
            target.within(time_s + GRACE_S),
            reporter.progress(f"Tuning on {soc.name}") as update,
        ):
            tuned, problem = tune_briefly(
                target.tune, dataset, soc, tasks, progress=update, budget_s=time_s
            )
    except DeviceError as error:  # others may be there, and this one come back
        tuned, problem = tuning, str(error)
    path = tuning_file.path_of(dataset)
    reporter.note(f"Tuning left out: {problem}" if problem else f"Tiles were tuned, see {path}")
    return tuned
