"""`codl explain`: where the time goes between the lossless bound of a model and its run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group

from codl.cli import options as opt
from codl.cli.job_options import JobOptions, with_options
from codl.cli.output import emit

#: More columns do not fit into a terminal; --json and a report have them all.
MOST_TERMS = 7
#: The ops left whole that would save most.
MOST_WHOLE = 10
PredictedOption = Annotated[
    bool, typer.Option("--predicted", help="Run nothing: end at the predicted latency.")
]
RoundsOption = Annotated[
    int, typer.Option("--rounds", min=1, max=opt.MOST_ROUNDS, help="Timed runs.")
]


@with_options
def explain_model(
    asked: JobOptions,
    predicted: PredictedOption = False,
    rounds: RoundsOption = 20,
    json: opt.JsonOption = False,
    output: opt.OutputOption = None,
) -> None:
    """Say where the time of a plan goes, from the lossless bound of the model to its run.

    Terms add up: each is the difference of two totals, for the model and for every chain, and is
    negative where something is gained. docs/concepts/explain.md defines them. With --predicted no
    device is needed; without, the plan runs on --serial, and what predictions missed follows.
    Of every op that the plan keeps on one processor it says what splitting it would save.

    [dim]Examples:[/dim]
    codl explain yolov2 --soc epyc2 --predicted
    codl explain yolov2 --soc host --plan plan.json -o explain.json
    codl explain vgg16 --soc host --strategy codl-paper --json
    """
    from codl.api.explain import explain

    result = explain(asked.job(device=not predicted), rounds=rounds)

    def render() -> Group:
        from codl.report.load import explain_result
        from codl.report.waterfalls import chains_content, waterfall_content, whole_content

        checked = explain_result(result)
        tables = [waterfall_content(checked), chains_content(checked, most=MOST_TERMS)]
        if checked.whole:
            tables.append(whole_content(checked, most=MOST_WHOLE))
        return Group(*(table.to_rich() for table in tables))

    emit("explain", result, render, as_json=json, output=output)
