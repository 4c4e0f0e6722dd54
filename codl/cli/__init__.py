"""The command line: parse, call, print."""

from codl.cli.app import main

__all__ = ["main"]
