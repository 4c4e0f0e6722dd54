"""The errors that codl raises on purpose.

Every message says what was wrong, with the value, and what would be right. The command line prints
the message of a `CodlError` and exits with 1; any other exception is a defect.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CodlError(Exception):
    """Base of all errors that a user can cause or fix.

    Subclasses may be made from anything, and still go from process to process by their message.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args), self.__dict__ or None


def _again(cls: type[CodlError], arguments: tuple[object, ...]) -> CodlError:
    """An error as it was pickled: its message is made already."""
    return cls.__new__(cls, *arguments)


class InterruptedCommandError(CodlError):
    """Somebody pressed Ctrl-C; the message says what is kept."""

    def __init__(self, kept: str = "") -> None:
        super().__init__(f"Interrupted.{' ' if kept else ''}{kept}")


class CodlWarning(UserWarning):
    """Something that a user should know, though codl got around it."""


class UnknownNameError(CodlError):
    """A name that is in no registry; the message lists the known ones and the nearest match."""

    def __init__(self, kind: str, name: str, choices: Iterable[str], *, fix: str = "") -> None:
        names = sorted(choices)
        near = get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(names) if names else "none"
        super().__init__(
            f"Unknown {kind} {name!r}.{hint} Known: {listed}.{' ' + fix if fix else ''}"
        )


class DuplicateNameError(CodlError):
    """A name that is already taken in a registry."""

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        super().__init__(
            f"The {kind} {name!r} is registered twice, by {first} and by {second}: names must "
            "be unique."
        )


class InvalidFileError(CodlError):
    """A file that cannot be used; `where` is the line or key at fault."""

    def __init__(self, path: object, problem: str, *, where: str = "", fix: str = "") -> None:
        place = f"{path}, {where}" if where else f"{path}"
        super().__init__(f"{place}: {problem}{' ' + fix if fix else ''}")


class UnwritableFileError(CodlError):
    """A file that the disk does not take; what was there before still is. `fix` is a sentence."""

    def __init__(self, path: object, error: OSError, *, fix: str = "") -> None:
        reason = error.strerror or error
        super().__init__(f"{path} cannot be written: {reason}.{' ' if fix else ''}{fix}")


class UnsupportedError(CodlError):
    """Something valid that codl cannot do; the message names the constraint that failed."""


class DeviceError(CodlError):
    """A processor or its driver is missing or failed."""


class NoKernelError(DeviceError):
    """A device refuses every kernel variant of a layer; `layer` and `variant` are the planned."""

    def __init__(self, layer: str, variant: str, reasons: str) -> None:
        super().__init__(f"No kernel variant of {layer!r} works here. {reasons}")
        self.layer, self.variant, self.reasons = layer, variant, reasons


class ForkError(DeviceError):
    """A process is a fork of the one whose drivers and libraries it would use."""


class WrongResultError(CodlError):
    """A plan that computes something else than its model says, and that nothing mends."""


class MismatchError(CodlError):
    """Two files that do not belong together, such as a plan and another model."""
