"""`codl compare`: two result files beside each other, and what is more than noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from codl.cli.options import JsonOption, OutputOption, positive
from codl.cli.output import emit, fail

FirstArgument = Annotated[Path, typer.Argument(help="A result file, written with -o or by --json.")]
SecondArgument = Annotated[Path, typer.Argument(help="A later one of the same command.")]
LimitOption = Annotated[
    float | None,
    typer.Option(
        "--fail-above",
        metavar="TIMES",
        callback=positive,
        help="End with exit code 1 where a figure is worse by more than this, as 1.05, and by more "
        "than noise, or is lost.",
    ),
]
SpeedupsOption = Annotated[
    bool,
    typer.Option(
        "--speedups",
        help="Of evaluations: compare speedups over the better processor alone in the same run, "
        "which a machine that is slower as a whole does not change.",
    ),
]
EveryOption = Annotated[
    bool, typer.Option("--every", help="Show all figures, also those within noise.")
]


def compare_files(
    first: FirstArgument,
    second: SecondArgument,
    fail_above: LimitOption = None,
    speedups: SpeedupsOption = False,
    every: EveryOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Compare two results of `eval`, `run`, `train` or `validate`: what is no noise?

    Latencies of one file took turns, those of two files did not. They are told apart where they
    differ by more than both spreads make up, and by 3 % at least. Accuracies are told apart beyond
    twice their standard error; figures of compilers and checks have no noise. Another commit, SoC,
    dataset, driver, clock or protocol is told; a model that has changed is not compared.

    [dim]Examples:[/dim]
    codl compare before.json now.json
    codl compare before.json now.json --every --json
    codl compare before.json now.json --fail-above 1.05 --speedups
    """
    from codl.report.compare import compare_results, comparison_table
    from codl.report.load import load_result

    compared = compare_results(load_result(first), load_result(second), speedups=speedups)

    def render() -> RenderableType:
        return comparison_table(compared, every=every).to_rich()

    emit("compare", compared.to_json(), render, as_json=json, output=output)
    if fail_above is None:
        return
    if beyond := compared.beyond(fail_above):
        names = ", ".join(f"{pair.name} of {pair.group}" for pair in beyond)
        fail(f"{len(beyond)} figures are lost, or worse than {fail_above:g} times: {names}.")
        raise typer.Exit(1)
