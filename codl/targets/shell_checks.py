"""Checks of the way to a device's shell: the client is here, and a command runs there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence

from codl.errors import DeviceError
from codl.targets.checks import Check, Outcome, Patient
from codl.targets.device_shell import DeviceShell, ShellError

LIMIT_S = 30.0
#: What is written by a shell that runs what it is told.
WORD = "codl"


def client_check(client: Sequence[str], version: Sequence[str], fix: str) -> Check:
    """That a client is installed; `version` are the arguments at which it tells its own."""

    def run(patient: Patient) -> Iterator[Outcome]:
        path = shutil.which(client[0])
        if path is None:
            yield Outcome(False, f"{client[0]!r} is not installed on this machine")
            return
        said = said_by([path, *client[1:], *version])
        yield Outcome(True, f"{path}: {(said.splitlines() or ['no version'])[0]}")

    return Check(f"{client[0].rpartition('/')[2]} client", run, fix, "nothing", decides=True)


def shell_check(name: str, shell_of: Callable[[], DeviceShell], fix: str) -> Check:
    """That a command which is run on a device is what was said; errors have their own fixes."""

    def run(patient: Patient) -> Iterator[Outcome]:
        shell = shell_of()
        try:
            said = shell.run(["echo", WORD], limit_s=LIMIT_S).decode(errors="replace").strip()
        except ShellError as error:
            yield Outcome(False, error.problem, fix=error.fix)
            return
        if said == WORD:
            yield Outcome(True, f"a command ran on {shell.serial}")
        else:
            yield Outcome(False, f"{shell.serial} said {said[:200]!r} where {WORD!r} was asked for")

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
