"""Mutated files of every format: read, or one clear error. `scripts/fuzz.py` has many more."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fuzzing import fuzz
from support.readers import READERS

from codl.jobs.bundle import loading


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_read_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_warn", lambda text: None)
    count = 10 if name in ("models", "predictors") else 60
    _, refused = fuzz(READERS[name](tmp_path), count, 5)
    assert refused > 0
