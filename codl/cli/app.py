"""The `codl` command and how its errors end."""

from __future__ import annotations

import sys

import typer

from codl import __version__
from codl.cli import conformance, data, devices, models
from codl.cli.output import STDERR
from codl.errors import CodlError

app = typer.Typer(
    help="Run a neural network on the CPU and the GPU of a device at the same time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(devices.soc_app, name="soc")
app.command("devices")(devices.list_devices)
app.command("collect")(data.collect_data)
app.add_typer(data.dataset_app, name="dataset")
app.command("train")(data.train_predictors)
app.command("search")(models.search_plan)
app.command("run")(models.run_model)
app.command("eval")(models.evaluate_strategies)
app.command("conformance")(conformance.run_conformance)
app.command("report")(models.write_report)


@app.callback(invoke_without_command=True)
def top(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
) -> None:
    if version:
        print(f"codl {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: a `CodlError` becomes a message and exit code 1."""
    try:
        app()
    except CodlError as error:
        STDERR.print(
            f"[bold red]Error:[/bold red] {_plain(str(error))}", highlight=False, soft_wrap=True
        )
        sys.exit(1)


def _plain(text: str) -> str:
    """Square brackets in messages are not markup."""
    return text.replace("[", "\\[")
