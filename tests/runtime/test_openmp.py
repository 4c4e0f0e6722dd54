"""ncnn's threads sleep soon; what the user says of it stands, and the environment is as before."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

CHECK = "import os; from codl.runtime import ncnn_net; print(os.environ.get('GOMP_SPINCOUNT'))"


def _loaded(**variables: str) -> subprocess.CompletedProcess[str]:
    """A process that loads ncnn, whose OpenMP tells what it read."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**kept, "OMP_DISPLAY_ENV": "VERBOSE", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere OpenMP's own waits are brief")
def test_openmp_reads_a_brief_wait() -> None:
    done = _loaded()
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr
    assert done.stdout.strip() == "None"


def test_what_the_user_says_stands() -> None:
    done = _loaded(GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '77'" in done.stderr
    assert done.stdout.strip() == "77"
