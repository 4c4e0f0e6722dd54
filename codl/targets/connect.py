"""From a serial to a target: every kind of target is registered here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from codl.errors import UnknownNameError
from codl.ir.soc import Soc
from codl.registry import Registry
from codl.targets.base import Target
from codl.targets.local import LocalTarget
from codl.targets.process import process_target


class Transport(NamedTuple):
    """A way to reach targets: `matches` says of a serial whether it is one of these."""

    #: What a serial of it looks like, for messages.
    pattern: str
    help: str
    matches: Callable[[str], bool]
    connect: Callable[[str, Soc | None], Target]


#: By their patterns.
TRANSPORTS: Registry[Transport] = Registry("serial")


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
        process_target,
    )
)


def connect(serial: str, soc: Soc | None = None) -> Target:
    """The target of a serial; nothing is started before it is asked something.

    `soc` is the SoC that it is, which all but describing and probing need. Raises
    `UnknownNameError` for a serial that no transport knows.
    """
    return transport_of(serial).connect(serial, soc)


def transport_of(serial: str) -> Transport:
    """The way to reach a serial; raises `UnknownNameError` where there is none."""
    for transport in TRANSPORTS.values():
        if transport.matches(serial):
            return transport
    raise UnknownNameError("serial", serial, TRANSPORTS)
