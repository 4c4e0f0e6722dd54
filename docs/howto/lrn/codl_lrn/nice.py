from __future__ import annotations

from codl.ir.records.soc import Soc
from codl.targets.base import Target
from codl.targets.client import COMMAND
from codl.targets.connect import Transport, register
from codl.targets.remote import RemoteTarget


def nice(serial: str, soc: Soc | None) -> Target:
    return RemoteTarget(serial, ("nice", "-n", "1", *COMMAND), soc)


register(
    Transport("nice", "this machine, at a lower priority", lambda serial: serial == "nice", nice)
)
