"""Extras: what runs with the base alone, and what is said where a package is missing."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from support.command_line import MAIN, hiding, python
from support.devices import here
from support.plans import make_plan
from support.references import converted

from codl.errors import BASE, OPTIONAL, PACKAGES, PYTHON
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.ir.records.soc import Soc
from codl.jobs.bundle.packaging import write
from codl.measure.inputs import random_inputs

ROOT = Path(__file__).parents[1]
EXTRAS = {module for own in PACKAGES.values() for module in own}

LOADED = """
import codl, numpy as np
from pathlib import Path
folder = Path(sys.argv[1])
with codl.load(folder / "small.codl") as engine:
    np.savez(folder / "outputs.npz", **engine(dict(np.load(folder / "inputs.npz"))))
"""

COMPILED = """
import numpy as np
from codl.ir import Layer, Network, Shape, parse
from codl.plan.build_plan import default_plan
from codl.machine import placement
from codl.engine.engine import Engine
from codl.targets.local import LocalTarget
op = parse("conv2d in=1x8x16x16 oc=8 kernel=1x1")
weights = {"weight": np.eye(8, dtype=np.float32)[:, :, None, None], "bias": np.ones(8, np.float32)}
layer = Layer("same", op, ("x",), "y", weights)
network = Network("same", (layer,), {"x": op.input}, {"y": ("y", op.output)})
target = LocalTarget(placement.load(sys.argv[1]))
x = np.random.default_rng(0).random(op.input, np.float32)
for processor in ("cpu", "gpu"):
    with Engine(network, default_plan(network, target.soc, processor), target) as engine:
        assert np.allclose(engine({"x": x})["y"], x + 1, atol=1e-6)
"""

PREDICTED = """
from codl.ir import parse
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.predict.model_set import load
from codl.ir.records import soc as socs
soc = socs.load("epyc2")
predictors = load(soc, "codl", tuning=tuning_file.read(Dataset.found("epyc2"), soc))
op = parse("conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1")
assert 0 < predictors.latency_ms("conv2d_cpu_gemm", [op])[0] < 100
"""


def small() -> Network:
    b = ModelBuilder("small")
    b.output(b.relu(b.conv(b.input("image", (1, 3, 20, 16)), 32, 3, pad=1)))
    return converted(b)


def base_only(code: str, *arguments: object, ends: int = 0) -> CompletedProcess[str]:
    """Run code where no package of any extra is installed."""
    return python(hiding(EXTRAS) + code, *arguments, ends=ends, cwd=ROOT)


def test_a_bundle_runs_with_the_base_alone(first_soc: Soc, tmp_path: Path) -> None:
    network = small()
    inputs = random_inputs(network)
    plan = make_plan(network, first_soc, [(1, "OC", 0.5)])
    with write(network, plan, here(first_soc), tmp_path / "small.codl") as engine:
        wanted = engine(inputs)
    np.savez(tmp_path / "inputs.npz", **inputs)
    base_only(LOADED, tmp_path)
    outputs = np.load(tmp_path / "outputs.npz")
    for name, value in wanted.items():
        np.testing.assert_array_equal(outputs[name], value)


def test_a_network_is_compiled_with_the_base_alone(first_soc: Soc, tmp_path: Path) -> None:
    first_soc.save(tmp_path / "host.yaml")
    base_only(COMPILED, tmp_path / "host.yaml")


def test_stored_predictors_need_the_base_alone() -> None:
    base_only(PREDICTED)


@pytest.mark.parametrize(
    ("code", "package", "extra"),
    [
        ("import codl.predict.training", "scipy", "train"),
        ("import codl; codl.compile('squeezenet')", "onnx", "onnx"),
        ("from codl.cli import main; main()", "typer", "cli"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(code: str, package: str, extra: str) -> None:
    run = base_only(code, ends=1)
    last = run.stderr.strip().splitlines()[-1]
    assert re.search(
        rf"{package} is not installed; it is needed for .*: `pip install 'codl\[{extra}\]'`\.$",
        last,
    )


def name(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0]


def test_extras_are_those_of_the_wheel() -> None:
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra, packages in PACKAGES.items():
        assert {name(line) for line in extras[extra]} == set(packages.values())
    base = {name(line) for line in project["dependencies"]}
    drivers = {"intel-cmplr-lib-rt", "intel-opencl-rt"}
    assert set(BASE.values()) == base - drivers
    assert project["requires-python"] == f">={'.'.join(map(str, PYTHON))}"
    assert set(OPTIONAL) == set(extras) & set(PACKAGES) - set(
        re.split(r"[\[\],]", extras["all"][0])
    )
    assert not base & {name for own in PACKAGES.values() for name in own.values()}
    assert all(find_spec(name) for name in ("typer", "onnx", "jinja2", "sklearn"))


def cli_only(*arguments: object, ends: int = 0) -> CompletedProcess[str]:
    """Run `codl` with the base and `codl[cli]`."""
    code = f"{hiding(EXTRAS - set(PACKAGES['cli']))}\nsys.argv[0] = 'codl'\n{MAIN}"
    return python(code, *arguments, ends=ends, cwd=ROOT)


@pytest.mark.parametrize(
    "arguments",
    [("--version",), ("--help",), ("run", "--help"), ("devices",), ("soc", "list")],
    ids=" ".join,
)
def test_commands_that_read_no_model_need_the_command_line_alone(
    arguments: tuple[str, ...],
) -> None:
    assert cli_only(*arguments).stdout


def test_the_command_line_alone_runs_and_shows_a_bundle(first_soc: Soc, tmp_path: Path) -> None:
    network = small()
    path = tmp_path / "small.codl"
    plan = make_plan(network, first_soc, [(1, "OC", 0.5)])
    write(network, plan, here(first_soc), path).close()
    for command in ("run", "show"):
        assert json.loads(cli_only(command, path, "--json").stdout)


def test_a_command_whose_package_is_missing_says_which() -> None:
    run = cli_only("search", "a.onnx", "--soc", "epyc2", ends=1)
    assert "onnx is not installed" in run.stderr
    assert "pip install 'codl[onnx]'" in run.stderr
