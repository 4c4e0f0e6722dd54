"""The target `process`: this machine behind an agent that is a child of this process.

A driver that crashes or hangs takes the child down, and not this process.
"""

from __future__ import annotations

from codl.records.soc import Soc
from codl.targets.client import COMMAND
from codl.targets.remote import RemoteTarget

SERIAL = "process"


def process_target(serial: str, soc: Soc | None) -> RemoteTarget:
    """This machine, with every call made in a child process."""
    return RemoteTarget(serial, COMMAND, soc)
