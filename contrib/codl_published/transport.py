"""The serials of replays; looking up another serial does not import what a replay needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codl.targets.connect import Transport
from codl_published import INSTEAD, SCHEME

if TYPE_CHECKING:
    from codl.ir.records.soc import Soc
    from codl.targets.base import Target


def _connect(serial: str, soc: Soc | None) -> Target:
    from codl_published.replay import ReplayTarget

    return ReplayTarget(serial, soc)


TRANSPORT = Transport(
    "replay:DIR",
    "no device: the rows of a dataset again, for `codl collect`",
    lambda serial: serial.startswith(SCHEME),
    _connect,
    refusal=INSTEAD,
)
