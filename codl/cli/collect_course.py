"""What `codl collect` measures, in which order, and what ends it. A table says it at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from codl.cli.base_options import finite
from codl.errors import CodlError
from codl.evaluate.settled_plans import TOLERANCE, SettledPlans
from codl.frontend.models import MEASURED
from codl.ir import Network
from codl.kernels.tuning import Tuning
from codl.measure.collection import Chooser
from codl.measure.collector import Collected
from codl.measure.dataset import Dataset
from codl.measure.devices_at_work import DeviceNews
from codl.measure.measurement_order import Scope, Tier, everything, wholes_first, within
from codl.measure.tasks import Task
from codl.records.soc import Soc
from codl.report.terminal import Table
from codl.strategies import Context

if TYPE_CHECKING:
    from codl.predict.active_learning import ActiveLearner


#: Why a collection ended.
STOPPED = {
    "done": "all is measured",
    "budget": "the budget is over",
    "samples": "as many as wanted",
    "settled": "more would change nothing",
    "battery": "the battery is low",
}


def collected_table(
    dataset: Dataset, done: Collected, expected: dict[str, Any] | None, course: Course | None
) -> RenderableType:
    """What was written, by table, and what it is good for where that is known."""
    title = f"Dataset of {dataset.folder.name}"
    names = ("file", "rows") + (("within 10 %", "within 5 %", "MAPE") if expected else ())
    table = Table(*names, title=title, title_justify="left")
    looks = {look["target"]: look for look in (expected or {"targets": []})["targets"]}
    for name, rows in dataset.tables().items():
        look = looks.pop(name, {})
        table.add_row(f"t_{name}.csv", str(len(rows.read())), *_accuracy(look))
    for name, look in looks.items():  # the directions of data sharing
        table.add_row(name, str(look["rows"]), *_accuracy(look))
    stopped = course.settled if course and done.stopped == "settled" else STOPPED[done.stopped]
    table.caption = (
        f"{done.rows} rows written in {done.seconds:.0f} s ({stopped}), "
        f"{done.failed} failed, {done.skipped} there before, {done.left} measurements left, "
        f"{done.again} measured twice"
    )
    if done.paused_s:
        table.caption += f", {done.paused_s:.0f} s of pauses to cool down"
    if len(done.devices) > 1:
        table.caption += "".join(map(_line, done.devices))
    if expected:
        table.caption += f". Accuracy: what {expected['predictor']} reaches on shapes held out"
        if expected["regret"]:
            table.caption += ", regret {mean} % in the mean, {p95} % at p95, ops: {ops}".format(
                **expected["regret"]
            )
    return table


def _line(own: DeviceNews) -> str:
    """What became of one of several devices."""
    lost = f", lost {own.lost} times" if own.lost else ""
    problem = f", {own.state}: {own.problem.rstrip('.')}" if own.problem else ""
    return f". {own.serial}: {own.measured} measurements{lost}{problem}"


def _accuracy(look: dict[str, Any]) -> list[str]:
    values = [look.get(name) for name in ("acc10", "acc5", "mape")]
    return ["" if value is None else f"{value:.1f} %" for value in values]


#: The part of a budget that is left for a last look at what came of it; or the seconds that takes
#: with a few hundred rows, where these are more, but not more than half of the budget.
LAST_LOOK, LAST_LOOK_S = 0.03, 20.0

AllOption = Annotated[
    bool, typer.Option("--all", help="Measure everything, however little plans change by it.")
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0,
        max=100,
        callback=finite,
        help="Percent by which a plan may take longer than a newer one and still count as "
        f"unchanged; {100 * TOLERANCE:g} by default.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Limits:
    """What the options say of a collection's end; without any it ends when plans have settled.

    `tolerance` is in percent.
    """

    budget_s: float | None = None
    samples: int | None = None
    everything: bool = False
    tolerance: float | None = None

    def check(self) -> None:
        """Raise `CodlError` for options that contradict each other, and for no time at all."""
        if self.budget_s is not None and self.budget_s <= 0:
            raise CodlError(f"--budget must be above 0, got {self.budget_s:g} s.")
        given = {
            "--budget": self.budget_s is not None,
            "--samples": self.samples is not None,
            "--all": self.everything,
        }
        names = [name for name, is_given in given.items() if is_given]
        if self.everything and len(names) > 1:
            raise CodlError(f"--all measures everything: leave out {names[0]}.")
        if self.tolerance is not None and names:
            raise CodlError(
                f"--tolerance is of plans that end a collection, which {names[0]} does instead: "
                "leave out one of the two."
            )

    @property
    def are_plans(self) -> bool:
        """Whether plans end the collection."""
        return self.budget_s is None and self.samples is None and not self.everything


@dataclass(frozen=True)
class Course:
    """Tasks in their order, and what chooses among them: at most one of the two.

    Measuring takes `time_s` seconds at most.
    """

    tasks: Sequence[Task]
    time_s: float | None = None
    learner: ActiveLearner | None = None
    plans: SettledPlans | None = None

    @property
    def chooser(self) -> Chooser | None:
        return self.learner or self.plans

    @property
    def settled(self) -> str:
        """What has settled where the chooser ended the collection."""
        return "accuracy has settled" if self.learner else "more would change no plan"

    def of(self, tasks: Sequence[Task]) -> Course:
        """The same of some of the tasks."""
        plans = replace(self.plans, total=len(tasks)) if self.plans else None
        return replace(self, tasks=tasks, plans=plans)


def measuring_s(budget_s: float) -> float:
    """The seconds of a budget that are for measuring."""
    return budget_s - max(LAST_LOOK * budget_s, min(LAST_LOOK_S, budget_s / 2))


def course_of(
    limits: Limits,
    scope: Scope,
    networks: Sequence[Network],
    *,
    soc: Soc,
    dataset: Dataset,
    tuning: Tuning,
) -> Course:
    """Where plans end it, they are of `networks`, or of built-in models where there is none."""
    if limits.budget_s is not None:
        time_s = measuring_s(limits.budget_s)
        tasks, tiers = within(time_s, scope, soc)
        learner = _learner(soc, dataset, limits.budget_s, tiers, tuning)
        return Course(tasks, time_s, learner)
    if not limits.are_plans:
        return Course(everything(scope, soc))
    tasks, tiers = wholes_first(scope, soc)
    tolerance = TOLERANCE if limits.tolerance is None else limits.tolerance / 100
    plans = SettledPlans(
        models=lambda: networks or _built_in(),
        context=Context(soc, tuning),
        dataset=dataset,
        tiers=tiers,
        total=len(tasks),
        tolerance=tolerance,
    )
    return Course(tasks, plans=plans)


def _built_in() -> list[Network]:
    from codl.frontend.convert import load_network  # ops of a table need no ONNX

    return [load_network(name).structure for name in MEASURED]


def _learner(
    soc: Soc, dataset: Dataset, budget_s: float, tiers: Mapping[Task, Tier], tuning: Tuning
) -> ActiveLearner:
    """Imported here: without a budget the libraries of predictors are not needed."""
    from codl.predict.active_learning import ActiveLearner

    return ActiveLearner(soc, dataset, budget_s, tiers, tuning=tuning)
