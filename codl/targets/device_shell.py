"""The shell of a device, reached by the system's own client (adb, ssh), and what it may run.

No text of a user or a device becomes shell text: every argument is quoted.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from codl.errors import DeviceError
from codl.runtime.child import telling

#: Writes its input beside a file and moves it there, so that a cut connection leaves no half file.
WRITE = 'cat > "$0.part" && mv "$0.part" "$0"'
#: Said behind all that a command says, so that an output which was cut is known by its lack.
END = b"codl: ended"
SAY_END = f"; code=$?; printf '{END.decode()}'; exit $code"


#: What to do: a sentence, or what looks around and says one.
Fix: TypeAlias = str | Callable[[], str]


class ShellError(DeviceError):
    """A command failed on a device, or the client did not get there.

    `code` is the command's exit code, or -1 where it is known that there is none.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class DeviceShell:
    """The shell behind a client's command line, to which a line of shell text is added.

    `folder` is where codl keeps its files there. `fixes` says what to do where the client, or the
    shell, has said something that contains a key. One of `cuts` in how a client ended means that
    the way to the device was cut. `is_silent` where a client that lost the device ends as if the
    command had ended well.
    """

    serial: str
    client: tuple[str, ...]
    folder: str
    fixes: Mapping[str, Fix] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()
    is_silent: bool = False

    def command(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The command line on this machine that runs a program with these arguments there."""
        return (*self.client, shlex.join(arguments))

    def run(self, arguments: Sequence[str], *, given: bytes = b"", limit_s: float = 60.0) -> bytes:
        """What a program writes to its output when `given` is its input.

        Raises `ShellError` where it fails or takes longer, or the device cannot be reached.
        """
        text = shlex.join(arguments) + (SAY_END if self.is_silent else "")
        try:
            done = subprocess.run(
                (*self.client, text), input=given, capture_output=True, timeout=limit_s
            )
        except FileNotFoundError:
            raise ShellError(f"{self.client[0]!r} is not installed on this machine.", 127) from None
        except subprocess.TimeoutExpired:
            problem = f"{arguments[0]!r} on {self.serial!r} took longer than {limit_s:g} s."
            raise ShellError(problem, -1) from None
        has_ended = not self.is_silent or done.stdout.endswith(END)
        if done.returncode or not has_ended:
            said = done.stderr.decode(errors="replace").strip()
            lines = said.splitlines() or ["it said nothing"]
            problem = f"{arguments[0]!r} on {self.serial!r} ended with code {done.returncode}"
            sentence = self.explained(f"{problem}: {telling(lines, self.fixes).strip()}")
            raise ShellError(sentence, done.returncode if has_ended else -1)
        return done.stdout.removesuffix(END) if self.is_silent else done.stdout

    def write(self, path: str, content: bytes) -> None:
        """Put a whole file in its place at once; raises `ShellError`."""
        self.run(["sh", "-c", WRITE, path], given=content, limit_s=600.0)

    def explained(self, problem: str) -> str:
        """A problem with what can be done about it, where that is known."""
        return explained(problem, self.fixes)


def explained(problem: str, fixes: Mapping[str, Fix]) -> str:
    """A sentence about a problem, and the fix of the first key that it contains."""
    sentence = problem.rstrip(".") + "."
    fix = next((fix for key, fix in fixes.items() if key in problem), "")
    return f"{sentence} {fix() if callable(fix) else fix}".strip()
