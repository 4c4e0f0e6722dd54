"""Connection of serials to targets, with the registry of transports.

A transport's modules are imported when one of its serials is used.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from codl.errors import DeviceError, UnknownNameError, UnsupportedError
from codl.ir.records.soc import Soc
from codl.registry import TRANSPORTS

if TYPE_CHECKING:
    from codl.targets.base import Target
    from codl.targets.checks import Check
    from codl.targets.client import Fix
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
    #: Serials of connected devices, if the transport can list them.
    listed: Callable[[], Sequence[str]] = lambda: ()
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
        lambda serial, soc: _behind(_call("ssh:shell_of", serial), soc),
        lambda serial: _call("ssh:shell_of", serial),
        lambda serial: _call("ssh:checks_of", serial),
    )
)
register(
    Transport(
        ADB_PATTERN,
        "a phone, as `adb devices` prints it",
        lambda serial: _call("adb:matches", serial),
        lambda serial, soc: _behind(_call("adb:shell_of", serial), soc),
        lambda serial: _call("adb:shell_of", serial),
        lambda serial: _call("adb:checks_of", serial),
        listed=lambda: _call("adb:listed"),
        takes_most=True,
    )
)


def _call(place: str, *arguments: object) -> Any:
    """Import a module of `codl.targets` and call one of its functions."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"codl.targets.{module}"), name)(*arguments)


def _behind(shell: DeviceShell, soc: Soc | None) -> Target:
    """The target behind a shell, through the agent installed there."""
    from codl.targets import install
    from codl.targets.remote import RemoteTarget

    missing = (*install.ABSENT, "of another codl", "packages are missing")
    fixes: dict[str, Fix] = {**shell.fixes, **dict.fromkeys(missing, _install_fix(shell))}
    return RemoteTarget(
        shell.serial,
        shell.command(install.launcher(shell)),
        soc,
        build=install.build(),
        fixes=fixes,
        cuts=shell.cuts,
    )


def _install_fix(shell: DeviceShell) -> str:
    serial = shlex.quote(shell.serial)
    return f"`codl agent install --serial {serial}` puts this codl's agent there."


def prepare(serial: str, *, install: bool = True, tell: Tell = silent) -> None:
    """Install the agent of a device if it is missing, damaged or of another codl.

    Reuses the Python of a former agent. `tell` receives a line per action. Raises `DeviceError` for
    an unreachable device, one that cannot take an agent, and, without `install`, one that needs it.
    """
    shell_of = transport_of(serial).shell
    if shell_of is None:
        return
    from codl.targets import install as agents

    shell = shell_of(serial)
    problem = agents.problem_of(shell)
    if not problem:
        return
    if not install:
        raise DeviceError(
            f"{serial!r} {problem}, and --no-install keeps it so. {_install_fix(shell)}"
        )
    tell(f"{serial!r} {problem}: installing the agent of this codl there")
    done = agents.install(shell, agents.python_of(shell))
    brought = f", with {', '.join(done.brought)}" if done.brought else ""
    tell(f"Installed the agent in {shell.folder}{brought}")
    if not done.checked.can_serve:
        fixes = [f"{name}: {done.fixes[name]}" for name in agents.REQUIRED if name in done.fixes]
        raise DeviceError(f"The agent on {serial!r} cannot work: {' '.join(fixes)}")


def plugged_in() -> list[str]:
    """Serials of the devices connected to this machine, ready or not."""
    return [serial for way in TRANSPORTS.values() for serial in way.listed()]


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
