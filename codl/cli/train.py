"""`codl train`: from measurements to predictors."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import RenderableType

from codl.cli import options as opt
from codl.cli.output import TERMINAL, emit, tell
from codl.measure import FOLDER as DATASETS
from codl.predict import FOLDER as PREDICTORS

PredictorsOption = Annotated[
    list[str] | None,
    typer.Option("--predictor", help="One of {codl.predict:ESTIMATORS}; may be repeated."),
]
EvaluateOption = Annotated[
    bool,
    typer.Option(
        "--evaluate/--no-evaluate",
        help="Hold out rows and shapes to measure accuracy, which takes some times as long as "
        "training. Predictors are stored before: Ctrl-C and --budget keep what is known by then.",
    ),
]
TrainBudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Hold out nothing more after this time, such as 90s or 10m; all is fitted first, "
        "however long that takes.",
    ),
]
SeedsOption = Annotated[
    int,
    typer.Option("--seeds", min=1, help="Random divisions into folds; medians are printed."),
]
EveryOption = Annotated[
    bool, typer.Option("--every", help="List every predictor, not the best of each target.")
]


def train_predictors(
    soc: opt.PlannedSocOption = "",
    predictor: PredictorsOption = None,
    dataset: opt.DatasetsOption = DATASETS,
    evaluate: EvaluateOption = True,
    seeds: SeedsOption = 1,
    budget: TrainBudgetOption = None,
    jobs: opt.JobsOption = None,
    dask: opt.DaskOption = None,
    predictors: opt.ToPredictorsOption = PREDICTORS,
    every: EveryOption = False,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Train latency predictors on a SoC's dataset, and say how accurate they are.

    Accuracy is that on held-out rows, in two ways: by row, and by op shape, with all parts of an op
    in one fold. The second is the one that counts: five folds, medians over --seeds.

    Every predictor of every target is trained apart: by a process on each core, by --jobs of them,
    or by the workers of a Dask cluster (the extra `dask`). Predictors are the same.

    [dim]Examples:[/dim]
    codl train --soc host
    codl train --soc host --no-evaluate
    codl train --soc host --budget 5m
    codl train --soc host --predictor codl --seeds 3
    codl train --soc host --dask tcp://10.0.0.7:8786
    """
    from codl.api.train import train

    limit = opt.budget_of(budget)
    trained = train(
        soc,
        predictors=opt.names_of(predictor) or None,
        evaluate=evaluate,
        seeds=seeds,
        budget=limit,
        workers=opt.read_workers(jobs, dask, usual=len(os.sched_getaffinity(0))),
        dataset=dataset,
        output=predictors,
        reporter=TERMINAL,
    )
    result = trained.to_json()

    def render() -> RenderableType:
        from codl.report.load import train_result
        from codl.report.tables import train_table

        return train_table(train_result(result), every=every)

    emit("train", result, render, as_json=json, output=output)
    if text := limit.left_out(trained.report.left, "predictors"):
        tell(f"{text} Their accuracy is not known; all are stored.")
    limit.check("All predictors are stored.")
