"""Kernel variants that only a test has, among them such as a device cannot build or run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codl.ir.ops.convolution import Conv2d
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.base import Choice, KernelPlan
from codl.kernels.conv2d.gpu_direct import GpuDirect
from codl.registry import Registry


def with_variants(monkeypatch: pytest.MonkeyPatch, *more: Any, gpu: bool = True) -> None:
    """codl's variants and `more`, until the test ends; without codl's own on the GPU if not `gpu`.

    The place in the list of registries is taken back with it.
    """
    own = [v for v in registry.VARIANTS.values() if gpu or v.processor == "cpu"]
    monkeypatch.setattr(Registry, "_instances", list(Registry._instances))
    monkeypatch.setattr(registry, "VARIANTS", Registry("kernel variant"))
    registry.register(*own, *more)


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
