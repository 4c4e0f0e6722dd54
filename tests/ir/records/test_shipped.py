"""What comes with codl is found behind what the user has."""

from __future__ import annotations

from pathlib import Path

import pytest

from codl import files
from codl.files import own_or_shipped

USUAL = Path("predictors")


def test_what_the_user_has_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, others = tmp_path / "own", tmp_path / "codl"
    monkeypatch.setattr(files, "ROOTS", (tmp_path / "nowhere", others))
    (others / "predictors" / "board").mkdir(parents=True)
    assert own_or_shipped("board", USUAL, USUAL) == others / "predictors" / "board"
    assert own_or_shipped("phone", USUAL, USUAL) == USUAL / "phone"
    assert own_or_shipped("board", own, USUAL) == own / "board"
    (USUAL / "board").mkdir(parents=True)
    assert own_or_shipped("board", USUAL, USUAL) == USUAL / "board"
