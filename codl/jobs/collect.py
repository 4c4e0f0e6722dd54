"""`codl.collect`: measures ops and data sharing; what it measures, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from codl.errors import CodlError, DeviceError, InterruptedCommandError
from codl.frontend.models import MEASURED
from codl.ir import Op
from codl.jobs import options as opt
from codl.jobs.job import Job, Reporter, function
from codl.jobs.model import controlled
from codl.jobs.options import option
from codl.kernels.tuning import Tuning
from codl.measure import FOLDER as DATASETS
from codl.measure import HOT_C, LONGEST_S, tuning_file
from codl.measure.budget import GRACE_S, Budget
from codl.measure.collector import Collected
from codl.measure.collector import collect as collect_tasks
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


SerialsOption = Annotated[
    str | Sequence[str],
    option(
        "--serial",
        "--on",
        help=f"A device: {opt.SERIALS}. By default {opt.HERE}; may be repeated, for several "
        "devices of the same SoC that share the work.",
        read=opt.known_serials,
        many=True,
    ),
]
ModelsOption = Annotated[
    Sequence[str],
    option(
        "--models",
        help=f"Models whose ops are measured, {opt.BY_COMMAS}. By default "
        "{codl.frontend.models:MEASURED}; and some ops of attention.",
        read=opt.names_of,
        many=True,
        metavar="A,B",
    ),
]
SharesOption = Annotated[
    Sequence[float] | None,
    option(
        "--shares",
        help="A processor's shares of an op's output, 0 ... 1, by commas: "
        "{codl.measure.tasks:SHARES} by default; with a budget {codl.measure.tasks:FEW_SHARES}.",
        read=opt.read_shares,
    ),
]
SimilarOption = Annotated[
    int | None,
    option(
        "--similar",
        least=0,
        help="How many similar ops to measure: those that the networks of --models would have for "
        "other image sizes or widths. By default 0; with a budget as many as there is time for, "
        "{codl.measure.measurement_order:MOST_SIMILAR} at most.",
    ),
]
BatchesOption = Annotated[
    Sequence[int],
    option(
        "--batch",
        least=2,
        most=opt.MOST_IMAGES,
        many=True,
        help="Measure some ops for this many images at once, too; may be repeated. Without it, "
        "N images are predicted to take N times as long as one.",
    ),
]
SamplesOption = Annotated[
    int | None, option("--samples", least=1, help="Stop after this many measurements.")
]
ResumeOption = Annotated[
    bool, option("--resume", help="Add to the dataset that is there, and measure what it lacks.")
]
TuneOption = Annotated[
    bool,
    option(
        "--tune/--no-tune",
        help="Before the first row, find in some seconds how large the tiles of convolutions "
        "should be on an OpenCL device that is a CPU.",
    ),
]


@dataclass(frozen=True)
class Agenda:
    """The tasks of a collection in their order, and the learner that chooses among them.

    Measuring takes `time_s` seconds at most.
    """

    tasks: Sequence[Task]
    time_s: float | None = None
    learner: ActiveLearner | None = None

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


@dataclass(frozen=True, kw_only=True)
class Collect(Job):
    """Measure ops in every kernel variant of both processors, and what data sharing costs.

    `ops` may name models, too. Without `models` and `ops` the built-in ones are measured, and some
    ops of attention. Several serials are devices of the same SoC that share the work. Progress is
    shown with what `shown` makes of the state of each device. Raises `CodlError` for an invalid
    limit or a missing model or file, `DeviceError` where no device is left, and
    `InterruptedCommandError` at Ctrl-C; all rows so far are kept, and `resume` goes on.

    >>> codl.collect("host", budget_s=600).expected
    """

    soc: opt.SocOption = field(default="host", kw_only=False)
    serial: SerialsOption = opt.HERE
    models: ModelsOption = ()
    ops: opt.OpsOption = ()
    shares: SharesOption = None
    similar: SimilarOption = None
    batches: BatchesOption = ()
    budget_s: opt.BudgetOption = None
    samples: SamplesOption = None
    precision: opt.PrecisionOption = None
    resume: ResumeOption = False
    tune: TuneOption = True
    governor: opt.GovernorOption = None
    cool_down_s: opt.CoolDownOption = LONGEST_S
    hot_c: opt.HotOption = HOT_C
    output: opt.ToDatasetsOption = DATASETS
    shown: Callable[[Sequence[DeviceStatus]], Any] | None = None

    def __post_init__(self) -> None:
        """Raise `CodlError` for a budget of no time."""
        super().__post_init__()
        if self.budget_s is not None and self.budget_s <= 0:
            raise CodlError(f"--budget must be above 0, got {self.budget_s:g} s.")

    @property
    def serials(self) -> tuple[str, ...]:
        return (self.serial,) if isinstance(self.serial, str) else tuple(self.serial)

    @property
    def sources(self) -> tuple[str, ...]:
        """The models, files and ops that are named."""
        return (*self.models, *self.ops)

    @property
    def wanted_shares(self) -> Sequence[float]:
        return self.shares or (SHARES if self.budget_s is None else FEW_SHARES)

    def run(self) -> CollectRun:
        """Measure until the budget, the samples or the tasks are at their end."""
        time = Budget(self.budget_s)
        soc = _described(self.soc, self.serials, self.precision)
        dataset, replay = Dataset.of(soc.name, self.output), _replay(self.serials, soc)
        scope = self._scope(dataset)
        tuning = tuning_file.read(_recorded(replay) or dataset, soc)
        if self.tune and replay is None:
            tuning = _tuned_briefly(self, dataset, soc, scope.ops, tuning, time)
        # The time of a replay is that of its rows.
        left_s = None if time.seconds is None else max(LEAST_S, time.left_s)
        budget_s = self.budget_s if replay else left_s
        agenda = self.agenda(scope, soc, dataset, tuning, budget_s)
        if replay is not None:
            agenda = agenda.answered_by(replay, self.reporter)
        done = _measured(self, agenda, soc, dataset, tuning)
        if replay is not None and tuning.results:
            tuning_file.add(dataset, soc, tuning.results.values())
        expected = agenda.learner.expected() if agenda.learner else None
        return CollectRun(dataset, done, expected)

    def _scope(self, dataset: Dataset) -> TaskFilter:
        """The tasks to measure; refuses a dataset that is there, unless it resumes."""
        sources = self.sources or MEASURED
        check_sources(sources)
        if not self.resume:
            check_is_new(dataset)  # before models are read, which takes longer
        return TaskFilter(
            ops=load_ops(sources),
            similar=self.similar,
            batches=tuple(dict.fromkeys(self.batches)),
            shares=self.wanted_shares,
            others=not self.sources,
        )

    def agenda(
        self,
        scope: TaskFilter,
        soc: Soc,
        dataset: Dataset,
        tuning: Tuning,
        budget_s: float | None = None,
    ) -> Agenda:
        """With a budget a learner chooses; without, everything is measured."""
        if budget_s is not None:
            from codl.predict.active_learning import ActiveLearner  # needs the extra `train`

            last_s = max(LAST_LOOK * budget_s, min(LAST_LOOK_S, budget_s / 2))
            tasks, tiers = within(budget_s - last_s, scope, soc)
            learner = ActiveLearner(soc, dataset, budget_s, tiers, tuning=tuning)
            return Agenda(tasks, budget_s - last_s, learner)
        return Agenda(all_tasks(scope, soc))


collect = function(Collect)


def _measured(
    job: Collect, agenda: Agenda, soc: Soc, dataset: Dataset, tuning: Tuning
) -> Collected:
    """Measure what is on the agenda; raises `InterruptedCommandError` at Ctrl-C."""
    devices: Sequence[DeviceStatus] = ()
    shown = job.shown
    below = None if shown is None else lambda: shown(devices)

    def watch(news: Sequence[DeviceStatus]) -> None:
        nonlocal devices
        devices = news

    with ExitStack() as opened:
        targets = {name: opened.enter_context(closing(connect(name, soc))) for name in job.serials}
        update = opened.enter_context(job.reporter.progress(f"Collecting on {soc.name}", below))
        try:
            return collect_tasks(
                list(targets.values()),
                dataset,
                agenda.tasks,
                tuning,
                resume=job.resume,
                budget_s=agenda.time_s,
                samples=job.samples,
                chooser=agenda.learner,
                progress=update,
                watch=watch,
                cooling=lambda device: controlled(
                    targets[device.serial], job.governor, job.cool_down_s, job.hot_c, job.reporter
                ),
                tells=lambda device: environment_of(targets[device.serial], {}),
            )
        except KeyboardInterrupt as error:
            kept = f"All rows so far are kept in {dataset.folder}, and --resume goes on."
            raise InterruptedCommandError(kept) from error


def _described(name: str | Path, serials: Sequence[str], precision: str | None) -> Soc:
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
    job: Collect, dataset: Dataset, soc: Soc, ops: Sequence[Op], tuning: Tuning, time: Budget
) -> Tuning:
    """The tuning to measure with: of a SoC's first collection, what a few seconds find."""
    tasks = tasks_before(dataset, soc, ops, tuning)
    if not tasks:
        return tuning
    time_s = min(BUDGET_S, TUNING * time.left_s)
    try:
        with (
            closing(connect(job.serials[0], soc)) as target,
            target.within(time_s + GRACE_S),
            job.reporter.progress(f"Tuning on {soc.name}") as update,
        ):
            tuned, problem = tune_briefly(
                target.tune, dataset, soc, tasks, progress=update, budget_s=time_s
            )
    except DeviceError as error:  # others may be there, and this one come back
        tuned, problem = tuning, str(error)
    path = tuning_file.path_of(dataset)
    job.reporter.note(f"Tuning left out: {problem}" if problem else f"Tiles were tuned, see {path}")
    return tuned
