"""codl's cache on disk: compiled kernels, verdicts and blocked kernel variants.

They lie in the user's cache folder, or where the variable CODL_CACHE says, under the version of
their format. Nothing there is believed without a look: a file that is cut short, changed, of
another version or of another key counts as missing, and whoever makes its content anew overwrites
it. Files are written beside their place and moved there, so that a kill, or another process that
writes the same file, leaves a whole one.

Kernel variants that computed something wrong on a driver of this machine are blocked here, too.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir, user_state_dir

from codl import files, provenance
from codl.errors import CodlWarning, UnwritableFileError
from codl.ir.constants import digest

VARIABLE, STATE_VARIABLE = "CODL_CACHE", "CODL_STATE"
#: Of all formats below; files of another version lie in another folder.
VERSION = 1
LIMIT_BYTES = 256 << 20
MAX_AGE_S = 60 * 86400
#: A write takes no time: what is older was left by a process that died.
PARTIAL_AGE_S = 3600
#: Stores keep the limits, and look at all files no more often: a look takes longer than a store.
PRUNED_EACH_S = 60.0


@dataclass(frozen=True)
class Usage:
    """What is in the cache, and what a pruning took out of it."""

    folder: str
    files: int
    bytes: int
    pruned_files: int = 0
    pruned_bytes: int = 0


def folder() -> Path:
    """Where the files lie; they may not exist yet."""
    return Path(os.environ.get(VARIABLE) or user_cache_dir("codl")) / f"codl-v{VERSION}"


def state_folder() -> Path:
    """Where what must last lies, such as keys and notes of settings; it may not exist yet."""
    return Path(os.environ.get(STATE_VARIABLE) or user_state_dir("codl"))


@dataclass(frozen=True)
class Slot:
    """The place of one binary blob, found by a key that says everything it was made from.

    The file is a line of JSON, with the key and a checksum, and then the blob.
    """

    kind: str
    key: Mapping[str, str]

    @property
    def path(self) -> Path:
        return folder() / self.kind / digest(self.key)

    def load(self) -> bytes | None:
        """The blob; None where there is none, or one that must not be believed."""
        try:
            head, _, blob = self.path.read_bytes().partition(b"\n")
            header = json.loads(head)
        except (OSError, ValueError, RecursionError):
            return None
        return blob if header == self._header(blob) else None

    def store(self, blob: bytes) -> None:
        """Write the blob, and keep the cache within its limits; no room for it is no error."""
        try:
            files.write(self.path, json.dumps(self._header(blob)).encode() + b"\n" + blob)
            _prune_in_turn()
        except UnwritableFileError as error:
            # Of the folder alone, so that it is said once.
            reason = str(error).split(" cannot be written: ")[-1].rstrip(".")
            text = f"The cache {folder()} cannot be written: {reason}. Kernels are compiled anew "
            warnings.warn(
                CodlWarning(f"{text}each time; {VARIABLE} names another folder."), stacklevel=1
            )

    def touch(self) -> None:
        """Note a use: what was used last is pruned last."""
        with suppress(OSError):
            os.utime(self.path)

    def drop(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _header(self, blob: bytes) -> dict[str, Any]:
        return {"version": VERSION, "key": dict(self.key), "sha256": sha256(blob).hexdigest()}


def _prune_in_turn() -> None:
    """Prune where nobody did lately; the folder's own time says when that was."""
    with suppress(OSError):  # another process may have cleared it
        if abs(time.time() - folder().stat().st_mtime) > PRUNED_EACH_S:
            os.utime(folder())
            prune()


def prune(*, limit_bytes: int = LIMIT_BYTES, max_age_s: float = MAX_AGE_S) -> Usage:
    """Delete what was not used for long, then what was used least recently, down to the limit.

    Also what dead processes left half-written.
    """
    now, kept, removed, freed = time.time(), 0, 0, 0
    room = limit_bytes
    statuses: list[tuple[Path, os.stat_result]] = []
    for path in folder().parent.glob("codl-v*/**/*"):  # of any version
        with suppress(OSError):  # another process may be pruning too
            status = path.stat()
            if path.is_file():
                statuses.append((path, status))
    for path, status in sorted(statuses, key=lambda item: -item[1].st_mtime):
        age, partial = now - status.st_mtime, path.suffix == files.PARTIAL
        old = age > (min(PARTIAL_AGE_S, max_age_s) if partial else max_age_s)
        if old or (not partial and status.st_size > room):
            with suppress(OSError):
                path.unlink()
                removed, freed = removed + 1, freed + status.st_size
        else:
            room, kept = room - status.st_size, kept + 1
    return Usage(str(folder()), kept, limit_bytes - room, removed, freed)


def usage() -> Usage:
    """What there is."""
    paths = (path for path in folder().parent.glob("codl-v*/**/*") if path.is_file())
    sizes = [path.stat().st_size for path in paths]
    return Usage(str(folder()), len(sizes), sum(sizes))


def clear() -> Usage:
    """Delete everything."""
    return prune(limit_bytes=-1, max_age_s=-1)


#: The kind of slot that blocked variants lie in.
BLOCKED = "distrusted"
#: Ops that are kept of a blocked variant, at most.
MOST_OPS = 8


@dataclass(frozen=True)
class VariantBlocklist:
    """What is known of the variants of one driver; `identity` is that of its compiled programs."""

    identity: Mapping[str, str]

    def ops(self, variant: str) -> tuple[str, ...]:
        """The ops that a variant was wrong on, by its name such as `conv2d gpu_gemm`."""
        blob = self._slot(variant).load()
        try:
            ops = [] if blob is None else json.loads(blob)
        except ValueError:
            return ()
        return tuple(map(str, ops)) if isinstance(ops, list) else ()

    def reason(self, variant: str) -> str:
        """Why a variant must not be run; "" where nothing is known against it."""
        wrong = self.ops(variant)
        if not wrong:
            return ""
        return f"`codl doctor` found it wrong on this driver, as with {wrong[0]}"

    def note(self, variant: str, op: str, *, is_wrong: bool) -> None:
        """Keep what was found of a variant on an op; what is right again is forgotten."""
        ops = self.ops(variant)
        if is_wrong == (op in ops):
            return
        others = [other for other in ops if other != op]
        wrong = [op, *others][:MOST_OPS] if is_wrong else others
        slot = self._slot(variant)
        if wrong:
            slot.store(json.dumps(wrong).encode())
        else:
            slot.drop()

    def _slot(self, variant: str) -> Slot:
        return Slot(BLOCKED, {**self.identity, "codl": provenance.VERSION, "variant": variant})
