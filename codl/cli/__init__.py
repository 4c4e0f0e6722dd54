"""The command line: parse, call, print."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from codl.errors import CodlError, explained


def main() -> None:
    """Entry point of `codl`, also where the packages of the command line are missing."""
    try:
        with explained(), _mortal():
            from codl.cli import app
    except CodlError as error:
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


__all__ = ["main"]
