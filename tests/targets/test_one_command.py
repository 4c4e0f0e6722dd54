"""A device and published facts: each command finds the rest, and installs the agent.

Phones are doubles over adb, and boards are this machine behind an ssh server: the published facts
are of this machine, but for tests of another chip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from support import adb as bridge
from support import command_line, sshd
from support.adb import Double, Server
from support.adb_device import MODEL
from support.command_line import Ended
from support.whole_way import PLANNED, QUICK, write_model

from codl.ir.records import soc as socs
from codl.ir.records.soc import PublishedSoc, Soc
from codl.machine.placement import LocalSoc, beside
from codl.targets import adb, install, ssh

pytestmark = pytest.mark.device
needs_adb = pytest.mark.skipif(bridge.CLIENT is None, reason="there is no adb here")
needs_sshd = pytest.mark.skipif(sshd.SERVER is None, reason="there is no sshd here")

NAME, MODEL_FILE = "mine", "small.onnx"
FEW = ("--ops", "fc in=1x32x5x5 oc=40", "--samples", "4", "--json")
INSTALLING = "installing the agent of this codl there"
Publish = Callable[..., PublishedSoc]
Plug = Callable[..., Double]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: QUICK)


@pytest.fixture
def publish(first_soc: LocalSoc) -> Publish:
    """Writes facts of this machine as if somebody had published them."""

    def write(folder: Path = Path(), **changes: object) -> PublishedSoc:
        gpu = {"name": first_soc.gpu.name, "type": first_soc.gpu.type, "wave_size": 999}
        content = {
            "name": NAME,
            "description": "A chip of this very machine",
            "source": "published",
            "cpu": {},
            "gpu": gpu,
            "sources": {"gpu": "this test"},
            **changes,
        }
        path = folder / "socs" / f"{NAME}.yaml"
        path.parent.mkdir()
        path.write_text(yaml.safe_dump(content))
        soc = socs.read(path)
        assert isinstance(soc, PublishedSoc)
        return soc

    return write


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with bridge.serving(tmp_path_factory.mktemp("adb")) as own:
        yield own


@pytest.fixture
def plug(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Starts doubles whose `python3` is this one."""
    with bridge.plugging(server, tmp_path, monkeypatch) as start:

        def plugged(name: str = "phone") -> Double:
            double = start(name=name)
            python = double.folder / "bin" / "python3"
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
            return double

        yield plugged


def codl(*words: str) -> Ended:
    return command_line.run(Path(), *words)


def check_completed(published: PublishedSoc, text: str) -> None:
    """The user's folder has the whole SoC, and the published facts beside it."""
    path = Path("socs") / f"{NAME}.yaml"
    soc = socs.read(path)
    assert isinstance(soc, Soc)
    assert soc.description == published.description
    assert soc.gpu.wave_size != 999
    assert beside(path).is_file()
    assert yaml.safe_load((path.parent / f"{NAME}.yaml.before1").read_text()) == (
        published.to_dict()
    )
    assert f"Wrote {path}" in text


def sentences(done: Ended) -> str:
    """The error, beside which nothing was printed."""
    assert done.code == 1
    assert done.stdout == ""
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return error


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@needs_adb
def test_collecting_from_a_new_phone_is_one_command(plug: Plug, publish: Publish) -> None:
    soc, phone = publish(), plug()
    given = ("--soc", NAME, "--serial", phone.serial)
    done = codl("collect", *given, *FEW)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] > 0
    assert f"'{phone.serial}' has no agent: {INSTALLING}" in done.stderr
    check_completed(soc, done.stderr)
    manifest = json.loads(Path("lat_datasets", NAME, "manifest.json").read_text())
    (run,) = manifest["runs"].values()
    assert (run["serial"], manifest["soc"]["chip"]["board"]) == (phone.serial, MODEL)
    again = codl("collect", *given, *FEW, "--resume")
    assert again.code == 0, again.stderr
    assert INSTALLING not in again.stderr
    assert "published" not in again.stderr


@needs_adb
def test_another_chip_is_refused_and_nothing_is_written(plug: Plug, publish: Publish) -> None:
    phone = plug()
    error = sentences(codl("collect", "--soc", "sdm865", "--serial", phone.serial, *FEW))
    assert "Snapdragon 865 (SM8250)" in error
    assert "Adreno 650" in error
    assert f"the device '{phone.serial}' has" in error
    assert f"`codl soc detect --serial {phone.serial} --name NAME`" in error
    assert files() == []
    publish(chips=["SM8250"], sources={"gpu": "this test", "chips": "this test"})
    tool = phone.folder / "bin" / "getprop"
    tool.write_text('#!/bin/sh\n[ "$1" = ro.soc.model ] && echo SM8450\n')
    before = files()
    error = sentences(codl("run", "alexnet", "--soc", NAME, "--serial", phone.serial))
    assert "systems call SM8250" in error
    assert "the chip 'SM8450'" in error
    assert files() == before


@needs_adb
@pytest.mark.parametrize("serial", ["adb:my phone [2]", "my phone [bold]", "127.0.0.1:1"])
def test_serials_that_lead_nowhere(plug: Plug, serial: str) -> None:
    plug()
    error = sentences(codl("collect", "--soc", "sdm865", "--serial", serial, *FEW))
    assert serial.removeprefix("adb:") in error
    assert "not found" in error or "Unknown serial" in error
    assert files() == []


@needs_adb
def test_an_agent_is_installed_only_where_that_is_allowed(
    plug: Plug, publish: Publish, tmp_path: Path
) -> None:
    publish()
    phone, there = plug(), Path(adb.FOLDER)
    before = files()
    for words in (
        ("collect", "--soc", NAME, *FEW),
        ("eval", "--soc", NAME),
        ("search", "alexnet", "--soc", NAME),
        ("run", "alexnet", "--soc", NAME),
        ("devices",),
    ):
        error = sentences(codl(*words, "--serial", phone.serial, "--no-install"))
        assert f"'{phone.serial}' has no agent, and --no-install keeps it so" in error
        assert f"`codl agent install --serial {phone.serial}`" in error
        assert not there.exists()
        assert files() == before
    refused = codl("doctor", "--quick", "--json", "--serial", phone.serial, "--no-install")
    checks = {check["name"]: check for check in json.loads(refused.stdout)["checks"]}
    assert not checks["agent"]["ok"]
    assert not there.exists()
    done = codl("doctor", "--quick", "--json", "--serial", phone.serial)
    assert f"'{phone.serial}' has no agent: {INSTALLING}" in done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["agent"]["ok"]


@needs_adb
def test_an_agent_of_another_codl_is_replaced_by_the_same_python(
    plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone, python = plug(), ["env", "A_WORD=of two", sys.executable]
    shell = adb.shell_of(phone.serial)
    with monkeypatch.context() as patch:
        patch.setattr(install, "build", lambda: "0123")
        install.agent_file.cache_clear()
        install.install(shell, python)
    install.agent_file.cache_clear()
    refused = codl("devices", "--serial", phone.serial, "--no-install")
    assert "has an agent of another codl, and --no-install" in sentences(refused)
    done = codl("devices", "--serial", phone.serial)
    assert done.code == 0, done.stderr
    assert f"has an agent of another codl: {INSTALLING}" in done.stderr
    assert install.python_of(shell) == python
    Path(adb.FOLDER, install.ARCHIVE).write_bytes(b"half of it")
    mended = codl("devices", "--serial", phone.serial)
    assert mended.code == 0, mended.stderr
    assert INSTALLING in mended.stderr
    assert INSTALLING not in codl("devices", "--serial", phone.serial).stderr


@needs_sshd
def test_from_an_empty_board_to_a_run(
    tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    soc = publish()
    write_model(Path(MODEL_FILE))
    (tmp_path / "sshd").mkdir()
    monkeypatch.setattr(ssh, "FOLDER", str(tmp_path / "board"))
    monkeypatch.setattr(install, "PYTHONS", ((sys.executable,),))
    with sshd.serving(tmp_path / "sshd") as server:
        monkeypatch.setenv(ssh.VARIABLE, server.client)
        serial = server.serial
        given = ("--soc", NAME, "--serial", serial)
        early = codl("run", MODEL_FILE, *given)  # it finds out that predictors are missing
        assert "codl train" in sentences(early)
        assert f"'{serial}' has no agent: {INSTALLING}" in early.stderr
        check_completed(soc, early.stderr)
        some = ("--ops", MODEL_FILE, "--shares", "0.5,1", "--samples", "40")
        assert codl("collect", *given, *some).code == 0
        assert codl("train", "--soc", NAME, *PLANNED, "--no-evaluate").code == 0
        ran = codl("run", MODEL_FILE, *given, *PLANNED, "--rounds", "2", "--json")
        assert ran.code == 0, ran.stderr
        assert json.loads(ran.stdout)["serial"] == serial
        assert INSTALLING not in ran.stderr


def test_from_an_empty_home_on_this_machine(tmp_path: Path, publish: Publish) -> None:
    """A command of its own, whose home is a folder that CODL_HOME names."""
    home = tmp_path / "elsewhere"
    home.mkdir()
    soc = publish(home)
    given = ("--soc", NAME, "--serial", "process")
    done = subprocess.run(
        [sys.executable, "-m", "codl", "collect", *given, *FEW],
        env={**os.environ, "CODL_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] > 0
    assert files() == []
    whole = socs.read(home / "socs" / f"{NAME}.yaml")
    assert isinstance(whole, Soc)
    assert whole.description == soc.description
    assert f"Wrote {home / 'socs' / NAME}.yaml" in done.stderr
