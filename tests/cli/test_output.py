"""What commands say: nothing in it steers the terminal."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Group
from support import command_line

from codl.cli import output
from codl.cli.run import _warn_of_no_numbers
from codl.report.text_table import TextTable


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
    table = TextTable.plain(name, [name], [(name,)], [name])
    output.Output().emit("run", {}, lambda: Group(table, name))
    assert capsys.readouterr().out.count(name) == 5
    for say in (output.note, output.warn, output.fail):
        say(name)
        assert name in capsys.readouterr().err
    for is_terminal in (False, True):
        monkeypatch.setattr(output.STDERR, "_force_terminal", is_terminal)
        with output.progress(name) as update:
            update(1, 1, 0)
        assert name in capsys.readouterr().err


def test_results_are_json_whatever_was_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"rows": [{"cosine": float("nan"), "max_rel_err": (float("inf"), 1.0)}]}
    output.Output(as_json=True, to_file=tmp_path / "eval.json").emit("eval", result, str)
    for text in (capsys.readouterr().out, (tmp_path / "eval.json").read_text()):
        assert msgspec.json.decode(text)["rows"] == [{"cosine": None, "max_rel_err": [None, 1.0]}]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(output.VARIABLE)


def test_nothing_is_said_without_a_terminal_of_what_is_short(
    silent: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.stage("Loading")
    output.note("Wrote x")
    with output.progress("Measuring") as update:
        update(1, 1, 0)
    assert capsys.readouterr().err == ""
    output.warn("What is wrong")
    output.tell("What was taken")
    assert capsys.readouterr().err.splitlines() == ["Warning: What is wrong", "What was taken"]
    monkeypatch.setenv(output.VARIABLE, "never")
    output.tell("What was taken")
    output.fail("It ends")
    assert capsys.readouterr().err == "Error: It ends\n"


def test_interleaved_stages_have_a_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(output.VARIABLE, "always")
    monkeypatch.setattr(output, "STAGE", output.CurrentStage())
    for _ in range(3):
        output.stage("Measuring the CPU")
        output.stage("Measuring the GPU")
    said = capsys.readouterr().err.splitlines()
    assert said == ["Measuring the CPU", "Measuring the GPU"]
    monkeypatch.setattr(output, "SILENT_S", 0.0)
    assert output.STAGE.overdue() == "", "a stage that was said is silent for 30 s"


def test_a_command_in_a_long_stage_is_heard_of(silent: None) -> None:
    code = (
        "import time; from codl.cli import app, output\n"
        "output.SILENT_S = output.REPEAT_S = 0.1\n"
        "app.app.command('sleep')(lambda: time.sleep(1.3)); app.main()"
    )
    done = command_line.python(code, "sleep")
    assert done.stderr.count("codl sleep") >= 3
    assert "codl sleep: 1 s so far" in done.stderr
    assert command_line.python(code, "sleep", "-q").stderr == ""


def test_ctrl_c_while_modules_are_imported_shows_no_trace() -> None:
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'codl.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "from codl import cli\n"
        "sys.meta_path.insert(0, Finder()); cli.main()"
    )
    assert command_line.python(code, ends=-signal.SIGINT).stderr == ""


def test_a_full_disk_behind_stderr_loses_no_result() -> None:
    code = (
        "from codl.cli import output; output.note('x'); output.warn('y');"
        "output.Output().emit('run', {}, lambda: 'done')"
    )
    with Path("/dev/full").open("w") as full:
        streams = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": full}
        assert command_line.python(code, **streams).stdout == "done\n"


def test_outputs_without_any_number_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    nothing, little = np.full(3, np.nan), np.array([np.inf, 1.0])
    _warn_of_no_numbers({"y": nothing, "z": little})
    assert "The output 'y' has no number: all 3 values" in capsys.readouterr().err
    _warn_of_no_numbers({"z": little})
    assert capsys.readouterr().err == ""
