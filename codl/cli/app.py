"""The `codl` command: its subcommands, and how errors end."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from codl import __version__
from codl.boundary import boundary
from codl.cli import (
    agent,
    bench,
    bench_llm,
    collect,
    conformance,
    dataset,
    devices,
    doctor,
    evaluate,
    explain,
    models,
    package,
    quantize,
    report,
    run,
    search,
    show,
    train,
    tune,
    validate,
)
from codl.cli.output import STAGE, fail, heartbeat, warn
from codl.errors import CodlError, CodlWarning, InterruptedCommandError
from codl.plugins import load_installed, load_plugin

PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="The folder of a plugin to load, beside installed ones and those of CODL_PLUGINS.",
    ),
]

#: Set, a defect of codl shows where in the code it is.
#: The exit code of a command that Ctrl-C ended, and letters of an error that is none of codl's.
INTERRUPTED, MOST_LETTERS = 130, 500
VARIABLE = "CODL_TRACEBACK"


class _Commands(TyperGroup):
    """Runs a command inside `boundary`; typer would end at Ctrl-C, and at an EOFError, unsaid."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with boundary():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise InterruptedCommandError from error
        except EOFError as error:
            raise CodlError(f"A file or a device ended too early: {error}.") from error


app = typer.Typer(
    cls=_Commands,
    help="Run a neural network on the CPU and the GPU of a device at the same time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(devices.soc_app, name="soc")
app.command("devices")(devices.list_devices)
app.command("doctor")(doctor.check_device)
app.command("collect")(collect.collect_data)
app.add_typer(dataset.dataset_app, name="dataset")
app.command("tune")(tune.tune_kernels)
app.command("bench")(bench.bench_kernels)
app.command("bench-llm")(bench_llm.bench_llm)
app.command("train")(train.train_predictors)
app.command("models")(models.list_models)
app.command("search")(search.search_plan)
app.command("show")(show.show_file)
app.command("quantize")(quantize.quantize_model)
app.command("package")(package.package_model)
app.command("run")(run.run_model)
app.command("eval")(evaluate.evaluate_strategies)
app.command("validate")(validate.validate_plan)
app.command("explain")(explain.explain_model)
app.command("conformance")(conformance.run_conformance)
app.command("report")(report.write_report)
app.add_typer(agent.agent_app, name="agent")


def _unwrap(some: typer.Typer) -> None:
    """Let paragraphs of help be wrapped to the terminal, and not to the source as well."""
    for command in some.registered_commands:
        text = inspect.getdoc(command.callback) if command.callback else ""
        paragraphs = (command.help or text or "").split("\n\n")
        joined = [own if own.startswith("[dim]") else own.replace("\n", " ") for own in paragraphs]
        command.help = "\n\n".join(joined)
    for group in some.registered_groups:
        if group.typer_instance is not None:
            _unwrap(group.typer_instance)


_unwrap(app)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
    plugin: PluginOption = None,
) -> None:
    if version:
        print(f"codl {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in (None, "agent"):  # an agent waits to be asked
        STAGE.begin(f"codl {context.invoked_subcommand}")
    load_installed()
    for folder in plugin or ():
        load_plugin(folder)


def main() -> None:
    """Entry point: an error becomes a message and exit code 1, a `CodlWarning` a message."""
    warnings.showwarning = _show_warning
    try:
        with heartbeat():
            app()
    except InterruptedCommandError as error:
        fail(str(error))
        sys.exit(INTERRUPTED)
    except CodlError as error:
        fail(str(error))
        sys.exit(1)
    except Exception as error:
        if os.environ.get(VARIABLE):
            raise
        fail(f"This is a defect of codl, {_described(error)}. {VARIABLE}=1 shows the traceback.")
        sys.exit(1)


def _described(error: Exception) -> str:
    """What was raised, and where."""
    *_, last = traceback.extract_tb(error.__traceback__)
    reason = str(error)[:MOST_LETTERS]
    return f"{type(error).__name__}: {reason} ({last.filename}, line {last.lineno})"


_show_others = warnings.showwarning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, CodlWarning):
        warn(str(message))
    else:
        _show_others(message, category, filename, lineno, file, line)
