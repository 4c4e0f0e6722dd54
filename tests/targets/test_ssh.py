"""This machine as a device over ssh, with a real server on loopback and the real client."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import sshd
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import DeviceError
from codl.measure.dataset import Dataset
from codl.runtime.placement import LocalSoc
from codl.targets import ssh
from codl.targets.connect import connect
from codl.targets.install import install

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(sshd.SERVER is None, reason="there is no sshd here"),
]


@pytest.fixture
def serial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A serial behind which this machine is, with the agent installed in a folder of its own."""
    folder = tmp_path / "sshd"
    folder.mkdir()
    with sshd.running(folder) as (serial, command):
        monkeypatch.setenv(ssh.VARIABLE, command)
        monkeypatch.setattr(ssh, "FOLDER", str(tmp_path / "device"))
        install(ssh.shell_of(serial), [sys.executable])
        yield serial


def codl(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    content: dict[str, object] = json.loads(done.stdout)
    return content


def test_a_device_is_detected_measured_and_run(
    serial: str, first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    detected: Any = codl(
        "soc", "detect", "--serial", serial, "--name", "there", "--device", first_soc.placement.icd
    )
    assert detected["sources"]["gpu.zero_copy"].startswith("measured")
    given = ["--soc", "there", "--serial", serial]
    done = codl("collect", *given, "--ops", "mobilenet_v2", "--samples", "3")
    assert done["failed"] == 0
    (run,) = Dataset.of("there", Path("lat_datasets")).manifest()["runs"].values()
    assert run["serial"] == serial


def test_outputs_are_those_of_this_machine(serial: str, first_soc: LocalSoc) -> None:
    from support.plans import branching, make_plan

    from codl.frontend.convert import convert
    from codl.frontend.graph.onnx_import import import_onnx
    from codl.frontend.graph.simplify_pipeline import simplify
    from codl.runtime.engine import Engine

    network = convert(simplify(import_onnx(branching().build(), "branching")))
    plan = make_plan(network, first_soc, [(1, "H", 0.5)])
    image = np.random.default_rng(0).random((1, 3, 37, 29), np.float32)
    with closing(connect("local", first_soc)) as here, closing(connect(serial, first_soc)) as there:
        engines = [Engine(network, plan, target) for target in (here, there)]
        near, far = (engine({"image": image}) for engine in engines)
    for name, expected in near.items():
        np.testing.assert_allclose(far[name], expected, rtol=1e-6, atol=1e-6)


def test_a_key_that_is_not_let_in(serial: str, tmp_path: Path) -> None:
    (tmp_path / "sshd" / "user.pub").write_text("")
    with closing(connect(serial)) as target, pytest.raises(DeviceError, match="ssh-copy-id"):
        target.describe()
