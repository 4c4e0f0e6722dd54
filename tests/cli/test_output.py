"""What commands say: nothing in it steers the terminal."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from codl.cli import output


def test_words_of_a_device_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = "no [bold]room\x1b[2J\x9b1mthere\r\x07\nas it\tsays"
    for say in (output.fail, output.warn):
        say(said)
        shown = capsys.readouterr().err
        assert "no [bold]room\N{REPLACEMENT CHARACTER}[2J" in shown
        assert "there" in shown
        assert "\nas it" in shown
        assert not {*"\x1b\x9b\r\x07"} & {*shown}


def test_results_are_json_whatever_was_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"rows": [{"cosine": float("nan"), "max_rel_err": (float("inf"), 1.0)}]}
    output.emit("eval", result, str, as_json=True, output=tmp_path / "eval.json")
    for text in (capsys.readouterr().out, (tmp_path / "eval.json").read_text()):
        assert msgspec.json.decode(text)["rows"] == [{"cosine": None, "max_rel_err": [None, 1.0]}]
