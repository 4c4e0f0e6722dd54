"""Cores and threads of the CPU side, and hints to the GPU's driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.phone import put
from support.simulated import SOC
from support.synthetic_predictors import fastest

from codl.errors import CodlError, CodlWarning, InvalidFileError
from codl.ir import Shape, parse
from codl.ir.types import Direction
from codl.kernels import registry
from codl.plan.cost_model import CostModel
from codl.plan.coverage import without_winograd
from codl.predict.in_network_cost import InNetworkCosts
from codl.runtime import opencl, placement
from codl.runtime.drivers import cl_module
from codl.runtime.hardware import speeds
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc, Placement, beside, cores_of, with_cores
from codl.runtime.system_files import SystemFiles
from codl.strategies import Context


def test_big_and_little_cores_are_told_apart_by_their_speed(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    for core, capacity in enumerate((300, 300, 800, 1024)):
        put(tmp_path, f"sys/devices/system/cpu/cpu{core}", cpu_capacity=capacity)
    found = speeds([0, 1, 2, 3], files)
    assert cores_of("big", [0, 1, 2, 3], found) == (3,)
    assert cores_of("little", [0, 1, 2, 3], found) == (0, 1, 2)
    assert cores_of("none", [0, 1, 2, 3], found) == (0, 1, 2, 3)
    assert cores_of("3,1", [0, 1, 2, 3], found) == (3, 1)
    put(tmp_path, "sys/devices/system/cpu/cpu4", cpu_capacity="")
    alike = speeds([4, 5], files)
    assert cores_of("big", [4, 5], alike) == cores_of("little", [4, 5], alike) == (4, 5)


def test_cores_that_are_not_there_or_not_free_are_refused(first_soc: LocalSoc) -> None:
    with pytest.raises(CodlError, match="'huge': expected none, big, little, or cores"):
        with_cores(first_soc, "huge", None)
    with pytest.raises(CodlError, match="no core 977 for the CPU side"):
        with_cores(first_soc, "977", None)
    for core in first_soc.placement.gpu_cores:
        with pytest.raises(CodlError, match=f"no core {core} for the CPU side"):
            with_cores(first_soc, str(core), None)
    assert with_cores(first_soc, None, None) is first_soc
    assert with_cores(first_soc, "none", 1).placement.threads == 1


@pytest.mark.parametrize("pinned", [None, True, False])
def test_fewer_threads_than_cores_are_pinned_to_the_first_or_move(pinned: bool | None) -> None:
    place = Placement("none", (4, 5, 6, 7, 0, 1), cpu_pinned=pinned)
    few = with_cores(LocalSoc.of(SOC, place), None, 2).placement
    assert few.threads == 2
    assert few.cpu_cores == ((4, 5) if pinned else place.cpu_cores)
    assert with_cores(LocalSoc.of(SOC, place), None, 6).placement == place


def test_a_placement_may_hold_hints(first_soc: LocalSoc, tmp_path: Path) -> None:
    assert "performance" not in first_soc.placement.to_dict()
    changed = hinted(first_soc, "high", "low")
    path = changed.save(tmp_path / "test.yaml")
    place = beside(path)
    assert place == tmp_path / "test.local.yaml"
    assert placement.load(path) == changed
    place.write_text(place.read_text().replace("priority: low", "priority: lowest"))
    with pytest.raises(InvalidFileError, match=r"priority: must be of default, low, normal"):
        placement.load(path)


def hinted(soc: LocalSoc, performance: str, priority: str) -> LocalSoc:
    place = replace(soc.placement, performance=performance, priority=priority)
    return replace(soc, placement=place)


def test_hints_go_to_the_extension_that_a_driver_has(first_soc: LocalSoc) -> None:
    soc = hinted(first_soc, "high", "low")
    qualcomm, khronos = "cl_x cl_qcom_perf_hint", "cl_khr_priority_hints cl_khr_throttle_hints"
    assert opencl.context_properties(soc.placement, qualcomm) == [0x40C2, 0x40C3, 0x40C9, 0x40CC]
    assert opencl.queue_properties(soc.placement, qualcomm) == []
    assert opencl.context_properties(soc.placement, khronos) == []
    assert opencl.queue_properties(soc.placement, khronos) == [0x1097, 1, 0x1096, 4]
    both = "cl_qcom_priority_hint cl_khr_priority_hints cl_khr_throttle_hints"
    assert opencl.context_properties(soc.placement, both) == [0x40C9, 0x40CC]
    assert opencl.queue_properties(soc.placement, both) == [0x1097, 1]
    assert opencl.queue_properties(first_soc.placement, khronos) == []


def test_a_hint_without_effect_is_said(gpu: OpenClDevice) -> None:
    """No driver on a machine without a GPU has any of these extensions."""
    soc = hinted(gpu.soc, "normal", "default")
    known = ("cl_qcom_perf_hint", "cl_khr_throttle_hints")
    if any(name in gpu.device.extensions for name in known):
        assert opencl.ignored(gpu.device, soc.placement) == []
        return
    assert opencl.ignored(gpu.device, gpu.soc.placement) == []
    with pytest.warns(CodlWarning, match="takes no performance hint, so 'normal' has no effect"):
        OpenClDevice(soc)


def test_a_context_is_made_past_pyopencl(gpu: OpenClDevice) -> None:
    """As with hints, but with none: what drivers without them accept too."""
    context = opencl.context_of(gpu.device, [])
    queue = cl_module().CommandQueue(context)
    buffer = cl_module().Buffer(context, cl_module().mem_flags.READ_WRITE, 64)
    cl_module().enqueue_fill_buffer(queue, buffer, b"\0", 0, 64).wait()
    assert context.devices == [gpu.device]


@dataclass(frozen=True)
class Table:
    """Predictors that know some targets."""

    targets: tuple[str, ...]
    name: str = "table"
    few: Mapping[str, frozenset[str]] = field(default_factory=dict)
    inside: InNetworkCosts = field(default_factory=dict)

    def latency_ms(self, target: str, items: Sequence[Any]) -> NDArray[np.float64]:
        return np.full(len(items), float(self.targets.index(target) + 1))

    def sharing_ms(self, direction: Direction, shapes: Sequence[Shape]) -> Any:
        return {"copy": np.full(len(shapes), 0.5)}


def test_planning_without_winograd(first_soc: LocalSoc) -> None:
    op = parse("conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1")
    names = [registry.target(v, op) for v in registry.variants(op, "cpu", first_soc)]
    names.sort(key=lambda name: "winograd" not in name)
    predictors = Table((*names, "mulayer_conv2d_cpu"))
    usual, without = CostModel(first_soc, predictors), without_winograd(predictors)
    assert "winograd" in fastest(usual, op, "cpu").variant
    for by_op in (False, True):
        other = CostModel(first_soc, without, by_op)
        assert "winograd" not in fastest(other, op, "cpu").variant
    assert without.sharing_ms("to_gpu", [op.output])["copy"] == [0.5]
    assert not Context(first_soc, winograd=False).winograd
