"""What stands for an OpenCL device where there is none: the CPU side is measured without it."""

from __future__ import annotations

from typing import NoReturn, cast

from codl.errors import CodlError
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc


class AbsentDevice:
    """Knows its SoC; whatever else is asked of it raises `why`."""

    def __init__(self, soc: LocalSoc, why: CodlError) -> None:
        self.soc = soc
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise self._why


def absent_device(soc: LocalSoc, why: CodlError) -> OpenClDevice:
    """A device of which everything raises `why`."""
    return cast(OpenClDevice, AbsentDevice(soc, why))
