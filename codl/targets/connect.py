"""Connection of serials to targets, with the registry of transports.

A transport's modules are imported when one of its serials is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from codl.errors import UnknownNameError, UnsupportedError
from codl.ir.records.soc import Soc
from codl.registry import TRANSPORTS

if TYPE_CHECKING:
    from codl.targets.base import Target
    from codl.targets.checks import Check
    from codl.targets.device_shell import DeviceShell


#: Forms of serials, for messages.
SSH_PATTERN, ADB_PATTERN = "ssh://USER@HOST:PORT", "ADB_SERIAL"
#: Receives a message about an action.
Tell: TypeAlias = Callable[[str], object]


def silent(text: str) -> None:
    """Default: show no messages."""


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
    #: Why nothing can run on the target; empty for a machine.
    refusal: str = ""
    #: Whether almost any text matches; the transport is then tried last.
    takes_most: bool = False

    @property
    def is_machine(self) -> bool:
        return not self.refusal


def register(transport: Transport) -> None:
    """Register a transport by its pattern."""
    TRANSPORTS.add(transport.pattern, transport, origin=transport.connect)


register(
    Transport(
        "local",
        "this machine, in this process",
        lambda serial: serial == "local",
        lambda serial, soc: _call("local:LocalTarget", soc),
    )
)
register(
    Transport(
        "process",
        "this machine, in a process beside this one, which a driver may crash",
        lambda serial: serial == "process",
        lambda serial, soc: _call("remote:process_target", soc),
    )
)
register(
    Transport(
        SSH_PATTERN,
        "a board or another machine, over ssh",
        lambda serial: serial.startswith("ssh://"),
        lambda serial, soc: _call("install:behind", _call("ssh:shell_of", serial), soc),
        lambda serial: _call("ssh:shell_of", serial),
        lambda serial: _call("ssh:checks_of", serial),
    )
)
register(
    Transport(
        ADB_PATTERN,
        "a phone, as `adb devices` prints it",
        lambda serial: _call("adb:matches", serial),
        lambda serial, soc: _call("install:behind", _call("adb:shell_of", serial), soc),
        lambda serial: _call("adb:shell_of", serial),
        lambda serial: _call("adb:checks_of", serial),
        takes_most=True,
    )
)


def _call(place: str, *arguments: object) -> Any:
    """Import a module of `codl.targets` and call one of its functions."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"codl.targets.{module}"), name)(*arguments)


def prepare(serial: str, *, install: bool = True, tell: Tell = silent) -> None:
    """Install the agent of a device if it is missing, damaged or of another codl.

    Reuses the Python of a former agent. `tell` receives a line per action. Raises `DeviceError` for
    an unreachable device, one that cannot take an agent, and, without `install`, one that needs it.
    """
    if shell_of := transport_of(serial).shell:
        from codl.targets.install import prepare

        prepare(shell_of(serial), can_install=install, tell=tell)


def connect(serial: str, soc: Soc | None = None) -> Target:
    """The target of a serial; probing needs no `soc`. Raises `UnknownNameError` for others."""
    return transport_of(serial).connect(serial, soc)


def machine_of(serial: str, what: str) -> Transport:
    """The transport of a machine; raises the error of `transport_of`.

    Raises `UnsupportedError` for a serial that is no machine; `what` is the impossible action.
    """
    transport = transport_of(serial)
    if not transport.is_machine:
        raise UnsupportedError(f"{serial!r} cannot {what}: {transport.refusal}")
    return transport


def transport_of(serial: str) -> Transport:
    """The transport of a serial; raises `UnknownNameError` without a matching one."""
    ways: list[Transport] = sorted(TRANSPORTS.values(), key=lambda way: way.takes_most)
    for transport in ways:
        if transport.matches(serial):
            return transport
    raise UnknownNameError("serial", serial, TRANSPORTS)
