"""`codl run` where a kernel or the GPU fails: told, or with --strict an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from support.failing_driver import Calls, calls_of
from support.failing_kernels import Failing, source
from support.variants import with_variants
from support.whole_way import write_model
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, CodlWarning
from codl.frontend.convert import load_network
from codl.ir.records.soc import Soc
from codl.jobs import run
from codl.kernels import registry
from codl.plan.build_plan import preferring

RUN = ["run", "small.onnx", "--soc", "test", "--plan", "plan.json", "--rounds", "1", "--json"]
LOST = -36


@pytest.fixture
def folder(tmp_path: Path, first_soc: Soc, monkeypatch: pytest.MonkeyPatch) -> Path:
    first_soc.save(tmp_path / "socs" / "test.yaml")
    write_model(tmp_path / "small.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def failing(folder: Path, first_soc: Soc, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the usual convolution, which does not build."""
    usual = registry.variants(load_network("small.onnx").layers[0].op, "gpu", first_soc)[0]
    spoilt: Any = Failing(source(folder, "no_such_function();"))
    with_variants(monkeypatch)
    registry.register(spoilt, before=usual.name)
    return str(spoilt.name)


def answer(soc: Soc, *more: str) -> dict[str, Any]:
    """What `codl run` answers of everything on the GPU, in the usual variants."""
    preferring(load_network("small.onnx"), soc, "gpu").save(Path("plan.json"))
    done = CliRunner().invoke(app, [*RUN, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_a_kernel_that_does_not_build_is_told_or_an_error(failing: str, first_soc: Soc) -> None:
    with pytest.warns(CodlWarning, match=failing):
        found = answer(first_soc)
    (one,) = found["fallbacks"]
    assert (one["layer"], one["variant"]) == ("conv1", failing)
    (row,) = (row for row in found["placement"] if row["op"] == "conv1")
    assert (row["variant"], row["reason"]) == (
        one["instead"], f"in place of {failing}, which fails",
    )  # fmt: skip
    with (
        pytest.warns(CodlWarning, match=failing),
        pytest.raises(CodlError, match=f"--strict: 'conv1' .*{failing}"),
    ):
        answer(first_soc, "--strict")


@pytest.fixture
def lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """The device is lost once an engine is there."""
    usual = run.measure
    with calls_of() as calls:

        def measure(*args: Any, **options: Any) -> Any:
            calls.plan(1, LOST, inf)
            return usual(*args, **options)

        monkeypatch.setattr(run, "measure", measure)
        yield calls


def test_a_lost_gpu_is_told_or_an_error(lost: Calls, first_soc: Soc) -> None:
    with pytest.warns(CodlWarning, match="The CPU does this inference again"):
        found = answer(first_soc)
    assert "the device is gone" in found["gpu_failure"]
    assert {row["processor"] for row in found["placement"]} == {"cpu"}
    lost.plan()
    with pytest.raises(CodlError, match="small"):
        answer(first_soc, "--strict")


def test_strictly_what_does_not_fail_runs_as_ever(folder: Path, first_soc: Soc) -> None:
    found = answer(first_soc, "--strict")
    assert (found["fallbacks"], found["gpu_failure"]) == ([], "")
