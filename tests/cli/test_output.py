"""What commands say: nothing in it steers the terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console, Group
from support.clocks import Hands

from codl.cli import output
from codl.cli.run import _warn_of_no_numbers
from codl.measure.budget import Budget
from codl.report.text_table import Table


def test_words_of_a_device_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = "no [bold]room\x1b[2J\x9b1mthere\r\x07\nas it\tsays"
    for say in (output.fail, output.warn):
        say(said)
        shown = capsys.readouterr().err
        assert "no [bold]room\N{REPLACEMENT CHARACTER}[2J" in shown
        assert "there" in shown
        assert "\nas it" in shown
        assert not {*"\x1b\x9b\r\x07"} & {*shown}


def test_names_and_values_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "p[bold].json none:x:b [/dim] [dim]codl[pocl][/] \\\\[red]"
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    output.emit("run", {}, lambda: Group(table, name), as_json=False)
    assert capsys.readouterr().out.count(name) == 5
    for say in (output.note, output.warn, output.fail):
        say(name)
        assert name in capsys.readouterr().err
    for is_terminal in (False, True):
        monkeypatch.setattr(output.STDERR, "_force_terminal", is_terminal)
        with output.progress(name, lambda: Group(name)) as update:
            update(1, 1, 0)
        assert capsys.readouterr().err.count(name) >= 2


def test_results_are_json_whatever_was_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"rows": [{"cosine": float("nan"), "max_rel_err": (float("inf"), 1.0)}]}
    output.emit("eval", result, str, as_json=True, output=tmp_path / "eval.json")
    for text in (capsys.readouterr().out, (tmp_path / "eval.json").read_text()):
        assert msgspec.json.decode(text)["rows"] == [{"cosine": None, "max_rel_err": [None, 1.0]}]


def test_where_no_terminal_is_progress_is_told_in_few_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Hands()
    monkeypatch.setattr(output, "Budget", lambda seconds: Budget(seconds, clock))
    with output.progress("Measuring") as update:
        assert capsys.readouterr().err == "Measuring\n", "before anything is done"
        for done in range(1, 61):
            clock.now += 0.5
            update(done, 60, 30 - 0.5 * done)
    assert capsys.readouterr().err.splitlines() == [
        "Measuring: 20/60, 0:20 left",
        "Measuring: 40/60, 0:10 left",
        "Measuring: 60/60, 0:00 left",
    ]


def test_a_long_stage_says_so_every_few_seconds() -> None:
    clock = Hands()
    now = output.CurrentStage(clock)
    said = []

    def wait(seconds: int) -> None:
        for _ in range(seconds):
            clock.now += 1
            if text := now.overdue():
                said.append(text)
                now.hear()

    wait(10)
    now.begin("Loading yolov2")
    wait(2)
    now.hear()
    wait(14)
    now.begin("Running yolov2")
    wait(2)
    now.begin("")
    wait(10)
    assert said == [f"Loading yolov2: {seconds} s so far" for seconds in (5, 8, 11, 15)]


def test_a_command_in_a_long_stage_is_heard_of() -> None:
    code = (
        "import time; from codl.cli import app, output; output.SILENT_S = 0.3\n"
        "app.app.command('sleep')(lambda: time.sleep(3)); app.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "sleep"], capture_output=True, text=True, check=True
    )
    assert "codl sleep: " in done.stderr


def test_narrow_tables_keep_their_width_and_every_letter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"backbone/stage_{at}/residual/conv_with_a_long_name" for at in range(3)]
    table = Table("op", "variant", *map(str, range(6)), title="Placement")
    for name in names:
        table.add_row(name, "gpu_winograd_fp16", *["123.4"] * 6)
    monkeypatch.setattr(output, "STDOUT", Console(width=80))
    output.emit("run", {}, lambda: Group(table, "done"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [re.split("[│┃]", line)[1].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == "".join(names)


@pytest.mark.parametrize(("columns", "width"), [("80", 80), (None, 160)])
def test_tables_in_a_pipe_are_as_wide_as_columns_says(columns: str | None, width: int) -> None:
    environment = {name: own for name, own in os.environ.items() if name != "COLUMNS"}
    environment |= {"COLUMNS": columns} if columns else {}
    code = "from codl.cli.output import STDOUT; print(STDOUT.width)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    assert int(done.stdout) == width


def test_ctrl_c_while_modules_are_imported_shows_no_trace() -> None:
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'codl.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "from codl import cli\n"
        "sys.meta_path.insert(0, Finder()); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_a_full_disk_behind_stderr_loses_no_result() -> None:
    code = (
        "from codl.cli import output; output.note('x'); output.warn('y');"
        "output.emit('run', {}, lambda: 'done', as_json=False)"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert done.stdout == "done\n"
    assert done.returncode == 0


def test_outputs_without_any_number_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    nothing, little = np.full(3, np.nan), np.array([np.inf, 1.0])
    _warn_of_no_numbers({"y": nothing, "z": little})
    assert "The output 'y' has no number: all 3 values" in capsys.readouterr().err
    _warn_of_no_numbers({"z": little})
    assert capsys.readouterr().err == ""
