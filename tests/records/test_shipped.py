"""What comes with codl is found behind what the user has."""

from __future__ import annotations

from pathlib import Path

import pytest

from codl.records import shipped
from codl.records.shipped import found

USUAL = Path("predictors")


def test_what_the_user_has_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, others = tmp_path / "own", tmp_path / "codl"
    monkeypatch.setattr(shipped, "ROOTS", (tmp_path / "nowhere", others))
    (others / "predictors" / "board").mkdir(parents=True)
    assert found("board", USUAL, USUAL) == others / "predictors" / "board"
    assert found("phone", USUAL, USUAL) == USUAL / "phone"
    assert found("board", own, USUAL) == own / "board"
    (USUAL / "board").mkdir(parents=True)
    assert found("board", USUAL, USUAL) == USUAL / "board"
