"""codl's cache on disk: compiled kernels, verdicts and blocked kernel variants.

It is in the user's cache folder, or in the folder of the variable CODL_CACHE, below a folder per
format version. A file that is truncated, changed, of another version or of another key counts as
missing and is overwritten. Writes are atomic, also with respect to kills and other processes.
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

from codl import files
from codl.errors import CodlWarning, UnwritableFileError
from codl.ir.constants import digest

VARIABLE, STATE_VARIABLE = "CODL_CACHE", "CODL_STATE"
#: Version of all formats, part of the folder's name.
VERSION = 1
LIMIT_BYTES = 256 << 20
MAX_AGE_S = 60 * 86400
#: Age in seconds at which a partial file counts as left by a dead process.
PARTIAL_AGE_S = 3600
#: Least seconds between two prunings, which take longer than a store.
PRUNED_EACH_S = 60.0


@dataclass(frozen=True)
class Usage:
    """Size of the cache, and the amount removed by a pruning."""

    folder: str
    files: int
    bytes: int
    pruned_files: int = 0
    pruned_bytes: int = 0


def folder() -> Path:
    """The folder of the cache, which may not exist."""
    return Path(os.environ.get(VARIABLE) or user_cache_dir("codl")) / f"codl-v{VERSION}"


def state_folder() -> Path:
    """The folder of lasting files, such as keys; it may not exist."""
    return Path(os.environ.get(STATE_VARIABLE) or user_state_dir("codl"))


@dataclass(frozen=True)
class Slot:
    """The place of a blob, identified by a key of all its inputs.

    The file is a line of JSON with the key and a checksum, followed by the blob.
    """

    kind: str
    key: Mapping[str, str]

    @property
    def path(self) -> Path:
        return folder() / self.kind / digest(self.key)

    def load(self) -> bytes | None:
        """The blob; None if missing or invalid."""
        try:
            head, _, blob = self.path.read_bytes().partition(b"\n")
            header = json.loads(head)
        except (OSError, ValueError, RecursionError):
            return None
        return blob if header == self._header(blob) else None

    def store(self, blob: bytes) -> None:
        """Write the blob and prune the cache; warns if the cache is not writable."""
        try:
            files.write(self.path, json.dumps(self._header(blob)).encode() + b"\n" + blob)
            _prune_in_turn()
        except UnwritableFileError as error:
            # Same text for all files of the folder, so that it is shown once.
            reason = str(error).split(" cannot be written: ")[-1].rstrip(".")
            text = f"The cache {folder()} cannot be written: {reason}. Kernels are compiled anew "
            warnings.warn(
                CodlWarning(f"{text}each time; {VARIABLE} names another folder."), stacklevel=1
            )

    def touch(self) -> None:
        """Record a use, for the order of pruning."""
        with suppress(OSError):
            os.utime(self.path)

    def drop(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _header(self, blob: bytes) -> dict[str, Any]:
        return {"version": VERSION, "key": dict(self.key), "sha256": sha256(blob).hexdigest()}


def _prune_in_turn() -> None:
    """Prune unless a process did recently, by the folder's time."""
    with suppress(OSError):  # another process may have cleared it
        if abs(time.time() - folder().stat().st_mtime) > PRUNED_EACH_S:
            os.utime(folder())
            prune()


def prune(*, limit_bytes: int = LIMIT_BYTES, max_age_s: float = MAX_AGE_S) -> Usage:
    """Delete old and abandoned files, and the least recently used ones down to the limit."""
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
    """The present size of the cache."""
    paths = (path for path in folder().parent.glob("codl-v*/**/*") if path.is_file())
    sizes = [path.stat().st_size for path in paths]
    return Usage(str(folder()), len(sizes), sum(sizes))


def clear() -> Usage:
    """Delete all files of the cache."""
    return prune(limit_bytes=-1, max_age_s=-1)


#: Kind of the slots of blocked variants.
BLOCKED = "distrusted"
#: Most ops to keep per blocked variant.
MOST_OPS = 8


@dataclass(frozen=True)
class VariantBlocklist:
    """Variants with wrong results on a driver; `identity` is the driver's `Programs.identity`."""

    identity: Mapping[str, str]

    def ops(self, variant: str) -> tuple[str, ...]:
        """Ops with wrong results of a variant, named such as `conv2d gpu_gemm`."""
        blob = self._slot(variant).load()
        try:
            ops = [] if blob is None else json.loads(blob)
        except ValueError:
            return ()
        return tuple(map(str, ops)) if isinstance(ops, list) else ()

    def reason(self, variant: str) -> str:
        """Why a variant is blocked, or ""."""
        wrong = self.ops(variant)
        if not wrong:
            return ""
        return f"`codl doctor` found it wrong on this driver, as with {wrong[0]}"

    def note(self, variant: str, op: str, *, is_wrong: bool) -> None:
        """Add an op with wrong results of a variant, or remove an op with right ones."""
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
        return Slot(BLOCKED, {**self.identity, "codl": files.VERSION, "variant": variant})
