"""The examples in --help: every command has some, all can be parsed, and the quick ones run."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support import command_line
from typer.testing import CliRunner

from codl.cli.app import app

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
EXAMPLES = re.compile(r"\[dim\]Examples?:\[/dim\]")
#: Commands of which an example takes no device and little time, where its files are there.
QUICK = ("soc list", "soc show", "dataset info", "models", "cache show", "compare", "runs",
         "report", "show", "trace")  # fmt: skip
#: What the files of examples hold.
FILES = {
    "before.json": "eval-host.json",
    "now.json": "eval-host.json",
    "eval.json": "eval-host.json",
    "train.json": "train-host.json",
}


def commands(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}".strip(), command


def examples(command: Any) -> list[str]:
    """The lines of examples of a command's help, those that `&&` joins apart."""
    _, *parts = EXAMPLES.split(command.help or "")
    lines = "\n".join(parts).strip().splitlines()
    return [part.strip() for line in lines for part in line.split("&&") if line.strip()]


ALL = dict(commands())
LINES = [(name, line) for name, command in ALL.items() for line in examples(command)]


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_examples(name: str) -> None:
    lines = examples(ALL[name])
    assert lines, f"codl {name} --help has no example"
    shown = CliRunner().invoke(app, [*name.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output
    assert "Example" in shown.output
    assert any(line.startswith(f"codl {name}") for line in lines)


@pytest.mark.parametrize("line", [line for _, line in LINES])
def test_every_example_can_be_parsed(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    name = next(name for name in sorted(ALL, key=len, reverse=True)
                if words[: len(name.split())] == name.split())  # fmt: skip
    command = ALL[name]
    command.make_parser(typer.Context(command)).parse_args(words[len(name.split()) :])


@pytest.mark.parametrize("line", [line for name, line in LINES if name in QUICK])
def test_quick_examples_run(line: str, tmp_path: Path) -> None:
    words = shlex.split(line.partition(" > ")[0])[1:]
    for name, source in FILES.items():
        shutil.copy(RESULTS / source, tmp_path / name)
    missing = [word for word in words if re.search(r"\.(json|onnx|codl|yaml)$", word)
               if not (tmp_path / word).exists()]  # fmt: skip
    if missing or "host" in words:
        pytest.skip(f"needs {', '.join(missing) or 'a SoC of this machine'}")
    (tmp_path / "results").mkdir()
    done = command_line.run(tmp_path, *words)
    assert done.code == 0, done.stderr
    assert done.stdout or "report" in words
