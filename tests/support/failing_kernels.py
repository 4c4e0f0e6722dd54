"""Kernels that a device really cannot build or run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from codl.ir.ops.convolution import Conv2d
from codl.ir.records.soc import Soc
from codl.kernels.base import Choice, KernelPlan
from codl.kernels.conv2d.gpu_direct import GpuDirect


class Failing(GpuDirect):
    """A direct convolution, spoilt."""

    def __init__(self, spoil: Callable[[KernelPlan, Soc], KernelPlan]) -> None:
        super().__init__()
        self.name = "gpu_failing"
        self._spoil = spoil

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        return self._spoil(super().plan(op, soc), soc)


def source(folder: Path, text: str) -> Callable[[KernelPlan, Soc], KernelPlan]:
    path = folder / "spoilt.cl"
    path.write_text(text)
    return lambda plan, soc: replace(plan, source=str(path))
