"""A note of settings of this machine that are to be put back, on disk while they are changed.

Whoever changes settings holds a lock, which the system takes away with the process: a note without
a lock was left by a process that was killed, or is of before a reboot. It lies in the user's state
folder, or where the variable CODL_STATE says, under the name of the machine: machines may share it.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_state_dir

VARIABLE = "CODL_STATE"
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


def folder() -> Path:
    """Where notes lie; it may not exist yet."""
    return Path(os.environ.get(VARIABLE) or user_state_dir("codl"))


def this_boot() -> str:
    """What is another one after every boot; empty where the system does not tell."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


class Notes:
    """The note of one folder, and its lock."""

    def __init__(self, place: Path | None = None) -> None:
        self._folder = place or folder()
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
            "settings": [asdict(own) for own in settings],
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
            settings = tuple(Setting(**own) for own in content["settings"])
            note = Note(settings, str(content["boot"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        is_known = content["version"] == VERSION and all(own.is_valid for own in settings)
        return note if is_known else None

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


def is_left(place: Path | None = None) -> bool:
    """Whether there is a note, of a process that lives or of one that died."""
    try:
        return (place or folder()).joinpath(NAME).exists()
    except OSError:
        return False
