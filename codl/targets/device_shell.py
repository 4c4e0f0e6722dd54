"""The shell of a device, reached by the system's own client (adb, ssh), and what it may run.

No text of a user or a device becomes shell text: every argument is quoted.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codl.errors import DeviceError
from codl.runtime.child import telling
from codl.targets.checks import Check, CheckResult, DeviceUnderTest
from codl.targets.client import Fix, fix_of

LIMIT_S = 30.0
#: The shell's code for what may not be executed.
REFUSED = 126
#: What is written by a shell that runs what it is told.
WORD = "codl"


def client_check(client: Sequence[str], version: Sequence[str], fix: str) -> Check:
    """That a client is installed; `version` are the arguments at which it tells its own."""

    def run(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
        path = shutil.which(client[0])
        if path is None:
            yield CheckResult(False, f"{client[0]!r} is not installed on this machine")
            return
        said = said_by([path, *client[1:], *version])
        yield CheckResult(True, f"{path}: {(said.splitlines() or ['no version'])[0]}")

    return Check(f"{client[0].rpartition('/')[2]} client", run, fix, "nothing", decides=True)


def shell_check(name: str, shell_of: Callable[[], DeviceShell], fix: str) -> Check:
    """That a command which is run on a device is what was said; errors have their own fixes."""

    def run(under_test: DeviceUnderTest) -> Iterator[CheckResult]:
        shell = shell_of()
        try:
            said = shell.run(["echo", WORD], limit_s=LIMIT_S).decode(errors="replace").strip()
        except ShellError as error:
            yield CheckResult(False, error.problem, fix=error.fix)
            return
        if said == WORD:
            yield CheckResult(True, f"a command ran on {shell.serial}")
        else:
            yield CheckResult(
                False, f"{shell.serial} said {said[:200]!r} where {WORD!r} was asked for"
            )

    return Check(name, run, fix, "nothing", decides=True)


def said_by(command: Sequence[str]) -> str:
    """What a program on this machine writes; raises `DeviceError` where it does not end well."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{command[0]!r} does not work: {error}") from error
    said = (done.stdout + done.stderr).decode(errors="replace").strip()
    if done.returncode:
        last = said.splitlines()[-1] if said else "it said nothing"
        raise DeviceError(f"{command[0]!r} ended with code {done.returncode}: {last}")
    return said


#: Writes its input beside a file and moves it there, so that a cut connection leaves no half file.
WRITE = 'cat > "$0.part" && mv "$0.part" "$0" || { rm -f "$0.part"; exit 1; }'
#: Said behind all that a command says, so that an output which was cut is known by its lack.
END = b"codl: ended"
SAY_END = f"; code=$?; printf '{END.decode()}'; exit $code"


class ShellError(DeviceError):
    """A command failed on a device, or the client did not get there.

    `code` is the command's exit code, or -1 where it is known that there is none; `fix` is what can
    be done, where that is known.
    """

    def __init__(self, problem: str, code: int, fix: str = "") -> None:
        super().__init__(f"{problem} {fix}".strip())
        self.problem, self.code, self.fix = problem, code, fix


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

    def run(self, arguments: Sequence[str], *, stdin: bytes = b"", limit_s: float = 60.0) -> bytes:
        """What a program writes to its output when `stdin` is its input.

        Raises `ShellError` where it fails or takes longer, or the device cannot be reached.
        """
        text = shlex.join(arguments) + (SAY_END if self.is_silent else "")
        try:
            done = subprocess.run(
                (*self.client, text), input=stdin, capture_output=True, timeout=limit_s
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
            ending = f"{arguments[0]!r} on {self.serial!r} ended with code {done.returncode}"
            problem = f"{ending}: {telling(lines, self.fixes).strip().rstrip('.')}."
            code = done.returncode if has_ended else -1
            raise ShellError(problem, code, fix_of(problem, self.fixes))
        return done.stdout.removesuffix(END) if self.is_silent else done.stdout

    def check_room(self, needed: int, what: str) -> None:
        """Raise `DeviceError` where it is known that so many bytes have no room in the folder."""
        try:
            table = self.run(["df", "-k", self.folder]).decode(errors="replace").splitlines()
            free = int(table[-1].split()[3]) << 10
        except (ShellError, IndexError, ValueError):
            return
        if free < needed:
            raise DeviceError(
                f"{self.folder} on {self.serial!r} has {free / 1e6:.0f} MB free, and {what} needs "
                f"{needed / 1e6:.0f} MB there: make room on the device."
            )

    def write(self, path: str, content: bytes) -> None:
        """Put a whole file in its place at once; raises `ShellError`."""
        self.run(["sh", "-c", WRITE, path], stdin=content, limit_s=600.0)
