"""The shell of a device, reached by the system's own client (adb, ssh).

Every argument is quoted, so texts of users and devices never become shell code.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codl.errors import DeviceError
from codl.targets.checks import Check, CheckResult, DeviceUnderTest
from codl.targets.child import telling
from codl.targets.client import Fix, fix_of

LIMIT_S = 30.0
#: A shell's exit code for a file that is not executable.
REFUSED = 126
#: The word that a shell must echo in a check.
WORD = "codl"


def client_check(client: Sequence[str], version: Sequence[str], fix: str) -> Check:
    """Check that a client is installed; `version` are the arguments that print its version."""

    def run(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
        path = shutil.which(client[0])
        if path is None:
            yield CheckResult(False, f"{client[0]!r} is not installed on this machine")
            return
        text = output_of([path, *client[1:], *version])
        yield CheckResult(True, f"{path}: {(text.splitlines() or ['no version'])[0]}")

    return Check(f"{client[0].rpartition('/')[2]} client", run, fix, "nothing", decides=True)


def shell_check(name: str, shell_of: Callable[[], DeviceShell], fix: str) -> Check:
    """Check that a command runs on a device; a `ShellError` has its own fix."""

    def run(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
        shell = shell_of()
        try:
            text = shell.run(["echo", WORD], limit_s=LIMIT_S).decode(errors="replace").strip()
        except ShellError as error:
            yield CheckResult(False, error.problem, fix=error.fix)
            return
        if text == WORD:
            yield CheckResult(True, f"a command ran on {shell.serial}")
        else:
            yield CheckResult(False, f"{shell.serial} printed {text[:200]!r} instead of {WORD!r}")

    return Check(name, run, fix, "nothing", decides=True)


def output_of(command: Sequence[str]) -> str:
    """The output of a program on this machine; raises `DeviceError` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{command[0]!r} does not work: {error}") from error
    text = (done.stdout + done.stderr).decode(errors="replace").strip()
    if done.returncode:
        last = text.splitlines()[-1] if text else "it printed nothing"
        raise DeviceError(f"{command[0]!r} ended with code {done.returncode}: {last}")
    return text


#: Writes a temporary file and renames it, so that a cut connection leaves no partial file.
WRITE = 'cat > "$0.part" && mv "$0.part" "$0" || { rm -f "$0.part"; exit 1; }'
#: Printed after a command's output; if missing, the output was cut.
END = b"codl: ended"
SAY_END = f"; code=$?; printf '{END.decode()}'; exit $code"


class ShellError(DeviceError):
    """A command failed on a device, or the client did not reach it.

    `code` is the command's exit code, or -1 without one; `fix` is a known remedy or "".
    """

    def __init__(self, problem: str, code: int, fix: str = "") -> None:
        super().__init__(f"{problem} {fix}".strip())
        self.problem, self.code, self.fix = problem, code, fix


@dataclass(frozen=True)
class DeviceShell:
    """The shell behind a client's command line, which takes a line of shell code as last argument.

    `folder` is codl's folder there. `fixes` map parts of an error to remedies. An error with one of
    `cuts` means a cut connection. `is_silent` clients end with code 0 when they lose the device.
    """

    serial: str
    client: tuple[str, ...]
    folder: str
    fixes: Mapping[str, Fix] = field(default_factory=dict)
    cuts: tuple[str, ...] = ()
    is_silent: bool = False

    def command(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The command line on this machine that runs a program there."""
        return (*self.client, shlex.join(arguments))

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", limit_s: float = 60.0) -> bytes:
        """Output of a program; raises `ShellError` for a failure, time-out, or lost device."""
        text = shlex.join(arguments) + (SAY_END if self.is_silent else "")
        try:
            done = subprocess.run(
                (*self.client, text), input=stdin, capture_output=True, timeout=limit_s
            )
        except FileNotFoundError:
            raise ShellError(f"{self.client[0]!r} is not installed on this machine.", -1) from None
        except subprocess.TimeoutExpired:
            problem = f"{arguments[0]!r} on {self.serial!r} took longer than {limit_s:g} s."
            raise ShellError(problem, -1) from None
        has_ended = not self.is_silent or done.stdout.endswith(END)
        if done.returncode or not has_ended:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            lines = lines or ["it printed nothing"]
            ending = f"{arguments[0]!r} on {self.serial!r} ended with code {done.returncode}"
            problem = f"{ending}: {telling(lines, self.fixes).strip().rstrip('.')}."
            code = done.returncode if has_ended else -1
            raise ShellError(problem, code, fix_of(problem, self.fixes))
        return done.stdout.removesuffix(END) if self.is_silent else done.stdout

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically; raises `ShellError`."""
        self.run(["sh", "-c", WRITE, path], stdin=content, limit_s=600.0)
