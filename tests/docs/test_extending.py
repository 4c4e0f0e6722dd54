"""The plugin of docs/howto/extending.md: its files pass the common test, and its commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support import command_line
from support import common_checks as common
from support.devices import here
from support.plans import make_plan
from support.references import evaluate
from support.whole_way import QUICK

import codl
from codl.errors import InvalidFileError
from codl.frontend.convert import load_network
from codl.ir import OP_TYPES
from codl.ir.executable_json import check
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.plan.strategies import STRATEGIES
from codl.predict import ESTIMATORS
from codl.registry import TRANSPORTS, VARIABLE, PluginError, load_installed, rolled_back

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/extending.md"
COMMANDS = re.compile(r"^```sh\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
PLUGIN = "codl_lrn"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the page's files."""
    shutil.copytree(PAGE.parent / "lrn", tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def _unloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test loads is unloaded behind it."""
    monkeypatch.setenv(VARIABLE, "")
    before = set(sys.modules)
    with rolled_back(always=True):
        yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in (PLUGIN, "broken"):
            del sys.modules[name]


@pytest.mark.usefixtures("_unloaded")
def test_everything_in_it_passes_the_common_test(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registries = (OP_TYPES, registry.VARIANTS, STRATEGIES, ESTIMATORS, TRANSPORTS)
    known = [set(one) for one in registries]
    codl.load_plugin(folder / PLUGIN)
    ops, variants, strategies, estimators, targets = (
        set(one) - before for one, before in zip(registries, known, strict=True)
    )
    assert targets == {"nice"}
    assert ops == {"lrn"}
    assert variants == {"lrn cpu_direct", "lrn gpu_direct", "lrn cpu_ort"}
    assert strategies == {"rows"}
    assert estimators == {"power_law"}
    common.check_op("lrn")
    for name in variants:
        common.check_variant(registry.VARIANTS[name])
    common.check_strategy(STRATEGIES["rows"])
    common.check_estimator("power_law", ESTIMATORS["power_law"])


@pytest.mark.usefixtures("_unloaded")
def test_a_model_with_its_node_has_its_op(folder: Path) -> None:
    subprocess.run([sys.executable, "make_model.py"], cwd=folder, check=True)
    model = str(folder / "lrn.onnx")
    assert [layer.op.kind for layer in load_network(model).layers] == ["conv2d", "onnx", "pooling"]
    codl.load_plugin(folder / PLUGIN)
    assert [layer.op.kind for layer in load_network(model).layers] == ["conv2d", "lrn", "pooling"]


@pytest.mark.usefixtures("_unloaded")
def test_it_is_loaded_by_the_variable_and_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(folder / PLUGIN))
    load_installed()
    load_installed()
    assert codl.load_plugin(folder / PLUGIN) is sys.modules[PLUGIN]
    assert os.environ[VARIABLE] == str(folder / PLUGIN)


@pytest.mark.usefixtures("_unloaded")
def test_it_is_loaded_by_an_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "codl_lrn-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: codl-lrn\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[codl.plugins]\nlrn = {PLUGIN}\n")
    monkeypatch.syspath_prepend(folder)
    load_installed()
    assert "lrn" in OP_TYPES


@pytest.mark.usefixtures("_unloaded")
def test_one_that_fails_adds_nothing(folder: Path) -> None:
    (folder / "broken").mkdir()
    with pytest.raises(InvalidFileError, match=r"a plugin is a folder with an __init__\.py"):
        codl.load_plugin(folder / "broken")
    text = (folder / PLUGIN / "op.py").read_text() + "\n1 / 0\n"
    (folder / "broken/__init__.py").write_text(text)
    with pytest.raises(PluginError, match=r"broken cannot be loaded: ZeroDivisionError"):
        codl.load_plugin(folder / "broken")
    assert "lrn" not in OP_TYPES
    assert "broken" not in sys.modules
    assert os.environ[VARIABLE] == ""


@pytest.mark.long
@pytest.mark.usefixtures("_unloaded", "devices")
def test_its_commands_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collected, trained, planned and run on this machine; the output is ONNX Runtime's."""
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: QUICK)
    (commands,) = COMMANDS.findall(PAGE.read_text())
    for line in commands.splitlines():
        word, *rest = shlex.split(line)
        if word == "export":
            monkeypatch.setenv(*rest[0].split("="))
        elif word == "python":
            subprocess.run([sys.executable, *rest], cwd=folder, check=True)
        else:
            done = command_line.run(folder, *rest)
            assert (word, done.code) == ("codl", 0), f"{line}: {done.stderr}"
    x = np.load(folder / "x.npz")["x"]
    session = onnxruntime.InferenceSession(str(folder / "lrn.onnx"))
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(np.load(folder / "y.npz")["y"], expected, rtol=1e-4, atol=1e-4)
    assert (folder / "lat_datasets/host/t_lrn_gpu_direct.csv").stat().st_size > 0
    assert '"strategy": "rows"' in (folder / "plan.json").read_text()


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
@pytest.mark.usefixtures("_unloaded")
def test_its_kernels_compute_its_reference(folder: Path, soc: Soc, ratio: float) -> None:
    from codl.engine.engine import Engine

    subprocess.run([sys.executable, "make_model.py"], cwd=folder, check=True)
    codl.load_plugin(folder / PLUGIN)
    network, x = load_network(str(folder / "lrn.onnx")), np.load(folder / "x.npz")["x"]
    expected = evaluate(network, {"x": x})["y"]
    plan = make_plan(network, soc, [(len(network.layers), "H", ratio)])
    with Engine(network, plan, here(soc)) as engine:
        check(engine.executable)
        np.testing.assert_allclose(engine({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
