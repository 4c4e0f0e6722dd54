"""Kernel variants that only a test has."""

from __future__ import annotations

from typing import Any

import pytest

from codl.kernels import registry
from codl.registry import Registry


def with_variants(monkeypatch: pytest.MonkeyPatch, *more: Any, gpu: bool = True) -> None:
    """codl's variants and `more`, until the test ends; without codl's own on the GPU if not `gpu`.

    The place in the list of registries is taken back with it.
    """
    own = [v for v in registry.VARIANTS.values() if gpu or v.processor == "cpu"]
    monkeypatch.setattr(Registry, "_instances", list(Registry._instances))
    monkeypatch.setattr(registry, "VARIANTS", Registry("kernel variant"))
    registry.register(*own, *more)
