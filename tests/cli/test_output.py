"""What commands say: nothing in it steers the terminal."""

from __future__ import annotations

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
