"""`codl.collect`: measures ops and data sharing; what it measures, and what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from codl.errors import CodlError, InterruptedCommandError, UnknownNameError
from codl.frontend.models import MEASURED
from codl.ir.records import soc as socs
from codl.ir.records.results import Digests
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Tuned
from codl.jobs import options as opt
from codl.jobs.options import DeviceJob, function, option, recorded, soc_on
from codl.kernels.tuning import Tuning
from codl.measure import FOLDER as DATASETS
from codl.measure import HOT_C, LONGEST_S, tuning_file
from codl.measure.budget import GRACE_S, Budget
from codl.measure.collector import Collected, Collection, check_is_new
from codl.measure.cool_down import CoolDown
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import TaskFilter, within
from codl.measure.measurement_order import everything as all_tasks
from codl.measure.tasks import FEW_SHARES, SHARES, Task, check_sources, load_ops
from codl.measure.tuner import FINAL, TuneTask, cut_short, tune_tasks
from codl.targets.base import environment_of
from codl.targets.connect import connect, transport_of

#: So long is measured in any case.
LEAST_S = 1.0

SharesOption = Annotated[
    Sequence[float] | None,
    option(
        "--shares",
        help="Shares of an op's output to measure, by commas: {codl.measure.tasks:SHARES} by "
        "default; with a budget {codl.measure.tasks:FEW_SHARES}.",
        read=opt.read_shares,
    ),
]


@dataclass(frozen=True)
class CollectRun:
    """A collection: its dataset, and the reason of its end."""

    dataset: Dataset
    done: Collected

    def to_json(self) -> dict[str, Any]:
        """What `codl collect --json` holds."""
        return asdict(self.done)

    def check(self) -> None:
        """Raise `CodlError` if a device ended it."""
        if self.done.reason:
            raise CodlError(f"{self.done.reason} All rows so far are kept, and --resume goes on.")


@dataclass(frozen=True, kw_only=True)
class Collect(DeviceJob):
    """Measure ops in every kernel variant of both processors, and the cost of data sharing.

    Without `models` and `ops` it measures the built-in models and ops of attention. The device
    gets this codl's agent unless `install` is off, and completes the published facts of its chip.
    Raises `CodlError` for an invalid limit or a missing file, `DeviceError` without a device,
    `MismatchError` where a device is another chip, and `InterruptedCommandError` at Ctrl-C; rows
    are kept, and `resume` continues.

    >>> codl.collect("host", budget_s=600).done.rows
    """

    soc: opt.SocOption = field(default="host", kw_only=False)
    models: Annotated[
        Sequence[str],
        opt.list_option(
            "--models",
            "Models to measure; by default {codl.frontend.models:MEASURED} and attention ops",
        ),
    ] = ()
    ops: opt.OpsOption = ()
    shares: SharesOption = None
    similar: Annotated[
        int | None,
        option(
            "--similar",
            least=0,
            help="Similar ops to measure, of other image sizes or widths of the models. By default "
            "0; with a budget {codl.measure.measurement_order:MOST_SIMILAR} at most.",
        ),
    ] = None
    budget_s: opt.BudgetOption = None
    samples: Annotated[
        int | None, option("--samples", least=1, help="Stop after this many measurements.")
    ] = None
    resume: Annotated[bool, option("--resume", help="Continue an existing dataset.")] = False
    cool_down_s: opt.CoolDownOption = LONGEST_S
    hot_c: opt.HotOption = HOT_C
    output: opt.ToDatasetsOption = DATASETS

    def __post_init__(self) -> None:
        """Raise `CodlError` for a budget of no time."""
        super().__post_init__()
        if self.budget_s is not None and self.budget_s <= 0:
            raise CodlError(f"--budget must be above 0, got {self.budget_s:g} s.")

    def run(self) -> CollectRun:
        """Measure until the budget, the samples or the tasks are at their end."""
        time = Budget(self.budget_s)
        is_machine = transport_of(self.serial).is_machine
        soc = soc_on(self, self.serial) if is_machine else socs.load(self.soc, self.precision)
        dataset = Dataset.of(soc.name, self.output)
        replay = None if is_machine else connect(self.serial, soc)
        scope = self._scope(dataset)
        recorded = replay and replay.replays and Dataset.at(Path(replay.replays["folder"]))
        tuning = tuning_file.read(recorded or dataset, soc)
        budget_s = None
        if self.budget_s is None:
            tasks = all_tasks(scope, soc)
        else:
            # The time of a replay is that of its rows.
            budget_s = self.budget_s if replay else max(LEAST_S, time.left_s)
            tasks = within(budget_s, scope, soc)
        if replay is not None:
            known = [task for task in tasks if replay.can_measure(task)]
            if left := len(tasks) - len(known):
                self.reporter.note(
                    f"{left} of {len(tasks)} measurements are left out: the replay has no row of "
                    "them."
                )
            tasks = known
        done = self._measured(soc, dataset, tasks, tuning, budget_s)
        if replay is not None and tuning.results:
            tuning_file.add(dataset, soc, tuning.results.values())
        return CollectRun(dataset, done)

    def _scope(self, dataset: Dataset) -> TaskFilter:
        """The tasks to measure; refuses a dataset that is there, unless it resumes."""
        named = (*self.models, *self.ops)
        check_sources(named or MEASURED)
        if not self.resume:
            check_is_new(dataset)  # before models are read, which takes longer
        return TaskFilter(
            ops=load_ops(named or MEASURED),
            similar=self.similar,
            shares=self.shares or (SHARES if self.budget_s is None else FEW_SHARES),
            others=not named,
        )

    def _measured(
        self,
        soc: Soc,
        dataset: Dataset,
        tasks: Sequence[Task],
        tuning: Tuning,
        budget_s: float | None,
    ) -> Collected:
        with (
            closing(connect(self.serial, soc)) as target,
            self.reporter.progress(f"Collecting on {soc.name}") as update,
        ):
            try:
                with target.within(Budget(budget_s).left_s + GRACE_S):
                    environment = environment_of(target, {})
                return Collection(
                    target,
                    dataset,
                    tasks,
                    tuning,
                    resume=self.resume,
                    budget_s=budget_s,
                    samples=self.samples,
                    progress=update,
                    cooling=CoolDown(
                        target.conditions, self.reporter.note, self.hot_c, self.cool_down_s
                    ),
                    environment=environment,
                ).run()
            except KeyboardInterrupt as error:
                kept = f"All rows so far are kept in {dataset.folder}, and --resume goes on."
                raise InterruptedCommandError(kept) from error


collect = function(Collect)


@dataclass(frozen=True)
class TuneRun:
    """The result of `codl tune --json`, its budget, and the place of the choices."""

    result: dict[str, Any]
    budget: Budget
    kept: str


@dataclass(frozen=True, kw_only=True)
class Tune(DeviceJob):
    """Find the fastest tiles and work-groups of GPU kernels, and keep them beside the dataset.

    By default it tunes all variants for the models of `codl collect`.

    >>> codl.tune("host", models=["yolov2"], budget_s=600).result["rows"]
    """

    soc: opt.SocOption = field(default="host", kw_only=False)
    models: opt.ModelNamesOption = ()
    ops: opt.OpsOption = ()
    variants: Annotated[
        Sequence[str], opt.list_option("--variants", "Only these kernel variants")
    ] = ()
    shares: Annotated[
        Sequence[float],
        option(
            "--shares",
            help="The GPU's shares of an op's output that are tuned, 0 ... 1.",
            read=opt.read_shares,
            text="1",
        ),
    ] = (1.0,)
    budget_s: opt.BudgetOption = None
    dataset: opt.ToDatasetsOption = DATASETS
    anew: Annotated[bool, option("--anew", help="Forget what was tuned for the SoC before.")] = (
        False
    )

    def run(self) -> TuneRun:
        """Tune until all is tuned, the budget is over, or Ctrl-C; what was found is kept."""
        from codl.targets import kernel_runs  # a collection does not tune

        soc = soc_on(self, self.serial)
        budget, dataset = Budget(self.budget_s), Dataset.of(soc.name, self.dataset)
        ops = load_ops((*self.models, *self.ops) or MEASURED)
        tasks = _only(tune_tasks(ops, soc, self.shares), self.variants)
        if self.anew:
            tuning_file.forget(dataset)
        tuning = tuning_file.read(dataset, soc)
        results: list[Tuned] = []

        def keep(result: Tuned) -> None:
            tuning_file.add(dataset, soc, [result])
            results.append(result)

        with closing(connect(self.serial, soc)) as target:
            origin = recorded(target, Digests(), **asdict(FINAL))
            progress = self.reporter.progress(f"Tuning on {soc.name}")
            with progress as update, budget.keeping(results):
                done = kernel_runs.tune(
                    target,
                    tasks,
                    tuning,
                    keep=keep,
                    budget_s=budget.share().seconds,
                    progress=update,
                )
        if budget.ended == "interrupted":
            done = cut_short(tasks, tuning, soc, results, seconds=budget.spent_s)
        elif done.left:
            budget.ended = "budget"
        path = tuning_file.path_of(dataset)
        self.reporter.note(f"Results are kept in {path}")
        digests = Digests(tuning=tuning_file.read(dataset, soc).fingerprint)
        result = {
            "soc": soc.name,
            "device": soc.gpu.name,
            "driver": soc.gpu.driver,
            "source": "measured",
            "stopped": budget.ended,
            **done.to_json(),
            **origin,
            "digests": asdict(digests),
        }
        return TuneRun(result, budget, f"All results so far are kept in {path}.")


tune = function(Tune)


def _only(tasks: Sequence[TuneTask], wanted: Sequence[str]) -> Sequence[TuneTask]:
    if not wanted:
        return tasks
    names = {task.variant.name for task in tasks}
    for name in wanted:
        if name not in names:
            raise UnknownNameError("GPU kernel variant of these ops", name, names)
    return [task for task in tasks if task.variant.name in wanted]
