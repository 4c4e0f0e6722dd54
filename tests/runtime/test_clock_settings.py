"""Clocks that are set are put back whatever happens, on a tree like a phone's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.phone import BIG, KGSL, LITTLE, MALI, contents, devfreq, make_phone, put

from codl.errors import CodlError, CodlWarning
from codl.runtime import cache, clock_settings
from codl.runtime.clock_settings import ClockSettings, Notes, Setting
from codl.runtime.system_files import SystemFiles

GOVERNORS = (
    f"{LITTLE}/scaling_governor",
    f"{BIG}/scaling_governor",
    f"{KGSL}/devfreq/governor",
)
#: Holds the clocks of the tree in its first argument, and ends as the second says.
HOLDING = """
import os, signal, sys, time
from pathlib import Path
from codl.runtime.clock_settings import ClockSettings
from codl.runtime.system_files import SystemFiles
# A shell that runs the tests in the background has these ignored, and so would they be here.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
clocks = ClockSettings(SystemFiles(Path(sys.argv[1])))
clocks.hold("performance")
print("held", flush=True)
how = sys.argv[2]
if how == "error":
    raise RuntimeError("a defect")
if how == "exit":
    sys.exit(3)
if how == "_exit":
    os._exit(3)
if how != "end":
    signal.pause()
"""


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.STATE_VARIABLE, str(tmp_path / "state"))


@pytest.fixture
def files(tmp_path: Path) -> SystemFiles:
    return make_phone(tmp_path / "phone")


def state(files: SystemFiles) -> list[str]:
    return [files.text(path) for path in GOVERNORS]


def test_governors_are_set_and_put_back(files: SystemFiles) -> None:
    before, clocks = contents(files.root), ClockSettings(files)
    handlers = [signal.getsignal(number) for number in clock_settings.ENDING]
    done = clocks.hold("performance")
    assert state(files) == ["performance"] * 3
    assert done.changed == dict.fromkeys(GOVERNORS, "performance")
    assert done.refused == {}
    assert clock_settings.is_left()
    clocks.put_back()
    clocks.put_back()
    assert contents(files.root) == before
    assert not clock_settings.is_left()
    assert [signal.getsignal(number) for number in clock_settings.ENDING] == handlers


def test_another_governor_takes_the_place_of_the_first(files: SystemFiles) -> None:
    before, clocks = contents(files.root), ClockSettings(files)
    clocks.hold("performance")
    clocks.hold("powersave")
    assert state(files) == ["powersave"] * 3
    clocks.put_back()
    assert contents(files.root) == before


def test_a_gpu_without_the_governor_gets_its_highest_clock(tmp_path: Path) -> None:
    own = {**devfreq("simple_ondemand", 300_000_000, 1_000_000_000), "available_governors": "dummy"}
    put(tmp_path / "board", MALI, **own)
    files, before = SystemFiles(tmp_path / "board"), contents(tmp_path / "board")
    clocks = ClockSettings(files)
    clocks.hold("performance")
    assert files.text(f"{MALI}/min_freq") == "1000000000"
    assert files.text(f"{MALI}/governor") == "simple_ondemand"
    clocks.put_back()
    assert contents(files.root) == before


def test_unknown_governors_are_named_with_those_that_there_are(files: SystemFiles) -> None:
    with pytest.raises(
        CodlError, match=r"no governor 'fast'; it has conservative, performance, powersave, sched"
    ):
        ClockSettings(files).hold("fast")
    with pytest.raises(CodlError, match="a name such as performance"):
        ClockSettings(files).hold("a b")
    assert not clock_settings.is_left()
    assert ClockSettings(files).hold("performance").changed  # the lock is free again
    ClockSettings(files).put_back()


def test_a_machine_that_has_none_refuses(tmp_path: Path) -> None:
    done = ClockSettings(SystemFiles(tmp_path / "silent")).hold("performance")
    assert done.changed == {}
    assert list(done.refused.values()) == ["its clocks cannot be set"]


class ReadOnly(SystemFiles):
    """Of which some files may not be written."""

    def write(self, path: str, text: str) -> None:
        if "cpufreq" in path:
            raise PermissionError(13, "Permission denied")
        super().write(path, text)


def test_what_is_not_permitted_is_told_and_the_rest_is_set(files: SystemFiles) -> None:
    before, clocks = contents(files.root), ClockSettings(ReadOnly(files.root))
    done = clocks.hold("performance")
    assert done.changed == {GOVERNORS[2]: "performance"}
    assert done.refused == dict.fromkeys(GOVERNORS[:2], "Permission denied")
    clocks.put_back()
    assert contents(files.root) == before


def test_nothing_is_set_where_no_note_can_be_kept(files: SystemFiles, tmp_path: Path) -> None:
    before = contents(files.root)
    (tmp_path / "state").write_text("a file where a folder is wanted")
    (reason,) = ClockSettings(files).hold("performance").refused.values()
    assert "cannot be kept on disk" in reason
    assert contents(files.root) == before


def test_a_living_process_keeps_its_settings(files: SystemFiles) -> None:
    first, second = ClockSettings(files), ClockSettings(files)
    first.hold("performance")
    assert not second.put_back_left()
    (reason,) = second.hold("powersave").refused.values()
    assert "another codl" in reason
    second.put_back()
    assert state(files) == ["performance"] * 3
    first.put_back()


def test_what_cannot_be_put_back_is_kept_for_the_next(files: SystemFiles) -> None:
    before, clocks = contents(files.root), ClockSettings(files)
    clocks.hold("performance")
    clocks._files = ReadOnly(files.root)
    with pytest.warns(CodlWarning, match=r"policy4/scaling_governor \(was schedutil\)"):
        clocks.put_back()
    assert state(files) == ["performance", "performance", "msm-adreno-tz"]
    assert ClockSettings(files).put_back_left()
    assert contents(files.root) == before


def test_clusters_that_are_gone_are_passed_over(files: SystemFiles) -> None:
    clocks = ClockSettings(files)
    clocks.hold("performance")
    for path in (files.root / BIG).iterdir():
        path.unlink()
    clocks.put_back()
    assert not clock_settings.is_left()


def test_after_a_reboot_only_codls_own_values_go(files: SystemFiles, tmp_path: Path) -> None:
    """The system has set the big cores' governor anew; a boot script keeps the little cores'."""
    notes = Notes()
    notes.lock()
    notes.write([Setting(path, "schedutil", "performance") for path in GOVERNORS[:2]])
    notes.unlock()
    note = tmp_path / "state" / clock_settings.NAME
    note.write_text(json.dumps({**json.loads(note.read_text()), "boot": "of before"}))
    put(files.root, LITTLE, scaling_governor="performance")
    put(files.root, BIG, scaling_governor="interactive")
    assert ClockSettings(files).put_back_left()
    assert state(files)[:2] == ["schedutil", "interactive"]
    assert not clock_settings.is_left()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"version": 1, "boot": "", "settings": [{"path": 1, "former": "a", "wanted": "b"}]}',
        b'{"version": 9, "boot": "", "settings": []}',
        b"[" * 100_000,
        json.dumps(
            {
                "version": 1,
                "boot": clock_settings.this_boot(),
                "settings": [{"path": "secret", "former": "x", "wanted": "mine"}],
            }
        ).encode(),
        json.dumps(
            {
                "version": 1,
                "boot": clock_settings.this_boot(),
                "settings": [
                    {
                        "path": "sys/class/devfreq/../../../secret/governor",
                        "former": "x",
                        "wanted": "mine",
                    }
                ],
            }
        ).encode(),
    ],
)
def test_notes_that_are_not_codls_write_nothing(
    files: SystemFiles, tmp_path: Path, content: bytes
) -> None:
    put(files.root, "", secret="mine")
    before = contents(files.root)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / clock_settings.NAME).write_bytes(content)
    assert not ClockSettings(files).put_back_left()
    assert contents(files.root) == before
    assert not clock_settings.is_left()


class Killed(BaseException):
    """The process is no more: nothing of it runs behind this."""


class Doom:
    """Counts what is done to files; at one of those steps an error comes, or the end."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left, self.error = at, error

    def step(self) -> None:
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.error is Killed):
            raise self.error("by the test")

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """A step before and one behind."""

        def doomed(*given: Any, **options: Any) -> Any:
            self.step()
            result = work(*given, **options)
            self.step()
            return result

        return doomed


@pytest.fixture
def doomed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ClockSettings]]:
    """Makes settings of which every access to files may be the last; nothing outlives them."""
    monkeypatch.setattr(ClockSettings, "_watch_signals", lambda self: None)
    monkeypatch.setattr(clock_settings.atexit, "register", lambda work: None)

    def make(root: Path, place: Path, doom: Doom) -> ClockSettings:
        files = SystemFiles(root)
        clocks = ClockSettings(files, place)
        for owner, names in ((files, ("read", "write")), (clocks._notes, ("write", "drop"))):
            for name in names:
                setattr(owner, name, doom.around(getattr(owner, name)))
        return clocks

    return make


@pytest.mark.filterwarnings("ignore:These could not be put back")
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    at=st.integers(1, 80),
    error=st.sampled_from([OSError, KeyboardInterrupt, SystemExit, RuntimeError, Killed]),
    twice=st.booleans(),
)
def test_settings_are_put_back_after_an_error_or_an_end_at_any_point(
    tmp_path_factory: pytest.TempPathFactory,
    doomed: Callable[..., ClockSettings],
    at: int,
    error: type[BaseException],
    twice: bool,
) -> None:
    """By whoever set them, or by the next that begins, where that one could not."""
    root = tmp_path_factory.mktemp("phone")
    files, place = make_phone(root / "tree"), root / "state"
    before, doom = contents(files.root), Doom(at, error)
    clocks = doomed(files.root, place, doom)
    with suppress(CodlError, OSError, KeyboardInterrupt, SystemExit, RuntimeError, Killed):
        try:
            clocks.hold("performance")
            if twice:
                clocks.hold("powersave")
        finally:
            clocks.put_back()
    if doom.left > 0 or error in (RuntimeError, SystemExit, KeyboardInterrupt):
        with suppress(CodlError):
            clocks.put_back()  # as at the interpreter's exit
        assert contents(files.root) == before
    clocks._notes.unlock()  # as the system does for a process that ends
    ClockSettings(files, place).put_back_left()
    assert contents(files.root) == before
    assert not clock_settings.is_left(place)
    assert ClockSettings(files, place)._notes.lock()


@pytest.mark.parametrize("how", ["end", "error", "exit", "SIGTERM", "SIGHUP", "SIGINT"])
def test_a_process_puts_back_what_it_set_when_it_ends(files: SystemFiles, how: str) -> None:
    before = contents(files.root)
    with holding(files, how) as child:
        if how.startswith("SIG"):
            assert state(files) == ["performance"] * 3
            child.send_signal(signal.Signals[how])
        child.wait(60)
    assert contents(files.root) == before
    assert not clock_settings.is_left()


@pytest.mark.parametrize("how", ["SIGKILL", "_exit"])
def test_the_next_puts_back_what_a_killed_process_set(files: SystemFiles, how: str) -> None:
    before = contents(files.root)
    with holding(files, how) as child:
        if how == "SIGKILL":
            child.kill()
        child.wait(60)
    assert state(files) == ["performance"] * 3
    assert ClockSettings(files).put_back_left()
    assert contents(files.root) == before
    assert not ClockSettings(files).put_back_left()


def holding(files: SystemFiles, how: str) -> subprocess.Popen[bytes]:
    """A process that has set the clocks."""
    command = [sys.executable, "-c", HOLDING, str(files.root), how]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    return child
