"""Mutated files of every format: read, or one clear error. `scripts/fuzz_readers.py` has more."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.reader_fuzz import Reader, fuzz
from support.readers import readers

from codl.bundle import loading

READERS = readers()


@pytest.mark.parametrize("reader", READERS, ids=lambda one: one.name)
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_read_or_refused(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_warn", lambda text: None)
    count = 10 if reader.name == "models" else 100
    read, refused = fuzz(reader, count, 5, tmp_path)
    assert read + refused == count
    assert refused > 0
