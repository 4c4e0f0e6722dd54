"""The `codl` command: its subcommands, and how errors end."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from io import TextIOWrapper
from itertools import filterfalse
from pathlib import Path
from typing import Annotated, Any

import typer

from codl import __version__
from codl.cli.commands import LazyGroup
from codl.cli.output import STAGE, fail, heartbeat, warn
from codl.cli.output import VARIABLE as PROGRESS
from codl.errors import CodlError, CodlWarning, InterruptedCommandError, boundary
from codl.registry import load_installed, load_plugin
from codl.runtime.guard import guarded

#: Options of how much is told, wherever they stand.
HOW_MUCH = ("-q", "--quiet", "-v", "--verbose")
#: The letters of an error that is none of codl's.
MOST_LETTERS = 500
#: Set, a defect of codl shows where in the code it is.
VARIABLE = "CODL_TRACEBACK"
#: The exit code of a command that a signal ended is this and its number.
SIGNALLED = 128


class _Top(LazyGroup):
    """Runs a command inside `boundary`; typer would end at Ctrl-C, and at an EOFError, unsaid."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """-q and -v may stand anywhere."""
        args = [*filter(HOW_MUCH.__contains__, args), *filterfalse(HOW_MUCH.__contains__, args)]
        return list(super().parse_args(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        try:
            with boundary():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise InterruptedCommandError from error
        except EOFError as error:
            raise CodlError(f"A file or a device ended too early: {error}.") from error


app = typer.Typer(
    cls=_Top,
    help="Run a neural network on the CPU and the GPU of a device at the same time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
    plugin: Annotated[
        list[Path] | None, typer.Option("--plugin", help="Also load the plugin in this folder.")
    ] = None,
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Show only errors and warnings."),
    verbose: bool = typer.Option(
        False, "-v", "--verbose", help="Show progress also without a terminal."
    ),
) -> None:
    if quiet or verbose:
        os.environ[PROGRESS] = "never" if quiet else "always"
    if version:
        print(f"codl {__version__}")
        raise typer.Exit
    if context.invoked_subcommand not in (None, "agent"):  # an agent waits to be asked
        STAGE.forget()
        STAGE.begin(f"codl {context.invoked_subcommand}")
    if context.invoked_subcommand == "agent":  # it has nothing to keep, and may hang in a driver
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    load_installed()
    for folder in plugin or ():
        load_plugin(folder)


def main() -> None:
    """Entry point: an error becomes a message and exit code 1, a `CodlWarning` a message."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        # A letter that the locale has not, or a file's name that is no text, is shown as a number.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    by = [signal.SIGINT]

    def end(number: int, _: object) -> None:
        """SIGTERM ends a command as Ctrl-C does: workers end with it, and it says what is kept."""
        by.append(signal.Signals(number))
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        with guarded(), heartbeat():
            with suppress(CodlError):  # a command that needs plugins raises it, and help does not
                load_installed()
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


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **how: Any) -> None:
    if issubclass(category, CodlWarning):
        warn(str(message))
    else:
        _show_others(message, category, *place, **how)
