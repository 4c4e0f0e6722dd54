"""Engines under limits: outputs are those without, and no launch is longer than it may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.kernel_runs import Case, run_gpu
from support.plans import branching_case, make_plan

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir import parse
from codl.kernels import registry
from codl.plan.build_plan import default_plan
from codl.records.gpu_limits import GpuLimits
from codl.runtime import limited as limits_module
from codl.runtime.launch import BoundKernel
from codl.runtime.limited import PacedQueue
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc, splittable
from codl.targets.local import LocalTarget

LIMITS = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.9)
Times = Callable[[OpenClDevice, Sequence[BoundKernel]], list[float]]


def taking(whole_ms: float, piece_ms: float) -> Times:
    """As if kernels took so long as they are, and in pieces."""

    def measured_ms(_: OpenClDevice, kernels: Sequence[BoundKernel]) -> list[float]:
        return [whole_ms if one.offset is None else piece_ms for one in kernels]

    return measured_ms


@pytest.fixture
def long_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is to be split."""
    monkeypatch.setattr(limits_module, "measured_ms", taking(4.0, 0.5))


def limited(soc: LocalSoc, limits: GpuLimits = LIMITS) -> LocalSoc:
    return replace(soc, placement=replace(soc.placement, limits=limits))


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("conv2d in=1x64x14x14 oc=64 kernel=1", "gpu_gemm"),
        ("matmul in=64x32,32x48", "gpu_tiled"),
        ("transpose in=100x17 perm=1x0", "gpu_copy"),
        ("fc in=1x64x1x1 oc=64", "gpu_rows"),
        ("pooling in=1x64x14x14 mode=avg kernel=14", "gpu_global"),
        ("eltwise in=1x64x14x14,1x64x14x14", "gpu_direct"),
    ],
)
def test_kernels_in_pieces_compute_what_they_do_whole(
    text: str, variant: str, first_gpu: OpenClDevice, long_kernels: None
) -> None:
    """Those of each way to ask for a place in the launch, on a device taken for a GPU."""
    case = Case.of(parse(text))
    found = registry.variants(case.op, "gpu", first_gpu.soc, include_unfit=True)
    (own,) = (one for one in found if one.name == variant)
    whole, pieces = (
        run_gpu(own, case.op, case.whole, case.inputs, case.weights, first_gpu, limits=limits)[0]
        for limits in (GpuLimits(), LIMITS)
    )
    np.testing.assert_array_equal(pieces, whole)


@pytest.mark.parametrize("sees_host_memory", [True, False])
def test_any_chain_gives_the_same_outputs(
    sees_host_memory: bool, first_soc: LocalSoc, long_kernels: None
) -> None:
    """Also where tensors are mapped to be shared, which begins while the engine loads."""
    network, x, _ = branching_case()
    gpu = first_soc.gpu
    first_soc = replace(
        first_soc, gpu=replace(gpu, fine_grained_svm=gpu.fine_grained_svm and sees_host_memory)
    )
    cuts = [(3, "H", 0.5), (3, "OC", 0.5), (len(network.layers), "H", 0.4)]
    outputs, spans = [], []
    for soc in (first_soc, limited(first_soc)):
        plan = make_plan(network, soc, cuts)
        with Engine(network, plan, LocalTarget(soc)) as engine:
            outputs += [engine({"image": x}), engine({"image": x})]
            spans.append(sorted((own.kind, own.label) for own in engine.profile(1)))
            report = engine.limited
    for other in outputs[1:]:
        for name, expected in outputs[0].items():
            np.testing.assert_allclose(other[name], expected, rtol=1e-4, atol=1e-5)
    assert spans[0] == spans[1], "a launch in pieces is one span"
    assert report is not None
    assert report.limits == LIMITS
    assert report.enqueued > report.launches
    assert report.longest_ms == 4.0 or not report.too_long


def test_without_limits_nothing_is_reported(first_soc: LocalSoc) -> None:
    network, _, _ = branching_case()
    with Engine(network, default_plan(network, first_soc, "gpu"), LocalTarget(first_soc)) as engine:
        assert engine.limited is None


def test_what_stays_too_long_is_said(first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "measured_ms", taking(4.0, 3.0))
    network, x, _ = branching_case()
    soc = limited(first_soc, GpuLimits(max_kernel_ms=1.0))
    with Engine(network, default_plan(network, soc, "gpu"), LocalTarget(soc)) as engine:
        report = engine.limited
        engine({"image": x})
    assert report is not None
    assert report.longest_ms in (3.0, 4.0)
    assert report.too_long
    for one in report.too_long:
        assert one.ms > 1.0
        assert "group" in one.reason or "still was" in one.reason


def test_real_kernels_are_measured_and_split(first_soc: LocalSoc) -> None:
    network, x, _ = branching_case()
    soc = limited(first_soc, GpuLimits(max_kernel_ms=0.02))
    with Engine(network, default_plan(network, soc, "gpu"), LocalTarget(soc)) as engine:
        report = engine.limited
        engine({"image": x})
    assert report is not None
    assert report.split
    assert report.enqueued >= report.launches + len(report.split)
    assert set(report.hints) == {"performance", "priority"}


def test_an_error_of_the_queue_reaches_the_caller_and_is_over(
    first_soc: LocalSoc, long_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x, _ = branching_case()
    soc = limited(first_soc)
    with Engine(network, default_plan(network, soc, "gpu"), LocalTarget(soc)) as engine:
        expected = engine({"image": x})

        def fails(*_: object) -> None:
            raise DeviceError("it is lost")

        with monkeypatch.context() as broken:
            broken.setattr(PacedQueue, "enqueue", fails)
            broken.setattr(PacedQueue, "enqueue_signalling", fails)
            with pytest.raises(DeviceError, match="it is lost"):
                engine({"image": x})
        for name, value in engine({"image": x}).items():
            np.testing.assert_array_equal(value, expected[name])


def test_kernels_for_cpus_are_cut_finer_where_they_may_have_to_be_split(
    first_soc: LocalSoc,
) -> None:
    assert splittable(first_soc) is first_soc
    assert splittable(limited(first_soc, GpuLimits(gpu_duty=0.5))).gpu == first_soc.gpu
    finer = splittable(limited(first_soc)).gpu.compute_units
    assert (finer > first_soc.gpu.compute_units) == first_soc.gpu.is_cpu
