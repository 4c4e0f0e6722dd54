"""From a serial to a target: every kind of target is registered here."""

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

#: What is said where an agent is not on a device, or not this codl's.
NOT_INSTALLED = (
    "No such file",
    "can't open",
    "cannot open",
    "of another codl",
    "packages are missing",
)


class Transport(NamedTuple):
    """A way to reach targets: `matches` says of a serial whether it is one of these."""

    #: What a serial of it looks like, for messages.
    pattern: str
    help: str
    matches: Callable[[str], bool]
    connect: Callable[[str, Soc | None], Target]
    #: The shell of the device, where that is not this machine.
    shell: Callable[[str], DeviceShell] | None = None
    #: What `codl doctor` looks at on the way to a device of this kind.
    checks: Callable[[str], Sequence[Check]] = lambda serial: ()
    #: What to say where something is to run there; empty for a machine, where it can.
    refusal: str = ""
    #: Whether almost anything may be a serial of it: it is asked when no other takes one.
    takes_most: bool = False

    @property
    def is_machine(self) -> bool:
        return not self.refusal


#: By their patterns.
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
    """The device of a shell, by the agent that was put there."""
    install = f"`codl agent install --serial {shell.serial}` puts this codl's agent there."
    fixes: dict[str, Fix] = {**shell.fixes, **dict.fromkeys(NOT_INSTALLED, install)}
    command = shell.command(launcher(shell))
    return RemoteTarget(shell.serial, command, soc, build=build(), fixes=fixes, cuts=shell.cuts)


def connect(serial: str, soc: Soc | None = None) -> Target:
    """The target of a serial; nothing is started before it is asked something.

    `soc` is the SoC that it is, which all but describing and probing need. Raises
    `UnknownNameError` for a serial that no transport knows.
    """
    return transport_of(serial).connect(serial, soc)


def machine_of(serial: str, what: str) -> Transport:
    """The way to a machine that is to do something; raises as `transport_of`.

    And `UnsupportedError` where the serial is no machine.
    """
    transport = transport_of(serial)
    if not transport.is_machine:
        raise UnsupportedError(f"{serial!r} cannot {what}: {transport.refusal}")
    return transport


def transport_of(serial: str) -> Transport:
    """The way to reach a serial; raises `UnknownNameError` where there is none."""
    for transport in sorted(TRANSPORTS.values(), key=lambda way: way.takes_most):
        if transport.matches(serial):
            return transport
    raise UnknownNameError("serial", serial, TRANSPORTS)
