"""The command line: parse, call, print."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from codl.boundary import explained
from codl.errors import CodlError

#: The command that says what is missing; it needs no extra but the command line's.
DOCTOR = "doctor"


def main() -> None:
    """Entry point of `codl`, also where the packages of the command line are missing."""
    try:
        with explained(), _mortal():
            from codl.cli import app
    except (CodlError, ImportError) as error:
        if sys.argv[1:2] == [DOCTOR]:
            _doctor()
        if not isinstance(error, CodlError):
            raise
        sys.exit(f"Error: {error}")
    app.main()


@contextmanager
def _mortal() -> Iterator[None]:
    """Ctrl-C ends the process at once: half imported modules have nothing to say or to keep."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _doctor() -> None:
    """`codl doctor` alone, where other commands cannot be imported; it ends the process."""
    try:
        with explained():
            import typer

            from codl.cli.commands import LazyCommand
            from codl.cli.doctor import check_device
    except CodlError as error:
        sys.exit(f"Error: {error}")
    except ImportError as error:
        sys.exit(f"Error: {error}. `pip install --force-reinstall codl` installs what is broken.")
    alone = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    alone.command(DOCTOR, cls=LazyCommand)(check_device)
    try:
        alone(sys.argv[2:], prog_name=f"codl {DOCTOR}")
    except CodlError as error:
        sys.exit(f"Error: {error}")


__all__ = ["main"]
