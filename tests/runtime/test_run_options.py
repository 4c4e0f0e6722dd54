"""Cores and threads of the CPU side, and hints to the GPU's driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.synthetic_predictors import SyntheticPredictors, fastest

from codl.errors import CodlWarning, InvalidFileError
from codl.ir import parse
from codl.machine import placement
from codl.machine.placement import LocalSoc, Placement, beside
from codl.plan.cost_model import CostModel
from codl.plan.coverage import without_winograd
from codl.runtime import hints
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice


@pytest.mark.parametrize("pinned", [None, True, False])
def test_fewer_threads_than_cores_are_pinned_to_the_first_or_move(pinned: bool | None) -> None:
    place = Placement("none", (4, 5, 6, 7, 0, 1), cpu_pinned=pinned)
    few = place.with_threads(2)
    assert few.threads == 2
    assert few.cpu_cores == ((4, 5) if pinned else place.cpu_cores)
    assert place.with_threads(6) == place


def test_a_placement_may_hold_hints(first_soc: LocalSoc, tmp_path: Path) -> None:
    assert "performance" not in first_soc.placement.to_dict()
    changed = hinted(first_soc, "high", "low")
    path = changed.save(tmp_path / "test.yaml")
    place = beside(path)
    assert place == tmp_path / "test.local.yaml"
    assert placement.load(path) == changed
    place.write_text(place.read_text().replace("priority: low", "priority: lowest"))
    with pytest.raises(InvalidFileError, match=r"priority: must be one of"):
        placement.load(path)


def hinted(soc: LocalSoc, performance: str, priority: str) -> LocalSoc:
    place = replace(soc.placement, performance=performance, priority=priority)
    return replace(soc, placement=place)


def test_hints_go_to_the_extension_that_a_driver_has(first_soc: LocalSoc) -> None:
    soc = hinted(first_soc, "high", "low")
    qualcomm, khronos = "cl_x cl_qcom_perf_hint", "cl_khr_priority_hints cl_khr_throttle_hints"
    assert hints.Hints.of(soc.placement, qualcomm).context == [0x40C2, 0x40C3, 0x40C9, 0x40CC]
    assert hints.Hints.of(soc.placement, qualcomm).queue == []
    assert hints.Hints.of(soc.placement, khronos).context == []
    assert hints.Hints.of(soc.placement, khronos).queue == [0x1097, 1, 0x1096, 4]
    both = "cl_qcom_priority_hint cl_khr_priority_hints cl_khr_throttle_hints"
    assert hints.Hints.of(soc.placement, both).context == [0x40C9, 0x40CC]
    assert hints.Hints.of(soc.placement, both).queue == [0x1097, 1]
    assert hints.Hints.of(first_soc.placement, khronos).queue == []


def test_a_hint_without_effect_is_said(gpu: OpenClDevice) -> None:
    """No driver on a machine without a GPU has any of these extensions."""
    soc = hinted(gpu.soc, "normal", "default")
    known = ("cl_qcom_perf_hint", "cl_khr_throttle_hints")
    if any(name in gpu.device.extensions for name in known):
        assert hints.ignored(gpu.device, soc.placement) == []
        return
    assert hints.ignored(gpu.device, gpu.soc.placement) == []
    with pytest.warns(CodlWarning, match="takes no performance hint, so 'normal' has no effect"):
        OpenClDevice(soc)


def test_a_context_is_made_past_pyopencl(gpu: OpenClDevice) -> None:
    """As with hints, but with none: what drivers without them accept too."""
    context = hints.context_of(gpu.device, [])
    queue = cl_module().CommandQueue(context)
    buffer = cl_module().Buffer(context, cl_module().mem_flags.READ_WRITE, 64)
    cl_module().enqueue_fill_buffer(queue, buffer, b"\0", 0, 64).wait()
    assert context.devices == [gpu.device]


def test_planning_without_winograd(first_soc: LocalSoc) -> None:
    op = parse("conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1")
    predictors = SyntheticPredictors(times=lambda target: 0.1 if "winograd" in target else 1.0)
    usual, without = (
        fastest(CostModel(first_soc, own), op, "cpu").variant
        for own in (predictors, without_winograd(predictors))
    )
    assert "winograd" in usual
    assert "winograd" not in without
