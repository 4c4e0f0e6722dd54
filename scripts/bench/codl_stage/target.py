"""`stage:K`: this machine, with K multiprocessors of its GPU."""

from __future__ import annotations

from codl.records.soc import Soc
from codl.runtime.opencl import OpenClDevice
from codl.runtime.program_cache import Offer
from codl.targets.connect import Transport, register
from codl.targets.local import LocalTarget

from .device import StageDevice

PREFIX = "stage:"


class StageTarget(LocalTarget):
    """Compiling ahead is done by other processes on the whole GPU, while nothing is measured."""

    def __init__(self, serial: str, soc: Soc | None) -> None:
        super().__init__(soc)
        self.serial = serial
        self._left = int(serial.removeprefix(PREFIX))

    def _make_device(self, offer: Offer | None) -> OpenClDevice:
        return StageDevice(self.soc, self._left, offer)

    def close(self) -> None:
        device = self._device
        super().close()
        if isinstance(device, StageDevice):
            device.close()


def _is_stage(serial: str) -> bool:
    return serial.startswith(PREFIX) and serial.removeprefix(PREFIX).isdecimal()


register(
    Transport(
        "stage:MULTIPROCESSORS", "some multiprocessors of an NVIDIA GPU", _is_stage, StageTarget
    )
)
