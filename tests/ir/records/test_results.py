"""What a latency says of itself; the numbers are test data."""

from __future__ import annotations

import pytest

from codl.ir.records.results import Latency, doubts

STEADY = Latency(10.5, 10.0, 11.9, 9)


def test_a_steady_latency_is_not_doubted() -> None:
    assert doubts(STEADY) == ()
    assert doubts(STEADY, Latency(12.0, 11.0, 30.0, 3)) == ()
    assert doubts(STEADY, Latency(9.8, 9.7, 9.9, 3)) == (), "3 % may be chance"


@pytest.mark.parametrize(
    ("warm", "cold", "said"),
    [
        (Latency(11.0, 10.0, 12.5, 9), None, "p80 is 1.25 times p20"),
        (STEADY, Latency(9.2, 9.0, 9.3, 3), "first runs took 9 ms, those behind them 10 ms"),
    ],
)
def test_what_is_doubtful_says_why(warm: Latency, cold: Latency | None, said: str) -> None:
    assert doubts(warm, cold) == (said,)
