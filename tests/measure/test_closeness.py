"""How close outputs are: figures that stay finite, counts of what is no number, and classes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from codl.errors import DeviceError
from codl.jobs.interleaved import ReferenceRun, compare
from codl.measure.closeness import agreement, closeness, is_right, worst


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
