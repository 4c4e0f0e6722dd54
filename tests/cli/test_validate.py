"""Commands where a kernel, an op or the GPU fails: told, got around, or by --strict an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.failing_driver import Calls, calls_of
from support.faults import Faulty
from support.variants import Failing, source, with_variants
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
    """A folder with a SoC and a small ONNX model, in which commands run; nothing is trained."""
    first_soc.save(tmp_path / "socs" / "test.yaml")
    write_model(tmp_path / "small.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(*arguments: str, code: int = 0, model: str = "small.onnx") -> dict[str, Any]:
    """What `codl validate` of the small model answers."""
    given = ["validate", model, "--soc", "test", *arguments, "--json"]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return dict(json.loads(done.stdout))


def test_every_op_has_a_row(folder: Path) -> None:
    found = answer()
    assert (found["ok"], found["first_bad"], found["fallback"]) == (True, None, [])
    assert [row["op"] for row in found["ops"]] == ["conv1", "pool1", "fc1"]
    keys = {"processor", "cosine", "max_rel_err", "nan", "inf", "overflow", "largest", "variant"}
    for row in found["ops"]:
        assert keys <= row.keys()
        assert row["ok"]
        assert row["cosine"] > 0.99999
        assert row["placed"]
        assert row["precision"]["computed"] == "float32"
        assert row["accumulated_max_rel_err"] < 1e-4
    assert found["cosine"] > 0.99999
    assert found["reference"] == "ONNX Runtime"
    assert found["seed"] is not None
    assert [one["op"] for one in found["placement"]] == ["conv1", "pool1", "fc1"]
    assert found["environment"]["protocol"]["cosine"] == 0.9999
    assert found["digests"]["models"].keys() == found["digests"]["plans"].keys() == {"small"}


def test_inputs_may_be_given(folder: Path) -> None:
    np.savez(folder / "in.npz", image=np.full((1, 8, 16, 16), 3, np.float32))
    found = answer("--inputs", "in.npz", "-o", "result.json")
    assert (found["input"], found["seed"]) == ("in.npz", None)
    assert found["ops"][0]["ok"]
    assert json.loads((folder / "result.json").read_text())["ops"] == found["ops"]
    assert answer("--seed", "3")["outputs"] != answer("--seed", "4")["outputs"]


def test_a_processor_and_a_precision_may_be_given(folder: Path) -> None:
    """Nothing is trained."""
    found = answer("--strategy", "cpu")
    assert {row["processor"] for row in found["ops"]} == {"cpu"}
    halves = answer("--precision", "half_storage", "--cosine", "0.999")
    assert {row["precision"]["stored"] for row in halves["ops"]} == {"float16"}
    assert 1e-6 < halves["max_rel_err"] < 2e-2


def test_several_samples_are_compared_by_their_classes(folder: Path) -> None:
    (folder / "samples").mkdir()
    for number in range(3):
        image = np.random.default_rng(number).standard_normal((1, 8, 16, 16), np.float32)
        np.savez(folder / "samples" / f"{number}.npz", image=image)
    found = answer("--inputs", "samples")
    assert (found["agreement"]["samples"], found["agreement"]["top1"]) == (3, 1.0)
    assert found["lowest"]["file"] in ("0.npz", "1.npz", "2.npz")
    assert found["lowest"]["cosine"] == found["cosine"]
    (folder / "none").mkdir()
    with pytest.raises(CodlError, match="there is no"):
        answer("--inputs", "none")


def test_what_the_budget_does_not_reach_is_told(folder: Path) -> None:
    found = answer("--budget", "0.001s", code=1)
    assert [(row["ok"], row["verdict"]) for row in found["ops"]] == [
        (True, "ok"), (None, "not reached"), (None, "not reached"),
    ]  # fmt: skip
    assert found["left"] == {"ops": ["pool1", "fc1"], "samples": 0}
    assert (found["ok"], found["first_bad"], found["remedy"]) == (False, None, None)
    assert found["diagnosis"].endswith("Not reached in time: 2 parts of ops.")
    assert found["ops"][1]["cosine"] is None


@pytest.fixture
def faulty(folder: Path, first_soc: Soc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a faulty convolution that goes before all others."""
    op = load_network("small.onnx").layers[0].op
    usual = registry.variants(op, "gpu", first_soc)[0]
    with_variants(monkeypatch)
    variant: Any = Faulty(usual, "border", tmp_path)
    registry.register(variant, before=usual.name)
    return str(variant.name)


def test_a_faulty_op_is_got_around_and_stays_so(folder: Path, faulty: str) -> None:
    """By the plan; with --strict it is not."""
    strict = answer("--strict", code=1)
    assert (strict["first_bad"], strict["fallback"], strict["remedy"]) == ("conv1", [], None)
    found = answer("--write-plan", "plan.json")
    assert (found["ok"], found["first_bad"]) == (False, "conv1")
    assert [(row["op"], row["ok"]) for row in found["ops"]][:2] == [
        ("conv1", False),
        ("pool1", True),
    ]
    (one,) = found["fallback"]
    assert (one["op"], one["processor"], one["variant"]) == ("conv1", "gpu", faulty)
    assert found["remedy"]["ok"]
    assert found["remedy"]["outputs"]["cosine"] >= 0.9999
    planned = answer("--plan", "plan.json")
    assert planned["ok"]
    assert planned["placement"][0]["reason"].startswith(f"in place of {faulty}: wrong")
    done = CliRunner().invoke(app, RUN, catch_exceptions=False)
    assert json.loads(done.stdout)["planned_fallbacks"] == found["fallback"]


@pytest.fixture
def failing(folder: Path, first_soc: Soc, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the usual convolution, which does not build."""
    usual = registry.variants(load_network("small.onnx").layers[0].op, "gpu", first_soc)[0]
    spoilt: Any = Failing(source(folder, "no_such_function();"))
    with_variants(monkeypatch)
    registry.register(spoilt, before=usual.name)
    return str(spoilt.name)


def ran(soc: Soc, *more: str) -> dict[str, Any]:
    """What `codl run` answers of everything on the GPU, in the usual variants."""
    preferring(load_network("small.onnx"), soc, "gpu").save(Path("plan.json"))
    done = CliRunner().invoke(app, [*RUN, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_a_kernel_that_does_not_build_is_told_or_an_error(failing: str, first_soc: Soc) -> None:
    with pytest.warns(CodlWarning, match=failing):
        found = ran(first_soc)
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
        ran(first_soc, "--strict")


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
        found = ran(first_soc)
    assert "the device is gone" in found["gpu_failure"]
    assert {row["processor"] for row in found["placement"]} == {"cpu"}
    lost.plan()
    with pytest.raises(CodlError, match="small"):
        ran(first_soc, "--strict")


def test_strictly_what_does_not_fail_runs_as_ever(folder: Path, first_soc: Soc) -> None:
    found = ran(first_soc, "--strict")
    assert (found["fallbacks"], found["gpu_failure"]) == ([], "")
