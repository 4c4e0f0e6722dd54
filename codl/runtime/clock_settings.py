"""Clock governors and limits of this machine: set for a measurement where allowed, then restored.

Former values are on disk before anything is set: a note in the user's state folder, under the name
of the machine, as machines may share the folder. They are put back by the process that set it, at
its end, by an error or a signal; after a kill or a reboot by the next codl that measures here.
Whoever changes settings holds a lock, which the system takes away with the process: a note without
a lock was left by a process that was killed, or is of before a reboot.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import platform
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from codl.errors import CodlError, CodlWarning
from codl.runtime.cache import state_folder
from codl.runtime.system_files import CPU, GOVERNOR, SYSTEM, SystemFiles, clusters, gpu_files

MACHINE = re.sub(r"[^A-Za-z0-9.-]", "_", platform.node())[:64]
NAME, LOCK = f"clocks-{MACHINE}.json", f"clocks-{MACHINE}.lock"
VERSION = 1
BOOT = Path("/proc/sys/kernel/random/boot_id")
#: What may be put back: a note that names other files is none of codl's.
PATHS = re.compile(
    r"sys/devices/system/cpu/(cpufreq/policy\d+|cpu\d+/cpufreq)/scaling_governor"
    r"|sys/class/(kgsl/kgsl-3d0/devfreq|devfreq/(?!\.)[\w.:,-]+)/(governor|min_freq)",
    re.ASCII,
)
VALUES = re.compile(r"[\w-]{1,32}", re.ASCII)


@dataclass(frozen=True)
class Setting:
    """A file below the root, what it held, and what is put there."""

    path: str
    former: str
    wanted: str

    @property
    def is_valid(self) -> bool:
        texts = (self.path, self.former, self.wanted)
        if not all(isinstance(text, str) for text in texts):
            return False
        return bool(PATHS.fullmatch(self.path)) and all(map(VALUES.fullmatch, texts[1:]))


@dataclass(frozen=True)
class Note:
    """Settings in the order in which they are made, and the boot of the system that had them."""

    settings: tuple[Setting, ...]
    boot: str


def this_boot() -> str:
    """What is another one after every boot; empty where the system does not tell."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


class Notes:
    """The note of one folder, and its lock."""

    def __init__(self, place: Path | None = None) -> None:
        self._folder = place or state_folder()
        self._lock: int | None = None

    @property
    def path(self) -> Path:
        return self._folder / NAME

    def lock(self) -> bool:
        """Take the lock; False where another process has it. Raises `OSError`."""
        if self._lock is not None:
            return True
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def write(self, settings: Sequence[Setting]) -> None:
        """Have a whole note on disk; raises `OSError`."""
        content = {
            "version": VERSION,
            "boot": this_boot(),
            "settings": [asdict(setting) for setting in settings],
        }
        partial = self.path.with_suffix(".tmp")
        with partial.open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)

    def read(self) -> Note | None:
        """The note that is there; None for no note, and for what codl has not written."""
        try:
            content = json.loads(self.path.read_text())
            settings = tuple(Setting(**setting) for setting in content["settings"])
            note = Note(settings, str(content["boot"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        is_known = content["version"] == VERSION and all(setting.is_valid for setting in settings)
        return note if is_known else None

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


def is_left(place: Path | None = None) -> bool:
    """Whether there is a note, of a process that lives or of one that died."""
    try:
        return (place or state_folder()).joinpath(NAME).exists()
    except OSError:
        return False


#: The governor of the highest clock; a GPU that has none of that name gets it as its lowest clock.
FASTEST = "performance"
#: End the process, unless somebody takes care of them.
ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Governed:
    """What was set, by file; `refused` says why the rest was not."""

    changed: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class ClockSettings:
    """The settings of a machine: `hold` changes them until `put_back`, which may come twice."""

    def __init__(self, files: SystemFiles = SYSTEM, folder: Path | None = None) -> None:
        self._files, self._notes = files, Notes(folder)
        self._held: tuple[Setting, ...] = ()
        self._handlers: dict[signal.Signals, Any] = {}

    def hold(self, governor: str) -> Governed:
        """Let this governor choose the clocks of all cores, and of the GPU where that has it.

        Raises `CodlError` for a governor that no cluster of cores has.
        """
        if not GOVERNOR.fullmatch(governor):
            raise CodlError(f"A governor is a name such as {FASTEST}, got {governor!r}.")
        self.put_back()
        try:
            if not self._notes.lock():
                return _refused("another codl has set the clocks of this machine")
            self._put_back_noted()
            wanted = settings(governor, self._files)
            if wanted:
                self._notes.write(wanted)
        except OSError as error:
            self._notes.unlock()
            return _refused(f"former values cannot be kept on disk: {error}")
        except BaseException:
            self._notes.unlock()
            raise
        if not wanted:
            self._notes.unlock()
            return Governed() if clusters(self._files) else _refused("its clocks cannot be set")
        return self._set(wanted)

    def _set(self, wanted: tuple[Setting, ...]) -> Governed:
        """Put what is wanted in place, for as long as this process is there."""
        done = Governed()
        try:
            self._held = wanted
            atexit.register(self.put_back)
            self._watch_signals()
            for setting in wanted:
                path = setting.path
                try:
                    self._files.write(path, setting.wanted)
                except OSError as error:
                    done.refused[path] = error.strerror or str(error)
                    continue
                now = self._files.text(path)
                if now == setting.wanted:
                    done.changed[path] = now
                else:
                    done.refused[path] = f"it stays {now!r}"
        except BaseException:
            self.put_back()
            raise
        return done

    def put_back(self) -> None:
        """Have everything as it was before `hold`; warns of what cannot be put back."""
        if not self._held:
            return
        with self._undisturbed():
            note = Note(self._held, this_boot())
            failed = self._restore(note)
            self._held = ()
            if not failed:
                with suppress(OSError):
                    self._notes.drop()
            self._notes.unlock()
        atexit.unregister(self.put_back)
        if failed:
            listed = ", ".join(f"{path} (was {former})" for path, former in failed.items())
            warnings.warn(
                f"These could not be put back as they were: {listed}. The next codl that measures "
                "here tries again.",
                CodlWarning,
                stacklevel=2,
            )

    def put_back_left(self) -> bool:
        """Put back what a process that died has left; False where there is nothing, or it lives."""
        try:
            if self._held or not self._notes.path.exists() or not self._notes.lock():
                return False
        except OSError:
            return False
        try:
            return self._put_back_noted()
        finally:
            self._notes.unlock()

    def _put_back_noted(self) -> bool:
        """With the lock: what the note says, which then goes, unless something cannot be put back.

        A reboot has put back what codl had set, and may have set something else.
        """
        note = self._notes.read()
        failed = self._restore(note) if note else {}
        if not failed:
            self._notes.drop()
        return note is not None

    def _restore(self, note: Note) -> dict[str, str]:
        """Put former values back, the last first; those that it failed for, by file."""
        failed = {}
        is_same_boot = note.boot == this_boot()
        for setting in reversed(note.settings):
            try:
                now = self._files.read(setting.path)
                if now != setting.former and (is_same_boot or now == setting.wanted):
                    self._files.write(setting.path, setting.former)
            except FileNotFoundError:
                continue  # its cores were taken away, and all their settings with them
            except OSError:
                failed[setting.path] = setting.former
        return failed

    def _watch_signals(self) -> None:
        """Signals that would end this process become an exit, on which settings are put back."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _exit)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """No signal interrupts what is done inside: it comes afterwards, to who was there before.

        Masks would not do: a signal to the process comes by any of its threads.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        came: list[int] = []
        every = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT)}
        # None: somebody's, but not Python's, which could not be put back.
        handlers = {number: handler for number, handler in every.items() if handler is not None}
        for number in handlers:
            signal.signal(number, lambda number, frame: came.append(number))
        try:
            yield
        finally:
            for number, handler in {**handlers, **self._handlers}.items():
                signal.signal(number, handler)
            self._handlers.clear()
            for first in came[:1]:
                signal.raise_signal(first)


def settings(governor: str, files: SystemFiles = SYSTEM) -> tuple[Setting, ...]:
    """What has to change for a governor; what is so already is left out.

    Raises `CodlError` where no cluster of cores has such a governor.
    """
    chosen, offered = [], set()
    folders = [cluster.folder for cluster in clusters(files)]
    for folder in folders:
        names = files.text(f"{folder}/scaling_available_governors").split()
        offered |= {*names}
        if governor in names:
            chosen.append((f"{folder}/scaling_governor", governor))
    if folders and not chosen:
        listed = ", ".join(sorted(filter(GOVERNOR.fullmatch, offered))) or "none that it names"
        raise CodlError(f"This machine has no governor {governor!r}; it has {listed}.")
    gpu = gpu_files(files)
    if gpu is not None:
        folder = gpu.devfreq
        if governor in files.text(f"{folder}/available_governors").split():
            chosen.append((f"{folder}/governor", governor))
        elif governor == FASTEST:
            chosen.append((f"{folder}/min_freq", files.text(f"{folder}/max_freq")))
    changes = [Setting(path, files.text(path), wanted) for path, wanted in chosen]
    return tuple(change for change in changes if change.is_valid and change.former != change.wanted)


def put_back_left() -> None:
    """What a codl that died on this machine has left; says so on standard error."""
    if ClockSettings().put_back_left():
        print("codl: clocks are set again as a codl that died had found them", file=sys.stderr)


def _refused(reason: str) -> Governed:
    return Governed(refused={CPU: reason})


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
