"""The command line: parse, call, print."""

import sys

from codl.errors import CodlError
from codl.optional import explained


def main() -> None:
    """Entry point of `codl`, also where the packages of the command line are missing."""
    try:
        with explained():
            from codl.cli import app
    except CodlError as error:
        sys.exit(f"Error: {error}")
    app.main()


__all__ = ["main"]
