"""A GPU with limits: launches in pieces with each work-item once, a paced queue, and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_runs import Case, run_gpu
from support.plans import branching_case, make_plan

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir import parse
from codl.ir.records.gpu_limits import GpuLimits
from codl.kernels import registry
from codl.machine.placement import LocalSoc
from codl.plan.build_plan import default_plan
from codl.runtime import limited as limits_module
from codl.runtime.launch import BoundKernel
from codl.runtime.limited import IN_FLIGHT_MS, PacedQueue, Pacer, cut, refusal
from codl.runtime.opencl import OpenClDevice
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

        def fails(*_: object, **options: object) -> None:
            raise DeviceError("it is lost")

        with monkeypatch.context() as broken:
            broken.setattr(PacedQueue, "enqueue", fails)
            with pytest.raises(DeviceError, match="it is lost"):
                engine({"image": x})
        for name, value in engine({"image": x}).items():
            np.testing.assert_array_equal(value, expected[name])


@dataclass
class FakeGpu:
    """A clock in seconds, and a queue; sleeps end `late_ms` too late."""

    late_ms: float = 0.0
    slower: float = 1.0
    now: float = 0.0
    until: float = 0.0
    worked: float = 0.0
    sleeps: list[float] = field(default_factory=list)
    most_ms: float = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert self.until <= self.now, "only an empty queue rests"
        self.sleeps.append(1e3 * seconds)
        self.now += seconds + 1e-3 * self.late_ms

    def drain(self) -> bool:
        was_empty = self.until <= self.now
        self.now = max(self.now, self.until)
        return was_empty

    def enqueue(self, ms: float) -> None:
        taken = 1e-3 * self.slower * ms
        self.until = max(self.until, self.now) + taken
        self.worked += taken
        self.most_ms = max(self.most_ms, 1e3 * (self.until - self.now))

    def pacer(self, duty: float) -> Pacer:
        return Pacer(GpuLimits(gpu_duty=duty), self.drain, clock=self.clock, sleep=self.sleep)

    def run(self, duty: float, kernels_ms: list[float]) -> None:
        pacer = self.pacer(duty)
        for ms in kernels_ms:
            pacer.before(ms)
            self.enqueue(ms)


@given(st.floats(0.05, 1.0), st.lists(st.floats(0.01, 3.0), min_size=80, max_size=120))
@settings(derandomize=True)
def test_the_gpu_works_its_part_of_the_time(duty: float, kernels_ms: list[float]) -> None:
    gpu = FakeGpu()
    gpu.run(duty, kernels_ms)
    last_ms = IN_FLIGHT_MS  # the rest behind the last work is not taken yet
    assert gpu.worked <= duty * gpu.until + 1e-3 * last_ms
    assert gpu.worked >= duty * gpu.until - 1e-9, "it rests no longer than it must"
    assert gpu.most_ms <= IN_FLIGHT_MS + 1e-9


@pytest.mark.parametrize(
    ("slower", "kernels_ms", "sleeps_ms", "most_ms"),
    [
        (1.0, [2.0] * 6, [4.0, 4.0], IN_FLIGHT_MS),
        (1.0, [10.0, 10.0], [10.0], 10.0),
        (2.0, [2.0] * 6, [4.0, 4.0], 2 * IN_FLIGHT_MS),
    ],
    ids=["work and rest", "longer than the queue", "slower than it was"],
)
def test_work_is_followed_by_its_rest(
    slower: float, kernels_ms: list[float], sleeps_ms: list[float], most_ms: float
) -> None:
    gpu = FakeGpu(slower=slower)
    gpu.run(0.5, kernels_ms)
    assert gpu.sleeps == pytest.approx(sleeps_ms)
    assert gpu.most_ms == pytest.approx(most_ms)


def test_late_sleeps_are_made_up_for() -> None:
    gpu = FakeGpu(late_ms=0.5)
    gpu.run(0.5, [2.0] * 60)
    assert gpu.worked / gpu.until == pytest.approx(0.5, abs=0.01)


def test_a_gpu_that_had_nothing_to_do_has_rested() -> None:
    gpu = FakeGpu()
    pacer = gpu.pacer(0.5)
    for _ in range(10):
        pacer.before(4.0)
        gpu.enqueue(4.0)
        gpu.now += 0.010  # the CPU computes its own share meanwhile
    assert gpu.sleeps == []


DIMENSION = st.tuples(st.integers(1, 7), st.integers(1, 4))


@given(st.lists(DIMENSION, min_size=1, max_size=3), st.integers(1, 60), st.booleans())
@settings(derandomize=True)
def test_pieces_have_every_work_item_once(
    dimensions: list[tuple[int, int]], count: int, is_grouped: bool
) -> None:
    local = tuple(step for _, step in dimensions)
    size = tuple(n * step for n, step in dimensions)
    pieces = cut(size, local if is_grouped else None, count)
    seen = [
        item
        for piece in pieces
        for item in product(*(range(at, at + n) for at, n in zip(*piece, strict=True)))
    ]
    assert sorted(seen) == sorted(product(*map(range, size)))
    assert all(n > 0 for _, size in pieces for n in size)
    if is_grouped:
        for piece in pieces:
            for at, n, step in zip(*piece, local, strict=True):
                assert at % step == n % step == 0
    possible = prod(size) // (prod(local) if is_grouped else 1)
    assert min(count, possible) <= len(pieces) <= possible


@pytest.mark.parametrize(
    ("asks", "local", "is_refused"),
    [
        ("get_global_id", None, False),
        ("get_group_id", None, True),
        ("get_local_id", None, True),
        ("get_global_linear_id", (8,), True),
    ],
)
def test_what_cannot_be_split(asks: str, local: tuple[int, ...] | None, is_refused: bool) -> None:
    reason = refusal(f"x = {asks}(0);", local)
    assert reason == (f"its source asks for {asks}" if is_refused else None)
