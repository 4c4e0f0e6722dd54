"""The `codl` command: its subcommands, and how errors end."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.markup import escape
from typer.core import TyperGroup

from codl import __version__
from codl.boundary import boundary
from codl.cli.output import STAGE, fail, heartbeat, warn
from codl.errors import CodlError, CodlWarning, InterruptedCommandError
from codl.optional import MissingPackageError, explained
from codl.plugins import load_installed, load_plugin

PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="The folder of a plugin to load, beside installed ones and those of CODL_PLUGINS.",
    ),
]

#: The letters of an error that is none of codl's.
MOST_LETTERS = 500
#: Set, a defect of codl shows where in the code it is.
VARIABLE = "CODL_TRACEBACK"
#: The exit code of a command that a signal ended is this and its number.
SIGNALLED = 128


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
#: Every command, and the modules and functions that they are; groups are a `Typer` of their own.
COMMANDS = {
    "soc": ("devices", "soc_app"),
    "devices": ("devices", "list_devices"),
    "doctor": ("doctor", "check_device"),
    "collect": ("collect", "collect_data"),
    "dataset": ("dataset", "dataset_app"),
    "tune": ("tune", "tune_kernels"),
    "bench": ("bench", "bench_kernels"),
    "bench-llm": ("bench_llm", "bench_llm"),
    "train": ("train", "train_predictors"),
    "models": ("models", "list_models"),
    "search": ("search", "search_plan"),
    "show": ("show", "show_file"),
    "quantize": ("quantize", "quantize_model"),
    "package": ("package", "package_model"),
    "run": ("run", "run_model"),
    "eval": ("evaluate", "evaluate_strategies"),
    "validate": ("validate", "validate_plan"),
    "explain": ("explain", "explain_model"),
    "conformance": ("conformance", "run_conformance"),
    "report": ("report", "write_report"),
    "agent": ("agent", "agent_app"),
}
#: Of a command that cannot run here: whatever is asked of it, it says what is missing.
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _add(name: str, module: str, function: str) -> None:
    """Add a command; where a package that it needs is missing, one that says which."""
    try:
        with explained():
            command = getattr(import_module(f"codl.cli.{module}"), function)
    except MissingPackageError as error:
        _add_missing(name, error)
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)


def _add_missing(name: str, error: MissingPackageError) -> None:
    def missing() -> None:
        raise error

    app.command(name, help=escape(str(error)), context_settings=ANYTHING)(missing)


for command, place in COMMANDS.items():
    _add(command, *place)


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
    if context.invoked_subcommand == "agent":  # it has nothing to keep, and may hang in a driver
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    load_installed()
    for folder in plugin or ():
        load_plugin(folder)


def main() -> None:
    """Entry point: an error becomes a message and exit code 1, a `CodlWarning` a message."""
    warnings.showwarning = _show_warning
    by = [signal.SIGINT]

    def end(number: int, _: object) -> None:
        """SIGTERM ends a command as Ctrl-C does: workers end with it, and it says what is kept."""
        by.append(signal.Signals(number))
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        with heartbeat():
            app()
    except InterruptedCommandError as error:
        fail(str(error))
        sys.exit(SIGNALLED + by[-1])
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
