"""This machine as a device over ssh, with a real server on loopback and the real client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support import sshd
from support.plans import make_plan
from support.whole_way import MODEL, QUICK, SOC, check_table, codl, install_to_train, manifest

from codl.errors import DeviceError
from codl.frontend.convert import load_network
from codl.ir import parse
from codl.kernels import registry
from codl.machine.placement import LocalSoc
from codl.measure.check_variants import CheckTask
from codl.targets import local, ssh
from codl.targets.connect import connect
from codl.targets.kernel_runs import check_kernels

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(sshd.SERVER is None, reason="there is no sshd here"),
]

FC = parse("fc in=1x19x3x2 oc=21 act=relu")


@dataclass(frozen=True)
class Board:
    """This machine behind a server; `folder` is where a user works with it."""

    server: sshd.Server
    folder: Path

    @property
    def serial(self) -> str:
        return self.server.serial


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, first_soc: LocalSoc) -> Iterator[Board]:
    """One with the agent, of which a dataset was collected and predictors were trained."""
    folder = tmp_path_factory.mktemp("board")
    for name in ("sshd", "work"):
        (folder / name).mkdir()
    with sshd.serving(folder / "sshd") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ssh.VARIABLE, server.client)
        patch.setattr(ssh, "FOLDER", str(folder / "device"))
        patch.setattr("codl.measure.collector.Rounds", lambda: QUICK)
        with pytest.MonkeyPatch.context() as there:
            there.chdir(folder / "work")
            install_to_train(server.serial, first_soc.placement.icd)
        yield Board(server, folder / "work")


@pytest.fixture(autouse=True)
def _in_its_folder(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(board.folder)


def test_from_an_empty_board_to_a_table(board: Board) -> None:
    (run,) = manifest()["runs"].values()
    assert run["serial"] == board.serial
    again = ["agent", "install", "--serial", board.serial, "--python", sys.executable]
    assert not codl(*again)["is_new"]
    check_table(board.serial)


def test_what_the_doctor_asks_is_answered_there(board: Board, first_soc: LocalSoc) -> None:
    """Its checks are the host's: none of them is in the agent's file."""
    tasks = [CheckTask(FC, registry.find(FC, name)) for name in ("cpu_gemv", "gpu_direct")]
    with closing(connect(board.serial, first_soc)) as target, closing(connect("local")) as here:
        there = target.examine()
        assert (there.packages, there.cores) == (here.examine().packages, here.examine().cores)
        assert target.import_package("numpy") >= 0
        run = check_kernels(target, tasks)
    assert [(own.task.key, own.problem) for own in run.checked] == [(t.key, "") for t in tasks]


def test_a_split_model_is_packaged_and_runs_there(
    board: Board, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process opens no OpenCL device: all kernels are compiled on the board."""
    network = load_network(MODEL)
    cuts = [(1, "H", 0.5), (1, "H", 1.0), (1, "OC", 0.5)]
    make_plan(network, replace(first_soc, name=SOC), cuts).save(Path("plan.json"))
    x = np.random.default_rng(0).random(tuple(network.inputs["image"]), np.float32)
    np.savez("in.npz", image=x)
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"image": x})
    monkeypatch.setattr(local, "OpenClDevice", lambda *arguments: pytest.fail("opened here"))
    there, plan = ["--serial", board.serial, "--soc", SOC], ["--plan", "plan.json"]
    made = codl("package", MODEL, *there, *plan, "-o", "small.codl")
    assert made["cold_start_ms"] > made["without_interpreter_ms"] > 0
    assert made["serial"] == board.serial
    for model, how in (("small.codl", there[:2]), ("small.codl", there), (MODEL, [*there, *plan])):
        given = [*how, "--rounds", "2", "--inputs", "in.npz", "--outputs", "out.npz"]
        ran = codl("run", model, *given)
        assert (ran["serial"], ran["soc"], ran["fallbacks"]) == (board.serial, SOC, [])
        assert {span["processor"] for span in ran["spans"]} == {"cpu", "gpu"}
        with np.load("out.npz") as content:
            (found,) = (content[name] for name in content.files)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_key_that_is_not_let_in(board: Board) -> None:
    keys = board.server.folder / "user.pub"
    known = keys.read_text()
    keys.write_text("")
    try:
        with (
            closing(connect(board.serial)) as target,
            pytest.raises(DeviceError, match="ssh-copy-id"),
        ):
            target.describe()
    finally:
        keys.write_text(known)
