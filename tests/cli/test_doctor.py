"""`codl doctor`: this machine passes; what is broken is a failed check and never a trace."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import command_line
from typer.testing import CliRunner, Result

from codl.cli.app import SIGNALLED, app
from codl.registry import rolled_back
from codl.targets.checks import CHECKS, Check, CheckResult, DeviceUnderTest, register

KEYS = {"name", "ok", "detail", "fix"}


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)


def checks(result: Result) -> dict[str, dict[str, Any]]:
    found = json.loads(result.stdout)["checks"]
    assert all(set(one) == KEYS and isinstance(one["ok"], bool) for one in found)
    names = [one["name"] for one in found]
    assert len(names) == len(set(names))
    return {one["name"]: one for one in found}


@pytest.mark.long
def test_all_checks_pass_on_this_machine(
    devices: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)  # which all tests run with
    file = tmp_path / "doctor.json"
    # All kernels are looked at by tests of their own.
    result = doctor("--json", "--budget", "4s", "-o", str(file))
    found = checks(result)
    assert json.loads(file.read_text()) == json.loads(result.stdout)
    assert not [one for one in found.values() if not one["ok"]]
    assert result.exit_code == 0
    assert {"agent", "python", "package numpy", "opencl loader"} <= set(found)
    for device in devices:
        title = f"{device.name} ({device.icd})"
        assert {f"opencl driver {device.icd}", f"opencl device {title}"} <= set(found)
        assert "compute what NumPy does" in found[f"kernels on {title}"]["detail"]


@pytest.fixture
def _only() -> Iterator[None]:
    """No check is registered but those that the test adds."""
    with rolled_back(always=True):
        CHECKS._entries, CHECKS._places = {}, {}
        yield


def outcomes(*found: CheckResult, **more: Any) -> Check:
    return Check("thing", lambda under_test: iter(found), "Turn [it] on.", **more)


def raises(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
    yield CheckResult(True, "begins well", of="first")
    raise ZeroDivisionError("a defect")


@pytest.mark.usefixtures("_only")
def test_a_failed_check_has_its_fix_and_ends_with_one() -> None:
    register(outcomes(CheckResult(True, "fine", of="one"), CheckResult(False, "off [0]", of="two")))
    result = doctor("--json")
    assert result.exit_code == 1
    assert list(checks(result).values()) == [
        {"name": "thing one", "ok": True, "detail": "fine", "fix": ""},
        {"name": "thing two", "ok": False, "detail": "off [0]", "fix": "Turn [it] on."},
    ]
    table = doctor()
    assert table.exit_code == 1
    assert "off [0]" in table.stdout
    assert "Turn [it] on." in table.stdout
    assert "2 checks, 1 failed" in table.stdout


@pytest.mark.usefixtures("_only")
def test_quick_leaves_out_what_takes_long() -> None:
    register(outcomes(CheckResult(False, "slow"), is_long=True))
    result = doctor("--quick", "--json")
    assert result.exit_code == 0
    assert checks(result) == {}


@pytest.mark.usefixtures("_only")
def test_a_check_that_breaks_is_a_failed_one() -> None:
    register(
        Check("breaking", raises, "Say so."), Check("next", lambda own: [CheckResult(True, "")], "")
    )
    found = checks(doctor("--json"))
    assert found["breaking first"]["ok"]
    assert found["breaking"]["detail"] == "ZeroDivisionError: a defect"
    assert found["next"]["ok"]


@pytest.mark.usefixtures("_only")
def test_ctrl_c_keeps_the_checks_before(tmp_path: Path) -> None:
    def end(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
        raise KeyboardInterrupt

    register(outcomes(CheckResult(True, "fine", of="one")))
    register(Check("other", end, "Wait for it."))
    done = command_line.run(tmp_path, "doctor", "--json")
    assert done.code == SIGNALLED + signal.SIGINT
    assert [one["name"] for one in json.loads(done.stdout)["checks"]] == ["thing one"]
    assert "Interrupted. The checks before are kept." in done.stderr


@pytest.mark.usefixtures("_only")
def test_nothing_is_asked_of_a_device_that_does_not_answer() -> None:
    register(
        Check(
            "way", lambda own: [CheckResult(False, "gone")], "Plug it in.", "nothing", decides=True
        ),
        Check("there", lambda own: [CheckResult(True, "")], ""),
        Check("here", lambda own: [CheckResult(True, "")], "", "nothing"),
    )
    assert set(checks(doctor("--json", "--serial", "process"))) == {"way", "here"}


@pytest.mark.device
def test_it_runs_where_extras_are_missing() -> None:
    """Processes that it starts have them all: what is missing there is what they find."""
    code = command_line.hiding(["onnx", "onnxruntime", "pandas"]) + command_line.MAIN
    done = command_line.python(code, "doctor", "--quick", "--json", ends=None)
    assert "Traceback" not in done.stderr
    assert {"agent", "extra onnx"} <= {one["name"] for one in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("numpy", "numpy is not installed, and codl does nothing without it: `pip install codl`."),
        ("typer", "typer is not installed; it is needed for the command line"),
    ],
)
def test_where_nothing_can_run_a_sentence_says_why(missing: str, said: str) -> None:
    code = command_line.hiding([missing]) + command_line.MAIN
    done = command_line.python(code, "doctor", ends=1)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
