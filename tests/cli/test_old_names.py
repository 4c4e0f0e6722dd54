"""Options and commands that had other names go on working, and are told once."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from support import command_line
from support.some import some
from typer.testing import CliRunner

from codl.cli import old_names
from codl.cli.app import app
from codl.cli.old_names import today

LINES = {
    "collect --soc host -o tried": "collect --soc host --datasets tried",
    "collect --soc host -o result.json": "collect --soc host -o result.json",
    "dataset import t.csv --soc q --output=sets": "dataset import t.csv --soc q --datasets sets",
    "train --dataset d -o p": "train --datasets d --predictors p",
    "search yolov2 --search greedy --budget 2m": "search yolov2 --method greedy --budget 2m",
    "search a,b --budget 9s --within 1m": "search a,b --search-budget 9s --budget 1m",
    "eval --seconds 6 --within=10m": "eval --time 6 --budget=10m",
    "run yolov2 --budget 9s --input a.npz --output b.npz": (
        "run yolov2 --search-budget 9s --inputs a.npz --outputs b.npz"
    ),
    "run yolov2 -o run.json --outputs b.npz": "run yolov2 -o run.json --outputs b.npz",
    "bench-llm m.onnx --seconds 3": "bench llm m.onnx --time 3",
    "bench yolov2 --minutes 10": "bench sustained yolov2 --time 10m",
    "bench yolov2 --ui --seconds 9": "bench ui yolov2 --time 9",
    "bench --op 'fc in=1x8 oc=8' --dataset d": "bench ops --ops 'fc in=1x8 oc=8' --datasets d",
    "bench ops yolov2": "bench ops yolov2",
    "bench --help": "bench --help",
    "tune --prune": "cache prune",
    "tune --clear --json": "cache clear --json",
    "tune --soc host --clear": "tune --soc host --anew",
    "--plugin some/where soc detect --device nvidia": (
        "--plugin some/where soc detect --opencl-device nvidia"
    ),
    "soc power host --seconds 3 -- --seconds": "soc power host --time 3 -- --seconds",
    "--version": "--version",
    "": "",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_before_is_read_as_one_of_today(line: str) -> None:
    words, told = today(shlex.split(line))
    assert words == shlex.split(LINES[line])
    assert bool(told) == (line != LINES[line])
    assert today(words) == (words, ()), "what is of today is left alone"


def test_names_of_today_are_those_of_options() -> None:
    top = typer.main.get_command(app)
    for command, options in some(old_names.OPTIONS.items()):
        *group, name = command.split()
        parent = top.commands[group[0]] if group else top  # type: ignore[attr-defined]
        known = {option for p in parent.commands[name].params for option in p.opts}
        assert {*options.values()} <= known, command
        assert not {*options} - {"--budget"} & known, command


def test_an_old_name_is_told_once_and_works(tmp_path: Path) -> None:
    done = command_line.run(tmp_path, "show", "none.json", "--dataset", "a", "--dataset", "b")
    assert done.stderr.count("--dataset is --datasets now.") == 1
    assert "b: there is no such folder" in done.stderr
    help_of = CliRunner().invoke(app, ["bench-llm", "--help"])
    assert "codl bench llm" in help_of.output
