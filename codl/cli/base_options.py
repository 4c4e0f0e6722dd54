"""Options of commands that work without any extra but the command line's."""

from __future__ import annotations

import re
from math import inf, isfinite
from pathlib import Path
from typing import Annotated

import typer

from codl.errors import CodlError
from codl.files import check_folder, check_writable

#: No count that is asked for is larger.
MOST_IMAGES, MOST_ROUNDS = (1 << 31) - 1, 1_000_000
#: This machine, where no device is named.
HERE = "local"
SERIALS = "{codl.cli.help_words:serials}"


def known_serial(serial: str) -> str:
    """Refuses what no target is called before anything else is done."""
    if serial != HERE:
        from codl.targets.connect import transport_of

        transport_of(serial)
    return serial


def _known_serials(serials: list[str] | None) -> list[str]:
    """Those given, or this machine; refuses what no target is called, and what is named twice."""
    named = [known_serial(serial) for serial in serials or [HERE]]
    for serial in named:
        if named.count(serial) > 1:
            raise CodlError(f"--serial names {serial!r} twice: a device works for itself alone.")
    return named


def positive(option: typer.CallbackParam, number: float | None) -> float | None:
    """Refuses what is no number above 0 before it is worked for."""
    if number is not None and not (0 < number < inf):
        raise typer.BadParameter(
            f"must be a number above 0, got {number:g}.", param_hint=option.opts
        )
    return number


def finite(option: typer.CallbackParam, number: float | None) -> float | None:
    """Refuses NaN, which passes a range."""
    if number is not None and not isfinite(number):
        raise typer.BadParameter(f"must be a number, got {number:g}.", param_hint=option.opts)
    return number


def duration(option: typer.CallbackParam, text: str | None) -> str | None:
    """Refuses what is no duration before anything is worked for."""
    try:
        read_seconds(text)
    except CodlError as error:
        raise typer.BadParameter(str(error), param_hint=option.opts) from error
    return text


def writable(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written before it is worked for."""
    if path is not None:
        check_writable(path)
    return path


def result_file(path: Path | None) -> Path | None:
    """Where a result or a plan goes, behind a link; refuses to replace what is no such file."""
    if path is not None and path.is_symlink() and path.is_file():
        path = path.resolve()
    if path is not None and path.is_file():
        with path.open("rb") as file:
            if file.read(1) not in (b"", b"{"):
                raise CodlError(
                    f"{path} is there, and no result or plan in JSON: it would be replaced. Name "
                    "another file."
                )
    return writable(path)


def writable_folder(path: Path) -> Path:
    """Refuses a folder that nothing can be written to."""
    check_folder(path)
    return path


JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write the result to this file as JSON, for `codl report`.",
        callback=result_file,
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Time for the whole command, such as 90s, 10m or 1h: it ends with what is done then.",
    ),
]
SerialOption = Annotated[
    str,
    typer.Option(
        "--serial",
        "--on",
        help=f"The device: {SERIALS}.",
        show_default=True,
        callback=known_serial,
    ),
]
SerialsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--serial",
        "--on",
        help=f"A device: {SERIALS}. By default {HERE}; may be repeated, for several devices of "
        "the same SoC that share the work.",
        show_default=False,
        callback=_known_serials,
    ),
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


def read_seconds(text: str | None) -> float | None:
    """A duration such as 90s, 10m or 1.5h in seconds; raises `CodlError` for what is none."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if not match:
        raise CodlError(f"Cannot read the duration {text!r}: expected one like 90s, 10m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def read_budget(text: str, option: str = "--budget") -> float:
    """The seconds of a --budget; raises `CodlError` for none, or for no time at all."""
    seconds = read_seconds(text)
    if not seconds:
        raise CodlError(f"{option} must be above 0, got {text!r}.")
    return seconds
