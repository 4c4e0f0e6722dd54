"""The fastest tiles and work-groups of GPU kernels, kept beside a SoC's dataset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from codl.errors import UnknownNameError
from codl.frontend.models import MEASURED
from codl.jobs import options as opt
from codl.jobs.job import Job, function
from codl.jobs.model import recorded
from codl.jobs.options import option
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.measure.tuner import FINAL, TuneTask, cut_short, tune_tasks
from codl.records.results import Digests
from codl.records.tuned import Tuned
from codl.runtime import cache
from codl.targets.connect import connect
from codl.targets.detect import load_local

VariantsOption = Annotated[
    Sequence[str],
    option(
        "--variants",
        help=f"Only these kernel variants, {opt.BY_COMMAS}.",
        read=opt.names_of,
        many=True,
        metavar="A,B",
    ),
]
SharesOption = Annotated[
    Sequence[float],
    option(
        "--shares",
        help="The GPU's shares of an op's output that are tuned, 0 ... 1.",
        read=opt.read_shares,
        text="1",
    ),
]
AnewOption = Annotated[bool, option("--anew", help="Forget what was tuned for the SoC before.")]


@dataclass(frozen=True)
class TuneRun:
    """What `codl tune --json` holds, what ended it, and where the choices are kept."""

    result: dict[str, Any]
    budget: Budget
    kept: str


@dataclass(frozen=True, kw_only=True)
class Tune(Job):
    """Find the fastest tiles and work-groups of GPU kernels, and keep them beside the dataset.

    Without `models` and `ops` it tunes for the models that are measured, without `variants` all of
    theirs.

    >>> codl.tune("host", models=["yolov2"], budget_s=600).result["rows"]
    """

    soc: opt.SocOption = field(default="host", kw_only=False)
    serial: opt.SerialOption = opt.HERE
    models: opt.ModelNamesOption = ()
    ops: opt.OpsOption = ()
    variants: VariantsOption = ()
    shares: SharesOption = (1.0,)
    precision: opt.PrecisionOption = None
    budget_s: opt.BudgetOption = None
    dataset: opt.ToDatasetsOption = DATASETS
    anew: AnewOption = False

    def run(self) -> TuneRun:
        """Tune until all is tuned, the budget is over, or Ctrl-C; what was found is kept."""
        soc = load_local(self.soc, self.serial, self.precision)
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
                done = target.tune(
                    tasks, tuning, keep=keep, budget_s=budget.share().seconds, progress=update
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
            "cache": asdict(cache.prune()),
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
