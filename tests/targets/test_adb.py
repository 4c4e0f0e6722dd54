"""Doubles of phones over adb: the real client and server, and devices that are this machine."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support import adb as bridge
from support import python_builds
from support.adb import Double, Server
from support.adb_device import ALLOWED, ASKED, MODEL, TRAP
from support.device_doubles import SteppingClock
from support.whole_way import QUICK, check_table, codl, install_to_train, manifest

from codl.errors import CodlWarning, DeviceError
from codl.ir import parse
from codl.machine.placement import LocalSoc
from codl.measure.collector import Collection
from codl.measure.dataset import Dataset
from codl.measure.tasks import make_tasks
from codl.targets import adb, install
from codl.targets.connect import connect
from codl.targets.connection import AgentLostError
from codl.targets.device_shell import ShellError

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(bridge.CLIENT is None, reason="there is no adb here"),
]

OPS = [parse("fc in=1x32x5x5 oc=40")]
Plug = Callable[..., Double]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with bridge.serving(tmp_path_factory.mktemp("adb")) as own:
        yield own


@pytest.fixture
def plug(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    with bridge.plugging(server, tmp_path, monkeypatch) as start:
        yield start


@pytest.fixture
def phone(plug: Plug) -> Double:
    """One with the agent."""
    double = plug()
    install.install(adb.shell_of(double.serial), [sys.executable])
    return double


# The real client with the double.


# What codl makes of it.


@pytest.mark.long
def test_from_an_empty_device_to_a_table(
    plug: Plug, tmp_path: Path, first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: QUICK)
    serial = plug().serial
    install_to_train(serial, first_soc.placement.icd)
    (run,) = manifest()["runs"].values()
    assert (run["serial"], manifest()["soc"]["chip"]["board"]) == (serial, MODEL)
    again = ["agent", "install", "--serial", serial, "--python", sys.executable]
    assert not codl(*again)["is_new"]
    check_table(serial)


def test_a_device_that_is_not_there_is_told_from_those_that_are(plug: Plug) -> None:
    there = plug().serial
    listed = rf"not found\. `adb devices` lists .*{there} \(device\)"
    with closing(connect("nosuch1")) as target, pytest.raises(DeviceError, match=listed):
        target.describe()
    with pytest.raises(ShellError, match=r"`adb connect 10\.0\.0\.1:5555` reaches it"):
        adb.shell_of("10.0.0.1:5555").run(["true"])


def test_an_unauthorised_device(server: Server, plug: Plug, tmp_path: Path) -> None:
    phone = plug("--locked")
    asked = pytest.raises(DeviceError, match=r"unauthorized\. Unlock the device's screen")
    with asked:
        install.install(adb.shell_of(phone.serial), [sys.executable])
    with closing(connect(phone.serial)) as target, asked:
        target.describe()
    (phone.folder / ASKED).rename(phone.folder / ALLOWED)  # its user allows it
    server.connect(phone)
    assert adb.shell_of(phone.serial).run(["echo", "allowed"]) == b"allowed\n"


def test_an_android_that_is_too_old(plug: Plug) -> None:
    with pytest.raises(ShellError, match="Android 7 or later"):
        adb.shell_of(plug("--features", "cmd").serial).run(["true"])


def test_an_answer_that_was_cut_is_none(phone: Double) -> None:
    shell = adb.shell_of(phone.serial)
    (phone.folder / TRAP).write_text("tomorrow")
    with pytest.raises(ShellError, match="The device went away") as error:
        shell.run(["echo", "today and tomorrow"])
    assert error.value.code == -1


@pytest.mark.parametrize("word", ['"begin"', '"timing"', '"done"'])
def test_a_device_that_vanishes_in_the_middle_of_a_row(
    server: Server, phone: Double, first_soc: LocalSoc, tmp_path: Path, word: str
) -> None:
    dataset, tasks = Dataset(tmp_path / "there"), make_tasks(OPS, first_soc, [0.5, 1.0])
    with closing(connect(phone.serial, first_soc)) as target:
        Collection(target, dataset, tasks[:2], rounds=QUICK).run()
        (phone.folder / TRAP).write_text(word)
        reason = r"(The device went away|Plug it in again).* go on by --resume\.$"
        cut = pytest.raises(DeviceError, match=reason)
        with warnings.catch_warnings(), cut:
            warnings.simplefilter("ignore", CodlWarning)  # it is waited for, where it has worked
            waiting = SteppingClock().cooling(target.conditions)
            Collection(target, dataset, tasks, rounds=QUICK, resume=True, cooling=waiting).run()
        phone.wait()
        with pytest.raises(DeviceError):
            Collection(target, dataset, tasks, rounds=QUICK, resume=True).run()
        phone.start()
        server.connect(phone)
        done = Collection(target, dataset, tasks, rounds=QUICK, resume=True).run()
    assert (done.left, done.failed) == (0, 0)
    for name, table in dataset.tables().items():
        rows = table.read()
        assert Counter(row.key for row in rows) == Counter(
            {task.key for task in tasks if name in task.tables}
        )
        assert {row.status for row in rows} == {"ok"}


def test_a_device_that_was_started_anew(server: Server, phone: Double) -> None:
    with closing(connect(phone.serial)) as target:
        before = target.describe()
        phone.stop()
        phone.start()
        server.connect(phone)
        with pytest.raises(AgentLostError, match="was started anew"):
            target.describe()
        assert target.describe() == before


def test_a_python_of_another_user(plug: Plug) -> None:
    """As Termux's is, where `run-as` lets the shell's user be Termux's."""
    phone = plug()
    tool, app_folder = phone.folder / "bin" / "run-as", phone.folder / "com.termux"
    python = app_folder / "files" / "usr" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    tool.write_text(f'#!/bin/sh\ncd {phone.folder}/"$1" || exit 1\nshift\nexec "$@"\n')
    tool.chmod(0o755)
    (phone.folder / "bin" / "python3").write_text("#!/bin/sh\nexit 127\n")
    (phone.folder / "bin" / "python3").chmod(0o755)
    assert install.install(adb.shell_of(phone.serial)).is_new
    with closing(connect(phone.serial)) as target:
        assert target.describe().cpu.cores


def test_a_phone_that_refuses_to_execute(plug: Plug) -> None:
    """A double of one whose folder lets nothing run: the file may not be executed."""
    phone = plug()
    python = phone.folder / "python3"
    python.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(DeviceError, match=rf"refuses to execute {python}: make it executable"):
        install.install(adb.shell_of(phone.serial), [str(python)])


@pytest.mark.skipif(python_builds.library() is None, reason="this Python has no shared library")
def test_a_phone_without_any_python(plug: Plug, tmp_path: Path) -> None:
    """A double of one: it gets this machine's, laid out as python.org's builds for Android are."""
    serial, build = plug().serial, python_builds.make(tmp_path / "python.tar")
    arguments = ["agent", "install", "--serial", serial, "--python", str(build), "--no-packages"]
    first, again = codl(*arguments), codl(*arguments)
    assert (first["is_new"], again["is_new"]) == (True, False)
    program = Path(first["checked"]["executable"])
    assert program.is_relative_to(adb.FOLDER)
    assert len(program.read_bytes()) < 4096  # made by codl, not this machine's
    assert set(first["checked"]["packages"].values()) == {None}
