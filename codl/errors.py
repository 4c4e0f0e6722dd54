"""The errors that codl raises on purpose.

Every message says what was wrong, with the value, and what would be right. The command line prints
the message of a `CodlError` and exits with 1; any other exception is a defect.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CodlError(Exception):
    """Base of all errors that a user can cause or fix.

    Subclasses may have any constructor; they are pickled with their message.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args), self.__dict__ or None


def _again(cls: type[CodlError], arguments: tuple[object, ...]) -> CodlError:
    """An unpickled error, with its finished message."""
    return cls.__new__(cls, *arguments)


class InterruptedCommandError(CodlError):
    """Ctrl-C was pressed; the message names what is kept."""

    def __init__(self, kept: str = "") -> None:
        super().__init__(f"Interrupted.{' ' if kept else ''}{kept}")


class CodlWarning(UserWarning):
    """A problem that codl recovered from."""


class UnknownNameError(CodlError):
    """An unknown name; the message lists the known ones and the nearest match."""

    def __init__(self, kind: str, name: str, choices: Iterable[str], *, fix: str = "") -> None:
        names = sorted(choices)
        near = get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(names) if names else "none"
        super().__init__(
            f"Unknown {kind} {name!r}.{hint} Known: {listed}.{' ' + fix if fix else ''}"
        )


class DuplicateNameError(CodlError):
    """A name that is registered twice."""

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        super().__init__(
            f"The {kind} {name!r} is registered twice, by {first} and by {second}: names must "
            "be unique."
        )


class InvalidFileError(CodlError):
    """An unusable file; `where` is the wrong line or key."""

    def __init__(self, path: object, problem: str, *, where: str = "", fix: str = "") -> None:
        place = f"{path}, {where}" if where else f"{path}"
        super().__init__(f"{place}: {problem}{' ' + fix if fix else ''}")


class UnwritableFileError(CodlError):
    """A file that cannot be written; the former one is kept. `fix` is a sentence."""

    def __init__(self, path: object, error: OSError, *, fix: str = "") -> None:
        reason = error.strerror or error
        super().__init__(f"{path} cannot be written: {reason}.{' ' if fix else ''}{fix}")


class UnsupportedError(CodlError):
    """Valid input that codl does not support; the message names the failed constraint."""


class DeviceError(CodlError):
    """A missing or failed processor or driver."""


class NoKernelError(DeviceError):
    """A device refuses every kernel variant of a layer; `variant` is the planned one."""

    def __init__(self, layer: str, variant: str, reasons: str) -> None:
        super().__init__(f"No kernel variant of {layer!r} works here. {reasons}")
        self.layer, self.variant, self.reasons = layer, variant, reasons


class ForkError(DeviceError):
    """Use of drivers or libraries in a forked process."""


class WrongResultError(CodlError):
    """A plan with wrong outputs, and without a remedy."""


class MismatchError(CodlError):
    """Two files that do not match, such as a plan and another model."""
