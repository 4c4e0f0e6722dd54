"""Facts that are measured: what latencies say, on made-up ones; and devices that are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from codl.errors import InvalidFileError
from codl.ir.records import soc as socs
from codl.machine.placement import LocalSoc
from codl.measure import facts
from codl.measure.dataset import SignalRow
from codl.measure.facts import SVM_ATOMICS, Fact
from codl.measure.tasks import Measurement, SignalTask
from codl.measure.timing import Rounds
from codl.runtime.opencl import OpenClDevice
from codl.runtime.probe import BareDevice
from codl.targets.base import Target
from codl.targets.detect import SIGNAL, choose_signal, find_facts, with_facts
from codl.targets.local import LocalTarget


def test_a_device_meets_the_host_only_where_its_driver_says_so(gpu: OpenClDevice) -> None:
    fact = facts.measure_svm_atomics(BareDevice(gpu.device))
    assert fact.value is False or gpu.soc.gpu.fine_grained_svm


def test_a_kernel_that_nobody_answers_ends(
    gpu: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "ANSWER", facts.LENGTH - 1)  # where no kernel looks
    monkeypatch.setattr(facts, "LONG_S", 0.0)
    assert facts.measure_svm_atomics(BareDevice(gpu.device)).value is False


@pytest.mark.device
def test_a_fact_that_cannot_be_measured_says_why() -> None:
    fact = LocalTarget().measure_atomics("no-such-driver", "x")
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
        ([2.0, 3.0, 4.0], [6.0, 7.0, 8.0], "event"),
    ],
)
def test_flags_are_raised_where_they_are_clearly_sooner(
    events: list[float], flags: list[float], expected: str
) -> None:
    fact = choose_signal([*waits("event_wait", events), *waits("flag_wait", flags)])
    assert fact.value == expected


@pytest.mark.parametrize("meets", [True, False])
def test_a_signal_is_chosen_by_what_is_measured(
    first_soc: LocalSoc, meets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codl.targets.detect.WAITS", Rounds(1, 1, 1, 0, more=1))
    target = cast(Target, Answering(Fact("gpu.svm_atomics", meets, "as I say")))
    found = find_facts(target, first_soc)
    fact = next(fact for fact in found.facts if fact.key == SIGNAL)
    has_flags = meets and first_soc.gpu.sees_host_memory
    assert found.soc.gpu.signal == fact.value
    assert fact.value in (("event", "flag") if has_flags else ("event",))
    assert fact.origin == ("measured" if has_flags else "driver")


def test_facts_fill_their_keys_and_say_where_they_are_from(
    first_soc: LocalSoc, tmp_path: Path
) -> None:
    told = replace(first_soc, sources={"gpu.signal": "driver: as I say"})
    soc = with_facts(
        told, [Fact("gpu.signal", None, "no wait"), Fact("gpu.svm_atomics", True, "they met")]
    )
    assert (soc.gpu.signal, soc.gpu.svm_atomics) == (first_soc.gpu.signal, True)
    assert soc.sources["gpu.signal"] == "driver: as I say (measuring it failed: no wait)"
    assert soc.sources["gpu.svm_atomics"] == "measured: they met"
    path = soc.save(tmp_path / "test.yaml")
    assert socs.load(path) == soc.facts
    assert socs.load(path).is_as_in(first_soc.to_dict())


class Answering:
    """A target that answers whatever fact is asked for with the same."""

    serial = "process"

    def __init__(self, fact: Fact) -> None:
        self.fact = fact

    def measure_atomics(self, driver: str, device: str) -> Fact:
        return self.fact


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("gpu.svm_atomics", 0, "a value that is not possible"),
        ("gpu.other", True, "a value that is not possible"),
    ],
)
def test_a_device_that_answers_nonsense_changes_nothing(
    first_soc: LocalSoc, key: str, value: object, reason: str
) -> None:
    target = cast(Target, Answering(Fact(key, cast(int, value), "as I say")))
    found = find_facts(target, first_soc)
    assert found.soc == first_soc
    assert {fact.key for fact in found.unknown} == {SVM_ATOMICS}
    assert reason in found.unknown[0].reason


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"description": "other"}, True),
        ({"cpu": {"clusters": []}}, True),
        ({"gpu": {"compute_units": 99}}, False),
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


def test_values_of_a_soc_file_are_known_or_of_earlier_versions(first_soc: LocalSoc) -> None:
    content = first_soc.to_dict()
    content["gpu"] |= {"zero_copy": True, "preferred_memory": {"conv2d": "buffer"}}
    assert socs.from_dict(content, Path("x.yaml")) == first_soc.facts
    content["gpu"]["svm"] = "some"
    with pytest.raises(InvalidFileError, match=r"gpu.svm: must be of"):
        socs.from_dict(content, Path("x.yaml"))
