"""Commands of codl, in this process: each of its own would import all of codl first."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from codl.cli import app as cli


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    stdout: str
    stderr: str


def run(folder: Path, *arguments: str) -> Ended:
    """A command in a folder, from its words to its exit code.

    Engines pin the thread that builds them: the next command finds all cores again.
    """
    cores = os.sched_getaffinity(0)
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["codl", *arguments])
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # which main replaces
        with pytest.raises(SystemExit) as end:
            cli.main()
    os.sched_setaffinity(0, cores)
    return Ended(int(end.value.code or 0), out.getvalue(), err.getvalue())
