"""`codl train`: from measurements to predictors."""

from __future__ import annotations

from typing import Annotated

from rich.console import RenderableType

from codl.cli.output import JsonOption, OutputOption, emit, tell
from codl.jobs.options import option
from codl.jobs.train import Train

EveryOption = Annotated[
    bool, option("--every", help="List every predictor, not the best of each target.")
]


def train_predictors(
    job: Train,
    every: EveryOption = False,
    json: JsonOption = False,
    file: OutputOption = None,
) -> None:
    """Accuracy is that on held-out rows, in two ways: by row, and by op shape, with all parts of an
    op in one fold. The second is the one that counts: five folds, medians over --seeds.

    Every predictor of every target is trained apart: by a process on each core, by --jobs of them,
    or by the workers of a Dask cluster (the extra `dask`). Predictors are the same.

    [dim]Examples:[/dim]
    codl train --soc host
    codl train --soc host --no-evaluate
    codl train --soc host --budget 5m
    codl train --soc host --predictor codl --seeds 3
    codl train --soc host --dask tcp://10.0.0.7:8786
    """
    trained = job.run()
    result = trained.to_json()

    def render() -> RenderableType:
        from codl.report.load import train_result
        from codl.report.tables import train_table

        return train_table(train_result(result), every=every)

    emit("train", result, render, as_json=json, output=file)
    if text := trained.budget.left_out(trained.report.left, "predictors"):
        tell(f"{text} Their accuracy is not known; all are stored.")
    trained.budget.check("All predictors are stored.")
