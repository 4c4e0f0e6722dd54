"""`stage:K`: this machine, with K multiprocessors of its GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc
from codl.measure.tasks import Task
from codl.runtime.loaded import Offer
from codl.runtime.opencl import OpenClDevice
from codl.targets.compile_workers import CompileWorkers, worker_count
from codl.targets.connect import Transport, register
from codl.targets.local import LocalTarget

from .device import StageDevice

PREFIX = "stage:"


class StageTarget(LocalTarget):
    """This machine, with some multiprocessors of its GPU."""

    def __init__(self, serial: str, soc: Soc | None) -> None:
        super().__init__(soc)
        self.serial = serial
        self._left = int(serial.removeprefix(PREFIX))

    def _make_device(self, offer: Offer | None) -> OpenClDevice:
        return StageDevice(self.soc, self._left, offer)

    @cached_property
    def _workers(self) -> CompileWorkers:
        return _WithTheWholeGpu(self.soc, worker_count(self.soc) if self._device else 0, self)

    def close(self) -> None:
        device = self._device
        super().close()
        if isinstance(device, StageDevice):
            device.pause()


class _WithTheWholeGpu(CompileWorkers):
    """Compiling ahead is done by other processes on the whole GPU, while nothing is measured."""

    def __init__(self, soc: LocalSoc, count: int, target: StageTarget) -> None:
        super().__init__(soc, count)
        self._target = target

    def compile(self, tasks: Sequence[Task], tuning: Tuning, seconds: float) -> None:
        device = self._target.device
        assert isinstance(device, StageDevice)
        device.pause()
        super().compile(tasks, tuning, seconds)


def _is_stage(serial: str) -> bool:
    return serial.startswith(PREFIX) and serial.removeprefix(PREFIX).isdecimal()


register(
    Transport(
        "stage:MULTIPROCESSORS", "some multiprocessors of an NVIDIA GPU", _is_stage, StageTarget
    )
)
