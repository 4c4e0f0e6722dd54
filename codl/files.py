"""File input and output: bounded reads, atomic writes, locks, and files that ship with codl.

Files may come from untrusted sources. Readers raise `InvalidFileError` for a file that is too
large, nested too deep or malformed. Writers raise `UnwritableFileError` if the disk refuses.
Results have codl's version, its commit and the time (`provenance`).
"""

from __future__ import annotations

import codecs
import csv
import fcntl
import io
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from math import isfinite
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import Any

from codl.errors import CodlError, InvalidFileError, UnwritableFileError

#: Folder of SoC files, datasets and predictors, each in a subfolder: the environment variable
#: CODL_HOME, by default the current folder.
HOME = Path(os.environ.get("CODL_HOME", ""))
#: File name suffix of bundles, which are executables rather than models.
BUNDLE = ".codl"
#: Size limit in bytes of a file read as a whole, which all but models and weights are.
MOST_BYTES = 64 << 20
#: Suffix of files being written. A killed process may leave one.
PARTIAL = ".partial"
#: Seconds between two attempts to take another process's lock.
LOOK_S = 0.02


class BusyError(CodlError):
    """Another process changes the same files."""


def read_bytes(path: Path, *, most: int = MOST_BYTES, fix: str = "") -> bytes:
    """Content of a file; raises `InvalidFileError` if it is longer than `most` bytes."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode) and not path.is_relative_to("/dev"):
            # A pipe may never be written to; pipes of a shell's <(...) are in /dev/fd.
            raise InvalidFileError(path, "this is a pipe, and no file.", fix=fix)
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError as error:
        raise InvalidFileError(path, "there is no such file.", fix=fix) from error
    except (OSError, ValueError) as error:  # such as a folder, or a name with a NUL
        reason = getattr(error, "strerror", None) or error
        raise InvalidFileError(path, f"cannot be read: {reason}.", fix=fix) from error
    if len(content) > most:
        problem = f"holds more than {most >> 20} MiB, which no such file does."
        raise InvalidFileError(path, problem, fix=fix)
    return content


def read_text(path: Path, *, fix: str = "") -> str:
    """The text of a UTF-8 file, with or without a byte order mark."""
    try:
        return read_bytes(path, fix=fix).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFileError(path, f"not text in UTF-8: {error}.", fix=fix) from error


def decoded(content: bytes) -> str:
    """Text from an editor or spreadsheet: UTF-8, UTF-16 with a byte order mark, or Windows-1252.

    Raises `UnicodeDecodeError` for other encodings.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252")


def csv_reader(text: str) -> csv.DictReader[str]:
    """Records of a CSV table, whose columns are separated by commas or semicolons.

    Spreadsheets write semicolons in countries with decimal commas.
    """
    first = text.partition("\n")[0]
    delimiter = ";" if ";" in first and "," not in first else ","
    return csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)


def is_blank(record: Mapping[str, Any]) -> bool:
    """Whether a record has no values, as spreadsheets write below a table."""
    return not any(text for value in record.values() for text in (value or ()))


def read_json(path: Path, *, fix: str = "") -> Any:
    """Parsed content of a JSON file."""
    return parse_json(read_bytes(path, fix=fix), path, fix=fix)


def parse_json(content: bytes | memoryview, path: object, *, fix: str = "") -> Any:
    """Parsed JSON; raises `InvalidFileError` with `path` for invalid content.

    NaN, infinite numbers, and nesting beyond Python's recursion limit are invalid.
    """
    try:
        return json.loads(bytes(content), parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(path, f"not JSON: {error}.", fix=fix) from error


def _number(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:40]} is no number of JSON")
    return value


def write(path: Path, content: str | bytes, *, fix: str = "") -> Path:
    """Write a file atomically, making its folder; raises `UnwritableFileError`."""
    with writing(path, fix=fix) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def writing(path: Path, *, fix: str = "") -> Iterator[Path]:
    """A temporary file beside `path`, which replaces `path` if the block succeeds."""
    partial = path.with_name(f".codl-{token_hex(8)}{PARTIAL}")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # such as /dev/stdout
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
    except OSError as error:
        raise UnwritableFileError(path, error, fix=fix) from error


def set_aside(path: Path) -> Path | None:
    """Copy a file to a free name beside it before it is overwritten; None without such a file."""
    if not path.is_file():
        return None
    content = read_bytes(path)
    number = 1
    while (kept := path.with_name(f"{path.name}.before{number}")).exists():
        if read_bytes(kept) == content:
            return kept
        number += 1
    return write(kept, content)


def check_writable(path: Path) -> None:
    """Raise `UnwritableFileError` if a file cannot be created or replaced; leaves no files."""
    check_folder(path.parent, path)
    if path.is_dir():
        raise UnwritableFileError(path, IsADirectoryError(None, "it is a folder"))


def check_folder(folder: Path, path: Path | None = None) -> None:
    """Raise `UnwritableFileError` if no file, such as `path`, can be created in a folder.

    The folder need not exist.
    """
    existing = folder
    try:
        while not existing.exists():
            existing = existing.parent
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UnwritableFileError(path or folder, error) from error


@contextmanager
def locked(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a folder against other processes; creates it, and removes it afterwards if empty.

    A parent created for it may stay if another process waits for the folder. Raises `BusyError` if
    another process holds the lock for longer than `wait_s`. A process's end releases the lock.
    """
    end = monotonic() + wait_s
    new: list[Path] = []
    while (descriptor := _take(folder, new)) is None:
        if monotonic() >= end:
            raise BusyError(
                f"Another process of codl works on {folder}. Wait until that one ends, or name "
                "another folder."
            )
        sleep(LOOK_S)
    try:
        yield
    finally:
        with suppress(OSError):  # a folder with files stays
            for place in new:
                place.rmdir()
        os.close(descriptor)


def _take(folder: Path, new: list[Path]) -> int | None:
    """Lock a folder, adding created folders to `new`; returns a descriptor, None if locked."""
    new += [
        parent for parent in (folder, *folder.parents) if parent not in new and not parent.exists()
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnwritableFileError(folder, error) from error
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), folder.stat()):  # else it was gone meanwhile
            return descriptor
    os.close(descriptor)
    return None


#: Longest file name that file systems accept, in bytes.
MOST_NAME_BYTES = 255


def inside(folder: Path, name: str) -> Path:
    """The path of a plain name directly inside `folder`, for names from untrusted sources.

    Raises `CodlError` for a path, a hidden name, a name like an option, and a name with unprintable
    characters or outer spaces.
    """
    is_plain = name.isprintable() and not set(name) & {"/", "\\"} and name.strip() == name
    if not name or not is_plain or name[0] in ".-" or len(name.encode()) > MOST_NAME_BYTES:
        raise CodlError(
            f"{name!r} cannot be the name of a file in {folder}: it must be a plain name, such as "
            "sdm865."
        )
    return folder / name


def printable(text: Any) -> str:
    """Text with control characters replaced, for terminals and XML; keeps newlines and tabs."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )


VERSION = "0.1.0"
ROOT = Path(__file__).resolve().parents[1]


def provenance() -> dict[str, str]:
    """Version, commit and time, as in every result."""
    return {"codl": VERSION, "commit": commit(), "created": now()}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


#: Suffix of a commit if the package's files have changed since.
DIRTY = "+dirty"


@cache
def commit() -> str:
    """Commit of codl's own checkout, with `DIRTY` for a changed package; else empty."""
    try:
        top, revision, changed = (
            subprocess.run(
                ["git", "-C", str(ROOT), *question], capture_output=True, text=True, check=True
            ).stdout.strip()
            for question in (
                ["rev-parse", "--show-toplevel"],
                ["rev-parse", "--short", "HEAD"],
                ["--no-optional-locks", "status", "--porcelain", "--", "codl"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    # An installed codl may lie inside another project's repository.
    if Path(top) != ROOT:
        return ""
    return f"{revision}{DIRTY}" if changed else revision


#: Parents of shipped folders: codl's package, and the checkout around it.
ROOTS = tuple(Path(__file__).resolve().parents[:2])


def shipped(folder: Path) -> Path:
    """The shipped folder with the name of `folder`; `folder` itself if there is none."""
    return next((root / folder.name for root in ROOTS if (root / folder.name).is_dir()), folder)


def own_or_shipped(name: str, root: Path, usual: Path) -> Path:
    """`name` under `root`; if missing there, and `root` is `usual`, the shipped one."""
    folder, other = root / name, shipped(usual) / name
    return other if root == usual and not folder.exists() and other.exists() else folder
