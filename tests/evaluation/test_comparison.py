"""Outputs beside ONNX Runtime's, where some of them are no numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from codl.errors import DeviceError
from codl.evaluation.interleaved import Reference, compare

EXPECTED = [1.0, np.nan, np.inf, -np.inf, 4.0]


def reference(values: list[float]) -> Reference:
    return Reference(onnx.ModelProto(), {}, {"y": np.array(values, np.float32)})


def test_what_is_no_number_in_both_is_equal() -> None:
    got = {"y": np.array([1.0, np.nan, np.inf, -np.inf, 3.0], np.float32)}
    cosine, error = compare(got, reference(EXPECTED))
    assert error == 0.25
    assert 0.9 < cosine < 1.0
    nothing = {"y": np.full(5, np.nan, np.float32)}
    assert compare(nothing, reference([np.nan] * 5)) == (1.0, 0.0)
    assert compare({"y": np.zeros(5, np.float32)}, reference([0.0] * 5)) == (1.0, 0.0)


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
