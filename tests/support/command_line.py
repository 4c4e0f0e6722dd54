"""Commands of codl, in this process: each of its own would import all of codl first.

What must be alone runs in a Python of its own, which may lack packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from codl.cli import app as cli

#: Runs the command that the arguments are.
MAIN = "from codl.cli import main; main()"
HIDING = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
"""


def hiding(packages: Iterable[str]) -> str:
    """Code behind which none of these packages is installed."""
    return HIDING.format(sorted(packages))


def python(
    code: str, *arguments: object, ends: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which ends with a code, or, for None, with any.

    `options` are those of `subprocess.run`; `env` goes before the variables of this process.
    """
    usual = {"capture_output": True, "text": True, "timeout": 300}
    variables = {**os.environ, **options.pop("env", {})}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=variables, **{**usual, **options})
    assert ends in (None, done.returncode), done.stderr
    return done


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
