"""Facts that are measured: what latencies say, on made-up ones; and devices that are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.simulated import SOC

from codl.errors import InvalidFileError
from codl.ir import OP_TYPES, parse
from codl.ir.types import Layout
from codl.kernels import registry
from codl.kernels.base import GpuVariant
from codl.measure.batch import Measurement
from codl.measure.dataset import SignalRow
from codl.measure.facts import host_memory, memory_objects, signal, svm_flag
from codl.measure.facts.fact import FACTS, Fact, Point
from codl.measure.facts.points_file import load_points, save_points
from codl.measure.tasks import SignalTask
from codl.measure.timing import Rounds
from codl.records import soc as socs
from codl.records.results import Latency
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import BareDevice
from codl.targets.base import Target
from codl.targets.facts_apart import measure_apart
from codl.targets.find_facts import find_facts, with_facts

SIZES = host_memory.SIZES
COPY_MS = [1e-7 * size + 0.002 for size in SIZES]


def noisy(latencies: list[float], seed: int) -> list[float]:
    random = np.random.default_rng(seed)
    return [ms * (1 + 0.1 * random.random()) for ms in latencies]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("fixed_ms", "share", "expected"),
    [
        (0.01, 0.0, True),  # one memory
        (0.4, 0.0, True),  # one memory, behind a slow driver
        (0.02, 0.02, True),  # its tables take a little time
        (0.02, 0.35, False),  # a fast bus
        (0.4, 2.0, False),  # a slow one
    ],
)
def test_a_copy_takes_longer_the_more_it_copies(
    fixed_ms: float, share: float, expected: bool, seed: int
) -> None:
    map_ms = noisy([fixed_ms + share * ms for ms in COPY_MS], seed)
    assert host_memory.is_zero_copy(SIZES, map_ms=map_ms, copy_ms=COPY_MS)[0] is expected


def test_one_disturbed_latency_makes_no_copy() -> None:
    map_ms = [0.02] * len(SIZES)
    map_ms[3] = 50.0
    assert host_memory.is_zero_copy(SIZES, map_ms=map_ms, copy_ms=COPY_MS)[0] is True


def test_a_host_whose_copies_do_not_grow_tells_nothing() -> None:
    flat = [0.01] * len(SIZES)
    assert host_memory.is_zero_copy(SIZES, map_ms=flat, copy_ms=flat)[0] is None


def latency(ms: float, spread: float = 0.02) -> Latency:
    return Latency(ms, ms * (1 - spread), ms * (1 + spread), 9)


def test_images_are_preferred_where_they_are_clearly_faster() -> None:
    conv, fc = parse("conv2d in=1x8x9x9 oc=8 kernel=3x3"), parse("fc in=1x8x1x1 oc=8")
    facts = memory_objects.prefer(
        [
            (conv, {"buffer": latency(2.0), "image2d": latency(1.0)}),
            (conv, {"buffer": latency(1.0), "image2d": latency(1.1)}),
            (fc, {"buffer": latency(1.0, 0.2), "image2d": latency(0.95, 0.2)}),
            (parse("softmax in=1x8x1x1 axes=1"), {"buffer": latency(1.0)}),
        ]
    )
    assert {fact.key: fact.value for fact in facts} == {
        "gpu.preferred_memory.conv2d": "image2d",
        "gpu.preferred_memory.fc": "buffer",
    }
    assert "no more than they scatter" in facts[1].reason
    assert len(facts[0].points) == 4


def test_every_kind_of_op_with_both_memory_objects_is_compared() -> None:
    layouts: dict[str, set[Layout]] = {}
    for kind in OP_TYPES:
        variants = cast("Sequence[GpuVariant]", registry.of_kind(kind, "gpu"))
        layouts[kind] = {own.storage.layout for own in variants}
    both = {kind for kind, own in layouts.items() if {"image", "blocked"} <= own}
    assert {op.kind for op in memory_objects.ops_to_compare()} == both


def test_the_map_of_a_device_is_measured(gpu: OpenClDevice) -> None:
    fact = host_memory.measure_zero_copy(BareDevice(gpu.device))
    assert fact.value in (True, False, None)
    assert {point.case for point in fact.points} == {"map and unmap", "copy by the host"}


def test_a_device_meets_the_host_only_where_its_driver_says_so(gpu: OpenClDevice) -> None:
    fact = svm_flag.measure_svm_atomics(BareDevice(gpu.device))
    assert fact.value is False or gpu.soc.gpu.fine_grained_svm


def test_a_kernel_that_nobody_answers_ends(
    gpu: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svm_flag, "ANSWER", svm_flag.LENGTH - 1)  # where no kernel looks
    monkeypatch.setattr(svm_flag, "LONG_S", 0.0)
    assert svm_flag.measure_svm_atomics(BareDevice(gpu.device)).value is False


def test_a_device_whose_compiler_has_no_such_atomics_meets_nobody(
    gpu: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = svm_flag.SOURCE.replace("memory_scope_all_svm_devices", "memory_scope_nowhere")
    monkeypatch.setattr(svm_flag, "SOURCE", source)
    assert svm_flag.measure_svm_atomics(BareDevice(gpu.device)).value is False


@pytest.mark.device
def test_a_fact_that_cannot_be_measured_says_why() -> None:
    (fact,) = measure_apart("no-such-driver", "x", ["gpu.zero_copy"])
    assert fact.value is None
    assert "Unknown OpenCL driver 'no-such-driver'" in fact.reason


def waits(kind: Any, latencies_us: Sequence[float], status: Any = "ok") -> list[Measurement]:
    """Of kernels of 1, 2, ... milliseconds."""
    return [
        Measurement(
            SignalTask(kind, gap), SignalRow(gap_ms=gap, latency_ms=1e-3 * us, status=status)
        )
        for gap, us in enumerate(latencies_us, 1)
    ]


@pytest.mark.parametrize(
    ("events", "flags", "expected"),
    [
        ([50.0, 60.0, 100.0], [5.0, 6.0, 7.0], "flag"),
        ([50.0, 60.0, 100.0], [48.0, 58.0, 97.0], "event"),  # hardly sooner
        ([3.0, 60.0, 100.0], [5.0, 6.0, 7.0], "event"),  # behind short kernels later
        ([2.0, 3.0, 4.0], [6.0, 7.0, 8.0], "event"),
    ],
)
def test_flags_are_raised_where_they_are_clearly_sooner(
    events: list[float], flags: list[float], expected: str
) -> None:
    fact = signal.choose_signal([*waits("event_wait", events), *waits("flag_wait", flags)])
    assert fact.value == expected
    assert len(fact.points) == 6
    ms = 1e-3 * events[0]
    assert fact.points[0] == Point("wait for event", 1000, Latency(ms, 0.0, ms, 0))


def test_waits_that_failed_choose_nothing() -> None:
    measured = [*waits("event_wait", [3.0]), *waits("flag_wait", [2.0], "failed")]
    assert signal.choose_signal(measured).value is None


def test_without_flags_there_is_nothing_to_compare() -> None:
    assert signal.waits_to_compare(SOC) == ()
    able = replace(SOC, gpu=replace(SOC.gpu, fine_grained_svm=True, svm_atomics=True))
    assert {task.kind for task in signal.waits_to_compare(able)} == {"event_wait", "flag_wait"}


@pytest.mark.parametrize("meets", [True, False])
def test_a_signal_is_chosen_by_what_is_measured(
    first_soc: LocalSoc, meets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codl.targets.find_facts._memory_facts", lambda serial, soc: [])
    monkeypatch.setattr("codl.targets.find_facts.WAITS", Rounds(1, 1, 1, 0, more=1))
    target = cast(Target, Answering(Fact("gpu.svm_atomics", meets, "as I say")))
    found = find_facts(target, first_soc)
    fact = next(fact for fact in found.facts if fact.key == signal.KEY)
    has_flags = meets and first_soc.gpu.sees_host_memory
    assert found.soc.gpu.signal == fact.value
    assert fact.value in (("event", "flag") if has_flags else ("event",))
    assert fact.origin == ("measured" if has_flags else "driver")


POINTS = (Point("one work-group", 1, latency(0.5)), Point("one work-group", 2, latency(0.75)))


def test_facts_fill_their_keys_and_say_where_they_are_from(
    first_soc: LocalSoc, tmp_path: Path
) -> None:
    told = replace(first_soc, sources={"gpu.wave_size": "driver: preferred"})
    facts = [
        Fact("gpu.wave_size", None, "no step", POINTS),
        Fact("gpu.zero_copy", True, "as long"),
        Fact("gpu.preferred_memory.fc", "buffer", "faster"),
        Fact("gpu.preferred_memory.conv2d", "image2d", "faster"),
    ]
    soc = with_facts(told, facts)
    assert soc.gpu.wave_size == first_soc.gpu.wave_size
    assert soc.gpu.preferred_memory == {"fc": "buffer", "conv2d": "image2d"}
    assert soc.sources["gpu.wave_size"] == "driver: preferred (measuring it failed: no step)"
    assert soc.sources["gpu.zero_copy"] == "measured: as long"
    path = soc.save(tmp_path / "test.yaml")
    assert socs.load(path) == soc.facts
    assert save_points(path, facts) is not None
    assert load_points(path) == {"gpu.wave_size": list(POINTS)}
    assert socs.load(path).is_as_in(first_soc.to_dict())


class Answering:
    """A target that answers whatever fact is asked for with the same."""

    serial = "process"

    def __init__(self, fact: Fact) -> None:
        self.fact = fact

    def measure_facts(self, driver: str, device: str, keys: Sequence[str] = ()) -> list[Fact]:
        return [self.fact]


@pytest.mark.parametrize("value", [0, -32, "32", True, 1.5])
def test_a_device_that_answers_nonsense_changes_nothing(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    monkeypatch.setattr("codl.targets.find_facts._memory_facts", lambda serial, soc: [])
    target = cast(Target, Answering(Fact("gpu.wave_size", cast(int, value), "as I say")))
    found = find_facts(target, first_soc)
    assert found.soc == first_soc
    assert {fact.key for fact in found.unknown} == {*FACTS}
    assert "a value that cannot be" in found.unknown[0].reason
    assert found.unknown[1].reason == "no answer"


def test_without_latencies_there_is_no_file_of_them(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    assert save_points(path, [Fact("gpu.zero_copy", None, "failed")]) is None
    assert load_points(path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"description": "other"}, True),
        ({"gpu": {"wave_size": 64, "zero_copy": True}}, True),
        ({"cpu": {"clusters": []}}, True),
        ({"gpu": {"compute_units": 99}}, False),
        ({"cpu": {"threads": 99}}, False),
        ({"name": "other"}, False),
    ],
)
def test_a_dataset_goes_on_where_only_what_describes_has_changed(
    first_soc: LocalSoc, change: dict[str, object], is_same: bool
) -> None:
    content = first_soc.to_dict()
    for key, value in change.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    assert first_soc.is_as_in(content) is is_same
    assert not first_soc.is_as_in(None)


@pytest.mark.parametrize(
    ("key", "value"), [("svm", "some"), ("preferred_memory", {"conv2d": "texture"})]
)
def test_a_value_that_is_none_of_the_known_is_named(
    first_soc: LocalSoc, key: str, value: object
) -> None:
    content = first_soc.to_dict()
    content["gpu"][key] = value
    with pytest.raises(InvalidFileError, match=f"gpu.{key}: must be of"):
        socs.from_dict(content, Path("x.yaml"))
