"""The one statistic, on made samples of a latency that is known: 1 ms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from support.some import some

from codl.ir.records.results import Latency, doubts
from codl.ir.records.statistic import level

Samples = NDArray[np.float64]
COUNT, SEEDS = 36, 200
MS = 1e-3


def quiet(rng: np.random.Generator) -> Samples:
    return MS * (1 + 0.01 * np.abs(rng.standard_normal(COUNT)))


def bursts(rng: np.random.Generator, share: float) -> Samples:
    """A share of the samples are hit, and take 1.2 to 10 times as long."""
    samples, hit = quiet(rng), rng.permutation(COUNT)[: round(share * COUNT)]
    samples[hit] *= rng.uniform(1.2, 10.0, len(hit))
    return samples


def rare_fast_moments(rng: np.random.Generator) -> Samples:
    """A tenth of the samples find a machine that is five times as fast."""
    samples, lucky = quiet(rng), rng.permutation(COUNT)[: COUNT // 10]
    samples[lucky] /= 5
    return samples


NOISE: dict[str, Callable[[np.random.Generator], Samples]] = {
    "quiet": quiet,
    "bursts hit a third": lambda rng: bursts(rng, 1 / 3),
    "bursts hit two thirds": lambda rng: bursts(rng, 2 / 3),
    "rare fast moments": rare_fast_moments,
}


@pytest.mark.parametrize("name", NOISE)
def test_it_is_the_latency_whatever_the_noise(name: str) -> None:
    for seed in some(range(SEEDS)):
        samples = NOISE[name](np.random.default_rng(seed))
        assert level(samples.tolist()) == pytest.approx(MS, rel=0.05)


def test_it_is_in_the_unit_of_the_samples_and_drift_is_divided_out() -> None:
    samples = [0.002, 0.003, 0.004, 0.005, 0.006]
    assert level(samples) == pytest.approx(0.0028)
    assert level(samples, drift=1.4) == pytest.approx(0.002)
    assert level([5.0]) == 5.0


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
