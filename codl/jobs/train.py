"""`codl.train`: from a SoC's dataset to predictors of latency."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from codl.ir.environment import Environment
from codl.jobs import options as opt
from codl.jobs.job import Job, function
from codl.jobs.options import option
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset, dataset_digest
from codl.predict import ESTIMATORS, FOLDER
from codl.records import soc as socs
from codl.records.results import Digests
from codl.targets.environment import library_environment
from codl.targets.local import LocalTarget

if TYPE_CHECKING:
    from codl.predict.training import TrainReport


@dataclass(frozen=True)
class Trained:
    """Predictors that were stored, how accurate each is, and what that rests on."""

    soc: str
    report: TrainReport
    environment: Environment
    digests: Digests
    budget: Budget

    def to_json(self) -> dict[str, Any]:
        """What `codl train --json` holds."""
        return {
            "soc": self.soc,
            **self.report.to_json(),
            "environment": asdict(self.environment),
            "digests": asdict(self.digests),
        }


PredictorsOption = Annotated[
    Sequence[str],
    option(
        "--predictor",
        help="One of {codl.predict:ESTIMATORS}; may be repeated.",
        read=opt.names_of,
        many=True,
    ),
]
EvaluateOption = Annotated[
    bool,
    option(
        "--evaluate/--no-evaluate",
        help="Hold out rows and shapes to measure accuracy, which takes some times as long as "
        "training. Predictors are stored before: Ctrl-C and --budget keep what is known by then.",
    ),
]
BudgetOption = Annotated[
    float | None,
    option(
        "--budget",
        help="Hold out nothing more after this time, such as 90s or 10m; all is fitted first, "
        "however long that takes.",
        read=opt.read_budget,
    ),
]
SeedsOption = Annotated[
    int, option("--seeds", least=1, help="Random divisions into folds; medians are printed.")
]


@dataclass(frozen=True, kw_only=True)
class Train(Job):
    """Train latency predictors on the dataset of a SoC, and store them.

    `predictors` names some of them, by default all. To `evaluate`, rows and shapes are held out, in
    folds of `seeds` random divisions, until the budget is over; all are stored before. They are
    trained side by side by `jobs` processes, by default one on each core. Raises `CodlError` where
    a SoC, a predictor or data are missing.

    >>> trained = codl.train("host")
    >>> [row.mape for row in trained.report.predictors]
    """

    soc: opt.PlannedSocOption = field(default="host", kw_only=False)
    predictors: PredictorsOption = ()
    dataset: opt.DatasetsOption = DATASETS
    evaluate: EvaluateOption = True
    seeds: SeedsOption = 1
    budget_s: BudgetOption = None
    jobs: opt.JobsOption = None
    dask: opt.DaskOption = None
    output: opt.ToPredictorsOption = FOLDER

    def run(self) -> Trained:
        """Fit all predictors, store them, then hold out rows and shapes."""
        from codl.predict.training import train as train_on

        budget = Budget(self.budget_s)
        workers = opt.workers_of(self.jobs, self.dask, usual=len(os.sched_getaffinity(0)))
        described = socs.load(self.soc)
        data = Dataset.found(described.name, self.dataset)
        tuning = tuning_file.read(data, described)
        doing = "Training and holding out" if self.evaluate else "Training"
        with self.reporter.progress(f"{doing} on {described.name}") as update:
            report = train_on(
                described,
                data,
                tuning,
                predictors=tuple(self.predictors) or tuple(ESTIMATORS),
                folder=self.output,
                evaluate=self.evaluate,
                seeds=self.seeds,
                workers=workers,
                budget=budget,
                progress=update,
            )
        protocol = {"evaluate": self.evaluate, "seeds": self.seeds, "dask": workers.dask or ""}
        return Trained(
            soc=described.name,
            report=report,
            environment=library_environment(LocalTarget(None), protocol, threads=workers.jobs),
            digests=Digests(dataset=dataset_digest(data), tuning=tuning.fingerprint),
            budget=budget,
        )


train = function(Train)
