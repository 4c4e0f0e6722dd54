"""`codl.train`: from a SoC's dataset to predictors of latency."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from codl.ir.environment import Environment
from codl.ir.records import soc as socs
from codl.ir.records.results import Digests
from codl.jobs import options as opt
from codl.jobs.options import Job, function, option
from codl.machine.hardware import library_environment
from codl.measure import FOLDER as DATASETS
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset, dataset_digest
from codl.predict import ESTIMATORS, FOLDER

if TYPE_CHECKING:
    from codl.predict.training import TrainReport


@dataclass(frozen=True)
class Trained:
    """Stored predictors, their accuracy, and the digests of their inputs."""

    soc: str
    report: TrainReport
    environment: Environment
    digests: Digests
    budget: Budget

    def to_json(self) -> dict[str, Any]:
        return {
            "soc": self.soc,
            **self.report.to_json(),
            "environment": asdict(self.environment),
            "digests": asdict(self.digests),
        }


@dataclass(frozen=True, kw_only=True)
class Train(Job):
    """Train latency predictors on the dataset of a SoC, and store them.

    By default all predictors are trained, by one process on each core, and stored. `evaluate` then
    measures their accuracy on held-out rows and shapes, within the budget. Raises `CodlError` for a
    missing SoC, predictor or dataset.

    >>> trained = codl.train("host")
    >>> [row.mape for row in trained.report.predictors]
    """

    soc: opt.PlannedSocOption = field(default="host", kw_only=False)
    predictors: Annotated[
        Sequence[str],
        option(
            "--predictor",
            help="One of {codl.predict:ESTIMATORS}; may be repeated.",
            read=opt.names_of,
            many=True,
        ),
    ] = ()
    dataset: opt.DatasetsOption = DATASETS
    evaluate: Annotated[
        bool,
        option(
            "--evaluate/--no-evaluate",
            help="Measure accuracy on held-out rows and shapes, which takes several times as long "
            "as training. Predictors are stored first.",
        ),
    ] = True
    budget_s: Annotated[
        float | None,
        opt.budget_option("Time limit of the evaluation, such as 90s or 10m; all is fitted first."),
    ] = None
    jobs: opt.JobsOption = None
    dask: opt.DaskOption = None
    output: Annotated[
        Path, option("--predictors", help=opt.IN_PREDICTORS, read=opt.writable_folder)
    ] = FOLDER

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
                workers=workers,
                budget=budget,
                progress=update,
            )
        protocol = {"evaluate": self.evaluate, "dask": workers.dask or ""}
        return Trained(
            soc=described.name,
            report=report,
            environment=library_environment(protocol, threads=workers.jobs),
            digests=Digests(dataset=dataset_digest(data), tuning=tuning.fingerprint),
            budget=budget,
        )


train = function(Train)
