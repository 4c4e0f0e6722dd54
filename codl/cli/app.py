"""The `codl` command: its subcommands, and how errors end."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from importlib import import_module
from itertools import filterfalse
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.markup import escape
from typer.core import TyperGroup

from codl import __version__, plugins
from codl.boundary import MissingPackageError, boundary, explained
from codl.cli.old_names import today
from codl.cli.output import fail, tell, warn
from codl.cli.progress import STAGE, heartbeat
from codl.cli.progress import VARIABLE as PROGRESS
from codl.errors import CodlError, CodlWarning, InterruptedCommandError
from codl.plugins import load_installed, load_plugin, load_shipped

PluginOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="The folder of a plugin to load, beside installed ones and those of CODL_PLUGINS.",
    ),
]

#: Options of how much is told, wherever they stand.
HOW_MUCH = ("-q", "--quiet", "-v", "--verbose")
#: The letters of an error that is none of codl's.
MOST_LETTERS = 500
#: Set, a defect of codl shows where in the code it is.
VARIABLE = "CODL_TRACEBACK"
#: The exit code of a command that a signal ended is this and its number.
SIGNALLED = 128


class _Commands(TyperGroup):
    """Runs a command inside `boundary`; typer would end at Ctrl-C, and at an EOFError, unsaid."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Words that had other names are read, and told once; -q and -v may stand anywhere."""
        args = [*filter(HOW_MUCH.__contains__, args), *filterfalse(HOW_MUCH.__contains__, args)]
        words, told = today(args)
        for text in () if ctx.resilient_parsing else told:
            tell(text)
        return list(super().parse_args(ctx, words))

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
#: Commands by where they are, as those of plugins; groups are a `Typer` of their own.
COMMANDS = {
    "soc": "codl.cli.devices:soc_app",
    "demo": "codl.cli.demo:run_demo",
    "devices": "codl.cli.devices:list_devices",
    "doctor": "codl.cli.doctor:check_device",
    "collect": "codl.cli.collect:collect_data",
    "dataset": "codl.cli.dataset:dataset_app",
    "tune": "codl.cli.tune:tune_kernels",
    "kernels": "codl.cli.kernels:compile_kernels",
    "cache": "codl.cli.cache:cache_app",
    "bench": "codl.cli.bench:bench_app",
    "bench llm": "codl.cli.bench_llm:bench_llm",
    "train": "codl.cli.train:train_predictors",
    "models": "codl.cli.models:list_models",
    "search": "codl.cli.search:search_plan",
    "show": "codl.cli.show:show_file",
    "quantize": "codl.cli.quantize:quantize_model",
    "package": "codl.cli.package:package_model",
    "run": "codl.cli.run:run_model",
    "eval": "codl.cli.evaluate:evaluate_strategies",
    "validate": "codl.cli.validate:validate_plan",
    "explain": "codl.cli.explain:explain_model",
    "trace": "codl.cli.trace:trace_model",
    "runs": "codl.cli.runs:list_runs",
    "compare": "codl.cli.compare:compare_files",
    "report": "codl.cli.report:write_report",
    "agent": "codl.cli.agent:agent_app",
}
#: Of a command that cannot run here: whatever is asked of it, it says what is missing.
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _add(name: str, place: str) -> None:
    """Add a command; where a package that it needs is missing, one that says which."""
    *group, word = name.split()
    parent = next(
        (
            group_info.typer_instance
            for group_info in app.registered_groups
            if [group_info.name] == group
        ),
        app,
    )
    assert parent is not None
    module, _, attribute = place.partition(":")
    try:
        with explained():
            command = getattr(import_module(module), attribute)
    except MissingPackageError as error:
        _add_missing(parent, word, error)
        return
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=word)
    else:
        parent.command(word)(command)


def _add_missing(parent: typer.Typer, name: str, error: MissingPackageError) -> None:
    def missing() -> None:
        raise error

    parent.command(name, help=escape(str(error)), context_settings=ANYTHING)(missing)


def _unwrap(some: typer.Typer) -> None:
    """Let paragraphs of help be wrapped to the terminal, and not to the source as well."""
    for command in some.registered_commands:
        text = inspect.getdoc(command.callback) if command.callback else ""
        paragraphs = (command.help or text or "").split("\n\n")
        joined = [
            paragraph if paragraph.startswith("[dim]") else paragraph.replace("\n", " ")
            for paragraph in paragraphs
        ]
        command.help = "\n\n".join(joined)
    for group in some.registered_groups:
        if group.typer_instance is not None:
            _unwrap(group.typer_instance)


def _add_of_plugins() -> None:
    """Add the commands of the plugins that are loaded, each once."""
    new = {name: place for name, place in plugins.COMMANDS.places.items() if name not in COMMANDS}
    for name, place in new.items():
        COMMANDS[name] = place
        _add(name, place)
    if new:
        _unwrap(app)


for command, place in COMMANDS.items():
    _add(command, place)
load_shipped()
_add_of_plugins()


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
    plugin: PluginOption = None,
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Tell errors and warnings alone."),
    verbose: bool = typer.Option(
        False, "-v", "--verbose", help="Tell what is done also where no terminal is."
    ),
) -> None:
    if quiet or verbose:
        os.environ[PROGRESS] = "never" if quiet else "always"
    if version:
        print(f"codl {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in (None, "agent"):  # an agent waits to be asked
        STAGE.begin(f"codl {context.invoked_subcommand}")
        STAGE.hear()
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
            with suppress(CodlError):  # a command that needs plugins raises it, and help does not
                load_installed()
            _add_of_plugins()
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
