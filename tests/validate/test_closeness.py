"""How close outputs are: figures that stay finite, and counts of what is no number."""

from __future__ import annotations

import numpy as np
import pytest

from codl.validate.closeness import closeness, worst


def test_equal_outputs_are_as_close_as_can_be() -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 5))
    found = closeness(x, x)
    assert (found.cosine, found.max_rel_err) == (pytest.approx(1.0), 0.0)
    assert found.is_finite
    assert found.largest == found.largest_expected == np.abs(x).max()


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


def test_a_reference_may_be_no_number_too() -> None:
    found = closeness(np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, 1.0]))
    assert found.is_finite
    assert (found.cosine, found.max_rel_err) == (pytest.approx(1.0), 0.0)


def test_zeros_are_like_zeros_and_unlike_others() -> None:
    zeros, ones = np.zeros(4), np.ones(4)
    assert closeness(zeros, zeros).cosine == 1.0
    assert closeness(ones, zeros).cosine == closeness(zeros, ones).cosine == 0.0


def test_squares_of_large_numbers_do_not_overflow() -> None:
    x = np.full(8, 1e200)
    assert closeness(x, x).cosine == pytest.approx(1.0)


@pytest.mark.parametrize(("stored", "count"), [("float32", 0), ("float16", 2)])
def test_what_a_type_cannot_hold_is_counted(stored: str, count: int) -> None:
    expected = np.array([1.0, -7e4, 1e5, 6e4])
    assert closeness(expected, expected, stored=stored).overflow == count  # type: ignore[arg-type]


def test_the_worst_of_several() -> None:
    one, two = closeness(np.array([1.0, 0.0]), np.ones(2)), closeness(np.ones(2), np.ones(2))
    assert worst([one, two]).cosine == one.cosine
    assert worst([one, two]).max_rel_err == 1.0
    assert worst([]).cosine == 1.0
