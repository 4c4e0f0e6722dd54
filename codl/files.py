"""Files: read within bounds, written whole or not at all, changed by one process at a time.

Files may come from a stranger: a reader refuses what is too large, too deep or no such format with
an `InvalidFileError`. What a disk does not take is an `UnwritableFileError`.
"""

from __future__ import annotations

import codecs
import csv
import fcntl
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from secrets import token_hex
from time import monotonic, sleep
from typing import Any

from codl.errors import CodlError, InvalidFileError, UnwritableFileError

#: Where SoC files, datasets and predictors lie, each in a folder of its own: the folder that the
#: environment variable CODL_HOME names, or else the current one.
HOME = Path(os.environ.get("CODL_HOME", ""))
#: What bundles end in, which are no models any more.
BUNDLE = ".codl"
#: No file that is read as a whole is larger; all but models and weights are.
MOST_BYTES = 64 << 20
#: Of files that are written and not yet in their place. A kill may leave one.
PARTIAL = ".partial"
#: A lock that another process has is looked at so often.
LOOK_S = 0.02


class BusyError(CodlError):
    """Another process changes the same files."""


def read_bytes(path: Path, *, most: int = MOST_BYTES, fix: str = "") -> bytes:
    """What a file holds; raises `InvalidFileError` where that is more than `most` bytes."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode) and not path.is_relative_to("/dev"):
            # Nobody may ever write to it; those of a shell's <(...) are in /dev/fd.
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
    """The text of a file in UTF-8, with or without a mark in front."""
    try:
        return read_bytes(path, fix=fix).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidFileError(path, f"not text in UTF-8: {error}.", fix=fix) from error


def decoded(content: bytes) -> str:
    """Text as editors and spreadsheets save it: in UTF-8, in UTF-16 with a mark, or Windows-1252.

    Raises `UnicodeDecodeError` for what is in none of these.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252")


def csv_reader(text: str) -> csv.DictReader[str]:
    """The records of a table; columns are separated by semicolons where the first line has these.

    Spreadsheets write so where a comma stands in numbers.
    """
    first = text.partition("\n")[0]
    delimiter = ";" if ";" in first and "," not in first else ","
    return csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)


def is_blank(record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of separators alone, as spreadsheets write below a table."""
    return not any(text for value in record.values() for text in (value or ()))


def read_json(path: Path, *, fix: str = "") -> Any:
    """What a JSON file holds."""
    return parse_json(read_bytes(path, fix=fix), path, fix=fix)


def parse_json(content: bytes | memoryview, path: object, *, fix: str = "") -> Any:
    """What JSON says; raises `InvalidFileError` with the `path` for what is none.

    Nor are NaN and infinite numbers JSON, or what is nested deeper than Python's own stack.
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
    """Put a whole file in its place at once; its folder is made.

    What was there before stays where the disk has no room: raises `UnwritableFileError`.
    """
    with writing(path, fix=fix) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def writing(path: Path, *, fix: str = "") -> Iterator[Path]:
    """A new file beside `path` to write to, which takes its place where that succeeds."""
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
    """Copy a file to a name of its own beside it before it is written anew; None where none is."""
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
    """Raise `UnwritableFileError` where a file cannot be made or replaced, before it is worked for.

    Nothing is left behind, nor a folder made.
    """
    _check_folder(path.parent, path)
    if path.is_dir():
        raise UnwritableFileError(path, IsADirectoryError(None, "it is a folder"))


def check_folder(folder: Path) -> None:
    """Raise `UnwritableFileError` where no file can be made in a folder, be it there or not."""
    _check_folder(folder, folder)


def _check_folder(folder: Path, path: Path) -> None:
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UnwritableFileError(path, error) from error


@contextmanager
def locked(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Have a folder alone among processes; it is made, and is gone again where it stays empty.

    A parent that was made for it may stay where another process waits for the folder meanwhile.
    Raises `BusyError` where another one has it for longer than `wait_s`. The system frees it at the
    end of a process, however that ends.
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
        with suppress(OSError):  # what is not empty stays
            for place in new:
                place.rmdir()
        os.close(descriptor)


def _take(folder: Path, new: list[Path]) -> int | None:
    """A descriptor that has the folder as long as it is open; None where another process has.

    Folders that were made for it are added to the `new` ones.
    """
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


#: What file systems take as a name, in bytes.
MOST_NAME_BYTES = 255


def inside(folder: Path, name: str) -> Path:
    """The file or folder of a name, right inside `folder`, wherever the name comes from.

    Raises `CodlError` for what is no plain name: a path, one that is hidden or looks like an
    option, or one with letters that cannot be seen.
    """
    is_plain = name.isprintable() and not set(name) & {"/", "\\"} and name.strip() == name
    if not name or not is_plain or name[0] in ".-" or len(name.encode()) > MOST_NAME_BYTES:
        raise CodlError(
            f"{name!r} cannot be the name of a file in {folder}: it must be a plain name, such as "
            "sdm865."
        )
    return folder / name


def printable(text: Any) -> str:
    """Text without control characters, which neither a terminal nor XML should get from elsewhere.

    Lines and tabs stay.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(text)
    )
