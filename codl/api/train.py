"""`codl.train`: from a SoC's dataset to predictors of latency."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codl.api.reporter import SILENT, Reporter
from codl.ir.environment import Environment
from codl.measure import dataset as datasets
from codl.measure import tuning_file
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset, dataset_digest
from codl.predict import ESTIMATORS, FOLDER
from codl.records import soc as socs
from codl.records.results import Digests
from codl.targets.environment import library_environment
from codl.targets.local import LocalTarget
from codl.workers import Workers

if TYPE_CHECKING:
    from codl.predict.training import TrainReport


@dataclass(frozen=True)
class Trained:
    """Predictors that were stored, how accurate each is, and what that rests on."""

    soc: str
    report: TrainReport
    environment: Environment
    digests: Digests

    def to_json(self) -> dict[str, Any]:
        """What `codl train --json` holds."""
        return {
            "soc": self.soc,
            **self.report.to_json(),
            "environment": asdict(self.environment),
            "digests": asdict(self.digests),
        }


def train(
    soc: str | Path = "host",
    *,
    predictors: Sequence[str] | None = None,
    evaluate: bool = True,
    seeds: int = 1,
    budget: Budget | None = None,
    workers: Workers | None = None,
    dataset: Path = datasets.FOLDER,
    output: Path = FOLDER,
    reporter: Reporter = SILENT,
) -> Trained:
    """Train latency predictors on what was collected of a SoC, and store them.

    `predictors` names some of them, by default all. To `evaluate`, rows and shapes are held out, in
    folds of `seeds` random divisions, until the `budget` is over; all are stored before. They are
    trained side by side by `workers`, by default a process on each core. Raises `CodlError` where
    a SoC, a predictor or data are missing.

    >>> trained = codl.train("host")
    >>> [row.mape for row in trained.report.predictors]
    """
    from codl.predict.training import train as train_on

    described = socs.load(soc)
    data = Dataset.found(described.name, dataset)
    tuning = tuning_file.read(data, described)
    workers = workers or Workers(len(os.sched_getaffinity(0)))
    doing = "Training and holding out" if evaluate else "Training"
    with reporter.progress(f"{doing} on {described.name}") as update:
        report = train_on(
            described,
            data,
            tuning,
            predictors=predictors or tuple(ESTIMATORS),
            folder=output,
            evaluate=evaluate,
            seeds=seeds,
            workers=workers,
            budget=budget or Budget(),
            progress=update,
        )
    protocol = {"evaluate": evaluate, "seeds": seeds, "dask": workers.dask or ""}
    return Trained(
        soc=described.name,
        report=report,
        environment=library_environment(LocalTarget(None), protocol, threads=workers.jobs),
        digests=Digests(dataset=dataset_digest(data), tuning=tuning.fingerprint),
    )
