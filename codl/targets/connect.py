"""Connects a serial to a target; every kind of target is registered here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from codl import plugins
from codl.errors import UnknownNameError, UnsupportedError
from codl.records.soc import Soc
from codl.registry import Registry
from codl.targets import adb, ssh
from codl.targets.base import Target
from codl.targets.checks import Check
from codl.targets.client import Fix
from codl.targets.device_shell import DeviceShell
from codl.targets.install import build, launcher
from codl.targets.local import LocalTarget
from codl.targets.remote import RemoteTarget, process_target

#: Parts of errors where the agent on a device is missing, or of another codl.
NOT_INSTALLED = (
    "No such file",
    "can't open",
    "cannot open",
    "of another codl",
    "packages are missing",
)


class Transport(NamedTuple):
    """A way to reach targets; `matches` is true for its serials."""

    #: Form of its serials, for messages.
    pattern: str
    help: str
    matches: Callable[[str], bool]
    connect: Callable[[str, Soc | None], Target]
    #: The shell of a device; None for this machine.
    shell: Callable[[str], DeviceShell] | None = None
    #: Checks of the connection, for `codl doctor`.
    checks: Callable[[str], Sequence[Check]] = lambda serial: ()
    #: What to say where something is to run there; empty for a machine, where it can.
    refusal: str = ""
    #: Whether almost any text may be its serial: it is tried after all others.
    takes_most: bool = False

    @property
    def is_machine(self) -> bool:
        return not self.refusal


#: Transports by their patterns.
TRANSPORTS: Registry[Transport] = plugins.TRANSPORTS


def register(transport: Transport) -> None:
    """Add a way to reach targets."""
    TRANSPORTS.add(transport.pattern, transport, origin=transport.connect)


register(
    Transport(
        "local",
        "this machine, in this process",
        lambda serial: serial == "local",
        lambda serial, soc: LocalTarget(soc),
    )
)
register(
    Transport(
        "process",
        "this machine, in a process beside this one, which a driver may crash",
        lambda serial: serial == "process",
        lambda serial, soc: process_target(soc),
    )
)
register(
    Transport(
        ssh.PATTERN,
        "a board or another machine, over ssh",
        ssh.matches,
        lambda serial, soc: _behind(ssh.shell_of(serial), soc),
        ssh.shell_of,
        ssh.checks_of,
    )
)
register(
    Transport(
        adb.PATTERN,
        "a phone, as `adb devices` prints it",
        adb.matches,
        lambda serial, soc: _behind(adb.shell_of(serial), soc),
        adb.shell_of,
        adb.checks_of,
        takes_most=True,
    )
)


def _behind(shell: DeviceShell, soc: Soc | None) -> Target:
    """The target behind a shell, by the agent that was installed there."""
    install = f"`codl agent install --serial {shell.serial}` puts this codl's agent there."
    fixes: dict[str, Fix] = {**shell.fixes, **dict.fromkeys(NOT_INSTALLED, install)}
    command = shell.command(launcher(shell))
    return RemoteTarget(shell.serial, command, soc, build=build(), fixes=fixes, cuts=shell.cuts)


def connect(serial: str, soc: Soc | None = None) -> Target:
    """The target of a serial; its agent starts at the first request.

    Describing and probing need no `soc`. Raises `UnknownNameError` for a serial of no transport.
    """
    return transport_of(serial).connect(serial, soc)


def machine_of(serial: str, what: str) -> Transport:
    """The transport of a machine; raises as `transport_of`.

    Raises `UnsupportedError` where the serial is no machine; `what` is what it cannot do.
    """
    transport = transport_of(serial)
    if not transport.is_machine:
        raise UnsupportedError(f"{serial!r} cannot {what}: {transport.refusal}")
    return transport


def transport_of(serial: str) -> Transport:
    """The transport of a serial; raises `UnknownNameError` where there is none."""
    for transport in sorted(TRANSPORTS.values(), key=lambda way: way.takes_most):
        if transport.matches(serial):
            return transport
    raise UnknownNameError("serial", serial, TRANSPORTS)
