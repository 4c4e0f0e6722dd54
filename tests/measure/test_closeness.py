"""How close outputs are, and kernel variants checked by it: which ops they meet, what is wrong."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from support.simulated import soc_with

from codl.errors import DeviceError
from codl.jobs.interleaved import ReferenceRun, compare
from codl.kernels import registry
from codl.machine.placement import LocalSoc, Placement
from codl.measure.budget import Budget
from codl.measure.check_variants import check_all, check_tasks
from codl.measure.closeness import agreement, closeness, difference, is_right, worst


def test_an_output_of_another_size_is_wrong() -> None:
    for size in (0, 3, 5):
        close = closeness(np.ones(size), np.ones(4))
        assert (close.cosine, close.max_rel_err) == (0, np.inf)
        assert not is_right(close, 0.0, 1e9)


def test_errors_are_of_the_largest_value() -> None:
    found = closeness(np.array([1.0, 2.1, 0.0]), np.array([1.0, 2.0, 0.0]))
    assert found.max_rel_err == pytest.approx(0.05)
    assert 0.99 < found.cosine < 1


def test_what_is_no_number_counts_as_zero_and_is_counted() -> None:
    got = np.array([np.nan, np.inf, -np.inf, 4.0, 1.0], np.float32)
    found = closeness(got, np.array([1.0, 2.0, 1.0, 4.0, 1.0]))
    assert (found.nan, found.inf, found.is_finite) == (1, 2, False)
    assert found.max_rel_err == pytest.approx(0.5)
    assert found.largest == 4.0
    assert np.isfinite(found.cosine)


def test_a_number_where_the_reference_has_none_is_counted() -> None:
    """A broken model must not look healthy."""
    found = closeness(np.array([0.0, np.nan, -np.inf, 1.0]), np.array([np.nan, np.inf, np.inf, 1]))
    assert (found.hidden, found.nan, found.inf) == (3, 0, 0)
    assert not is_right(found, 0.9)
    assert worst([found, found]).hidden == 6


def test_masked_elements_are_left_out() -> None:
    expected = np.ma.array([1.0, 2.0, np.nan], mask=[False, True, True])
    found = closeness(np.array([1.0, 7.0, 3.0]), expected)
    assert (found.cosine, found.max_rel_err, found.hidden) == (1.0, 0.0, 0)
    assert found.largest == 1.0


@pytest.mark.parametrize(("stored", "count"), [("float32", 0), ("float16", 2)])
def test_what_a_type_cannot_hold_is_counted(stored: str, count: int) -> None:
    expected = np.array([1.0, -7e4, 1e5, 6e4])
    assert closeness(expected, expected, stored=stored).overflow == count  # type: ignore[arg-type]


EXPECTED = [1.0, np.nan, np.inf, -np.inf, 4.0]


def reference(values: list[float]) -> ReferenceRun:
    return ReferenceRun(onnx.ModelProto(), {}, {"y": np.array(values, np.float32)})


def test_what_is_no_number_in_both_is_equal() -> None:
    got = {"y": np.array([1.0, np.nan, np.inf, -np.inf, 3.0], np.float32)}
    close = compare(got, reference(EXPECTED))
    assert close.max_rel_err == 0.25
    assert 0.9 < close.cosine < 1.0
    nothing = {"y": np.full(5, np.nan, np.float32)}
    zeros = {"y": np.zeros(5, np.float32)}
    for close in (compare(nothing, reference([np.nan] * 5)), compare(zeros, reference([0.0] * 5))):
        assert (close.cosine, close.max_rel_err) == (1.0, 0.0)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, -np.inf])
def test_what_is_a_number_in_one_alone_is_an_error(place: int, value: float) -> None:
    values = list(EXPECTED)
    values[place] = value
    got = {"y": np.array(values, np.float32)}
    is_finite = np.isfinite(value) and np.isfinite(EXPECTED[place])
    if is_finite or np.array_equal(value, EXPECTED[place], equal_nan=True):
        compare(got, reference(EXPECTED))
    else:
        with pytest.raises(DeviceError, match="1 of 5 elements"):
            compare(got, reference(EXPECTED))


def test_classes_agree_in_shares_of_the_samples() -> None:
    def one_hot(*places: int) -> list[np.ndarray]:
        return [np.eye(10)[place] + np.linspace(0.0, 0.1, 10) for place in places]

    found = agreement(one_hot(1, 2, 3, 0), one_hot(1, 2, 9, 1))
    assert (found.samples, found.top1, found.top5) == (4, 0.5, 0.75), "9 is among the five of 3"


def test_equal_outputs_are_as_close_as_can_be() -> None:
    """Also where squares overflow."""
    for x in (np.random.default_rng(0).standard_normal((1, 3, 4, 5)), np.full(8, 1e200)):
        found = closeness(x, x)
        assert (found.cosine, found.max_rel_err) == (pytest.approx(1.0), 0.0)
        assert found.is_finite
        assert found.largest == found.largest_expected == np.abs(x).max()


def with_gpu(**changes: object) -> LocalSoc:
    soc = soc_with(memory_types=("buffer", "image2d"), **changes)
    return LocalSoc.of(soc, Placement("none", (0,), (1,) * soc.gpu.is_cpu))


def test_every_variant_is_met_on_one_device_or_another() -> None:
    """But those of ops whose text is not all that there is to them."""
    socs = [with_gpu(type="gpu", vector_width=4, half=True)]
    socs += [with_gpu(type="cpu", vector_width=width, compute_units=1) for width in (4, 8, 16)]
    met = {task.name for soc in socs for task in check_tasks(soc)}
    missing = () if find_spec("openvino") else ("openvino",)
    assert {*registry.VARIANTS} - met == {
        name
        for name, variant in registry.VARIANTS.items()
        if variant.op_kind == "onnx" or variant.backend in missing
    }


def test_differences_are_of_the_largest_value() -> None:
    assert difference(np.array([1.0, 2.1]), np.array([1.0, 2.0])) == pytest.approx(0.05)
    assert difference(np.array([np.nan, 2.0]), np.array([1.0, 2.0])) == float("inf")
    assert difference(np.zeros(2), np.full(2, 1e-6)) == pytest.approx(1e-3)


def test_what_has_no_time_left_is_not_begun(first_soc: LocalSoc) -> None:
    from support.devices import here

    seconds = iter(range(100))
    tasks = check_tasks(first_soc, ["cpu"])[:5]
    events: list[Any] = []
    budget = Budget(8.0, lambda: float(next(seconds)))
    check_all(
        here(first_soc).device, tasks, emit=lambda *event: events.append(event), budget=budget
    )
    begun, done = events[::2], events[1::2]
    assert 0 < len(begun) == len(done) < 5
    assert begun == [("begin", index, None) for index in range(len(begun))]
    assert done == [("done", index, "") for index in range(len(done))]
