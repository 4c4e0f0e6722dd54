"""What goes wrong with a device over ssh, with a real server on loopback and the real client.

The agent is a real one over a device that is none, so that nothing here opens a driver.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from support import sshd
from support.device_doubles import BOARD, SteppingClock, keys, wanted
from support.simulated import conv_tasks

from codl.errors import CodlWarning, DeviceError
from codl.kernels.tuning import Tuning
from codl.measure.collector import Collected, Collection
from codl.measure.dataset import Dataset
from codl.measure.tasks import MeasureBatch
from codl.measure.timing import Rounds
from codl.targets import ssh
from codl.targets.connect import connect
from codl.targets.connection import AgentLostError
from codl.targets.install import ARCHIVE, LAUNCH, LAUNCHER
from codl.targets.measuring import Arriving, Measure
from codl.targets.remote import RemoteTarget

pytestmark = pytest.mark.skipif(sshd.SERVER is None, reason="there is no sshd here")
TASKS = conv_tasks()[:10]
QUICK = Rounds(span_s=1.0)
BATCH = MeasureBatch(tuple(TASKS), "run1", QUICK, Tuning(), float("inf"), {}, {})
TESTS = Path(__file__).parent.parent
LONGEST_S = 60.0


class Board:
    """This machine over ssh, with an agent in whose first batch something goes wrong."""

    def __init__(self, server: sshd.Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.fault = "none"

    def breaks(self, fault: str) -> None:
        self.fault = fault
        paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        program = [sys.executable, "-m", "support.scripted_agent", str(self.folder), fault]
        text = f"PYTHONPATH={shlex.quote(paths)} {shlex.join(program)}\nexit $?\n"
        (self.folder / LAUNCHER).write_text(text)

    @property
    def agent(self) -> int:
        """The process in which the fault came."""
        return int((self.folder / self.fault).read_text())

    def target(self) -> RemoteTarget:
        target = connect(self.server.serial, BOARD)
        assert isinstance(target, RemoteTarget)
        return target


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    folder, device = tmp_path / "sshd", tmp_path / "device"
    folder.mkdir()
    device.mkdir()
    with sshd.serving(folder) as server:
        monkeypatch.setenv(ssh.VARIABLE, server.client)
        monkeypatch.setattr(ssh, "FOLDER", str(device))
        yield Board(server, device)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.of("board", tmp_path / "lat_datasets")


def check(dataset: Dataset, done: Collected) -> None:
    """No row is lost, doubled, or failed because of the way to the device."""
    assert (done.left, done.failed) == (0, 0)
    assert keys(dataset) == wanted(TASKS)


def after_rows(count: int, do: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when so many rows have arrived."""
    hear, heard = Arriving.on_event, []

    def listening(self: Arriving, kind: Any, *event: Any) -> None:
        hear(self, kind, *event)
        if kind == "done":
            heard.append(event)
            if len(heard) == count:
                do()

    monkeypatch.setattr(Arriving, "on_event", listening)


def collected(target: RemoteTarget, dataset: Dataset, clock: SteppingClock) -> Collected:
    cooling = clock.cooling(target.conditions)
    return Collection(target, dataset, TASKS, rounds=QUICK, cooling=cooling).run()


def is_there(pid: int) -> bool:
    """Whether a process is at work, and not only waited for."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def until_gone(pid: int) -> None:
    end = monotonic() + LONGEST_S
    while is_there(pid):
        assert monotonic() < end
        sleep(0.01)


@pytest.mark.parametrize("fault", ["killed", "garbage", "too much"])
def test_an_agent_that_goes_wrong_costs_no_row(board: Board, dataset: Dataset, fault: str) -> None:
    board.breaks(fault)
    with closing(board.target()) as target:
        done = Collection(target, dataset, TASKS, rounds=QUICK).run()
        check(dataset, done)
        assert target.agent.generation == 2
    assert done.lost == 1


def test_a_crash_is_told_from_a_cut(board: Board) -> None:
    """A task may have crashed an agent; where the connection was cut, none is suspected."""
    crash = LAUNCH.format(python="sh -c 'kill -SEGV $$'", archive=ARCHIVE)
    (board.folder / LAUNCHER).write_text(crash)
    with closing(board.target()) as target:
        with pytest.raises(AgentLostError, match="ended with code 139") as crashed:
            target.describe()
        board.breaks("none")
        target.describe()
        os.kill(board.server.session(), signal.SIGKILL)
        how = "closed by remote host|Broken pipe"  # whichever end of ssh notices first
        reason = rf"ended with code 255: .*({how})\.? The connection was cut: is the"
        with pytest.raises(AgentLostError, match=reason) as cut:
            target.describe()
    assert (crashed.value.is_blameless, cut.value.is_blameless) == (False, True)


def test_a_device_that_does_not_come_back_in_mid_row_is_gone_on_with_later(
    board: Board, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.breaks("none")
    after_rows(3, board.server.stop, monkeypatch)
    with closing(board.target()) as target:
        reason = r"No device has answered .* Is an ssh server running there.* go on by --resume\.$"
        with (
            pytest.warns(CodlWarning, match="is tried again"),
            pytest.raises(DeviceError, match=reason),
        ):
            collected(target, dataset, SteppingClock())
        kept = keys(dataset)
        assert len(kept) >= 3
        board.server.start()
        done = Collection(target, dataset, TASKS, rounds=QUICK, resume=True).run()
    assert (done.left, done.failed) == (0, 0)
    assert keys(dataset) == wanted(TASKS)
    assert [key for key in keys(dataset) if key in kept] == kept


@pytest.mark.filterwarnings("ignore:.* is tried again")
@pytest.mark.parametrize("end", ["client", "server"])
def test_a_connection_that_is_cut_mid_row_costs_none(
    board: Board, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """At the host's end, or at the device's, where the session's process dies."""
    board.breaks("none")
    with closing(board.target()) as target:

        def cut() -> None:
            pid = target.agent.pid if end == "client" else board.server.session()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        after_rows(3, cut, monkeypatch)
        done = collected(target, dataset, SteppingClock())
    check(dataset, done)
    assert done.lost == 1


def test_a_device_that_reboots_is_waited_for(
    board: Board, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes with its sessions, and comes back at the same port."""
    board.breaks("none")

    class Rebooting(SteppingClock):
        """The device is back after the second pause."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.waits) == 2:
                board.server.start()

    clock = Rebooting()
    after_rows(3, board.server.stop, monkeypatch)
    with closing(board.target()) as target, pytest.warns(CodlWarning, match="is tried again"):
        done = collected(target, dataset, clock)
    check(dataset, done)
    assert len(clock.waits) == 2
    assert len(dataset.manifest()["runs"]) == 1


def test_a_kernel_that_hangs_is_ended_on_both_sides(
    board: Board, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host ends its client; the agent, whose input is gone, ends by force."""
    board.breaks("hangs")
    monkeypatch.setattr(Measure, "limit_s", 0.5)
    with closing(board.target()) as target:
        target.describe()  # what starts an agent is not what hangs
        result = target.measure(BATCH)
        assert "gave no answer in time and was ended" in result.lost
        assert result.has_hung
        assert len(result.measurements) == 2
        until_gone(board.agent)
