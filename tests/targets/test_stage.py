"""The plugin `codl_stage`: a GPU of which only some multiprocessors are left, without the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import ModuleType

import pytest

from codl.ir import parse
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.registry import rolled_back
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice


class NoCompanion:
    """Counts the starts of a companion that occupies nothing."""

    starts = 0

    def __init__(self, context: object, left: int) -> None:
        assert left == 3

    def start(self) -> None:
        type(self).starts += 1

    def stop(self) -> None: ...


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in ("Buffer", "Image"):  # `Kept` replaces them for the whole process
        monkeypatch.setattr(cl_module(), name, getattr(cl_module(), name))
    with rolled_back(always=True):
        device = pytest.importorskip("codl_stage.device")
        monkeypatch.setattr(device, "Companion", NoCompanion)
        yield pytest.importorskip("codl_stage.target")


def test_rows_are_measured_beside_the_companion(first_soc: Soc, plugin: ModuleType) -> None:
    op = parse("conv2d in=1x16x9x9 oc=16 kernel=3x3 pad=1")
    with closing(plugin.StageTarget("stage:3", first_soc)) as target:
        rows, _ = target.bench(op, Tuning())
        assert type(target.device).__name__ == "StageDevice"
    assert rows
    assert NoCompanion.starts > 0


def test_memory_without_users_is_released(plugin: ModuleType, first_gpu: OpenClDevice) -> None:
    cl = cl_module()
    kept = pytest.importorskip("codl_stage.kept").Kept()
    used = cl.Buffer(first_gpu.context, cl.mem_flags.READ_WRITE, 64)
    unused = cl.Buffer(first_gpu.context, cl.mem_flags.READ_WRITE, 64)
    assert isinstance(unused, cl.MemoryObject)
    del unused
    assert len(kept) == 2
    kept.release()
    assert len(kept) == 1
    assert used.size == 64
    del used
    kept.release()
    assert len(kept) == 0
