"""Memory that the stage of docs/results/curve.md keeps until its companion has stopped."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


def test_memory_goes_when_nobody_has_it_and_no_sooner(
    monkeypatch: pytest.MonkeyPatch, first_gpu: OpenClDevice
) -> None:
    monkeypatch.syspath_prepend(str(BENCH / "codl_stage"))
    cl = cl_module()
    for name in ("Buffer", "Image"):  # put back behind the test
        monkeypatch.setattr(cl, name, getattr(cl, name))
    kept = importlib.import_module("kept").Kept()
    held = cl.Buffer(first_gpu.context, cl.mem_flags.READ_WRITE, 64)
    gone = cl.Buffer(first_gpu.context, cl.mem_flags.READ_WRITE, 64)
    assert isinstance(gone, cl.MemoryObject)
    del gone
    assert len(kept) == 2
    kept.release()
    assert len(kept) == 1
    assert held.size == 64
    del held
    kept.release()
    assert len(kept) == 0
