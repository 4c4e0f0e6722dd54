"""`codl train`: from measurements to predictors."""

from __future__ import annotations

from typing import Annotated

from codl.cli.output import Output, tell
from codl.jobs.options import option
from codl.jobs.train import Train
from codl.report.text_table import TextTable


def train_predictors(
    job: Train,
    out: Output,
    every: Annotated[
        bool, option("--every", help="List every predictor, not the best of each target.")
    ] = False,
) -> None:
    """Accuracy is measured on held-out rows, and on held-out op shapes, which is the figure that
    counts: five folds. Targets are trained in parallel: one process a core, --jobs of them, or the
    workers of a Dask cluster (the extra `dask`), with equal results.

    [dim]Examples:[/dim]
    codl train --soc host
    codl train --soc host --budget 5m
    codl train --soc host --predictor codl
    codl train --soc host --dask tcp://10.0.0.7:8786
    """
    trained = job.run()
    result = trained.to_json()

    def render() -> TextTable:
        from codl.report.results import TrainResult, parse_as
        from codl.report.tables import best_content, train_content

        return (train_content if every else best_content)(parse_as(TrainResult, result))

    out.emit("train", result, render)
    if text := trained.budget.left_out(trained.report.left, "predictors"):
        tell(f"{text} Their accuracy is not known; all are stored.")
    trained.budget.check("All predictors are stored.")
