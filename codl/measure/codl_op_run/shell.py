"""What is asked of a device on which the program lies: to run a program, and no shell text."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Protocol

from codl.errors import DeviceError


class Shell(Protocol):
    """Runs programs on a device."""

    def run(self, arguments: Sequence[str], *, given: bytes = b"", limit_s: float = 60.0) -> bytes:
        """What a program writes to its output; raises `DeviceError` where it fails or takes longer.

        The arguments reach the program as they are, whatever characters they have.
        """
        ...


class LocalShell:
    """Programs on this machine."""

    def run(self, arguments: Sequence[str], *, given: bytes = b"", limit_s: float = 60.0) -> bytes:
        """What a program writes to its output; raises `DeviceError` where it fails."""
        try:
            done = subprocess.run(
                list(arguments), input=given, capture_output=True, timeout=limit_s, check=True
            )
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise DeviceError(
                f"{arguments[0]!r} ended with code {error.returncode}: {said[-1].strip()}"
            ) from None
        except subprocess.TimeoutExpired:
            raise DeviceError(f"{arguments[0]!r} took longer than {limit_s:g} s.") from None
        except OSError as error:
            raise DeviceError(f"{arguments[0]!r} cannot be run: {error.strerror}.") from None
        return done.stdout
