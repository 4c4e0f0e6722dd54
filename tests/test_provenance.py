"""Where a result comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codl import files


def test_the_commit_of_a_package_that_was_changed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        command = ["git", "-C", str(tmp_path), *own, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    source = tmp_path / "codl" / "a.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    monkeypatch.setattr(files, "ROOT", tmp_path)
    commit, revision = files.commit.__wrapped__, git("rev-parse", "--short", "HEAD")
    (tmp_path / "results.json").write_text("{}")  # results change nothing of what computes them
    assert commit() == revision
    (source.parent / "new.py").write_text("")
    assert commit() == f"{revision}{files.DIRTY}"
    (source.parent / "new.py").unlink()
    source.write_text("x = 2\n")
    assert commit() == f"{revision}{files.DIRTY}"
