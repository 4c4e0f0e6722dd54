"""Commands are imported when they are asked for, and are listed as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import typer
from support.some import some

from codl.cli.app import app

#: A process that ends with the modules that it has imported.
CODE = """
import atexit, sys
atexit.register(lambda: print("modules", *sys.modules))
from codl.cli import main
sys.argv[0] = "codl"
main()
"""
#: What completion asks for, as bash does.
COMPLETE = {"_CODL_COMPLETE": "complete_bash"}


def ended(*words: str, **variables: str) -> tuple[list[str], set[str]]:
    """What is printed, and the modules that were imported for it."""
    run = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    *lines, last = run.stdout.splitlines()
    return lines, set(last.split())


def completed(line: str) -> tuple[list[str], set[str]]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return ended(**COMPLETE, **words)


def test_help_lists_commands_by_their_own_words() -> None:
    top: Any = typer.main.get_command(app)
    groups = [top, *(c for c in top.commands.values() if hasattr(c, "commands"))]
    for group in some(groups):
        listed = group._listed().commands
        assert [*listed] == [*group.commands]
        for name, command in some(group.commands.items()):
            assert listed[name].name == command.name == name
            is_plugin = listed[name].help.startswith("Command of the plugin")
            assert is_plugin or command.help.startswith(listed[name].help)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("codl e", ["eval", "explain"]),
        ("codl bench ", ["ops", "stream", "ui"]),
        ("codl eval --mo", ["--models"]),
        ("codl soc show --js", ["--json"]),
    ],
)
def test_completion_knows_every_command(line: str, words: list[str]) -> None:
    assert completed(line)[0] == words


def test_what_lists_commands_imports_none() -> None:
    for lines, modules in some((ended("--help"), ended("--version"), completed("codl e"))):
        assert lines
        assert not {"numpy", "codl.ir", "codl.jobs.model"} & modules


def test_completion_knows_options() -> None:
    for command in some(("eval", "run", "search yolov2", "collect", "validate")):
        assert "--serial" in completed(f"codl {command} --s")[0]


def test_an_unknown_command_is_told_the_closest() -> None:
    run = subprocess.run([sys.executable, "-m", "codl", "evl"], capture_output=True, text=True)
    assert run.returncode == 2
    assert "Did you mean 'eval'" in run.stderr
