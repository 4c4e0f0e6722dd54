"""A new SoC beside a known one, simulated: what the known one's latencies are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_replayed import REPLAYED

from codl.errors import MismatchError
from codl.ops import Op, parse
from codl.predict import features, transfer
from codl.predict.estimators import Codl
from codl.predict.samples import Sample, Samples
from codl.predict.transfer import Known

TARGET = "conv2d_gpu_replayed"
NEW = replace(REPLAYED, name="new")


def convolutions(count: int, seed: int) -> list[Op]:
    rng = np.random.default_rng(seed)
    texts = (
        f"conv2d in=1x{rng.integers(3, 300)}x{size}x{size} oc={rng.integers(3, 300)} kernel={k} "
        f"pad={k // 2}"
        for size, k in zip(rng.integers(7, 80, count), rng.choice([1, 3], count), strict=True)
    )
    return [parse(text) for text in texts]


def latency_ms(op: Op, speed: float) -> float:
    """A library with a kernel that no feature tells: slow for some numbers of channels."""
    slow = 1.6 if op.output.c % 7 < 3 else 1.0
    return speed * (0.02 + 1e-9 * op.flops * slow)


def samples(ops: list[Op], speed: float) -> Samples:
    rows = [Sample(op, (op,), latency_ms(op, speed), "replayed", "run1") for op in ops]
    return Samples(
        target=TARGET, processor="gpu", samples=tuple(rows), failed=0, files=(Path("t.csv"),)
    )


def test_a_known_soc_tells_what_features_do_not() -> None:
    ops = convolutions(160, 0)
    known = Known.of(REPLAYED, samples(ops, 1.0))
    few, unseen = ops[:40], ops[40:]
    wanted = np.array([latency_ms(op, 2.5) for op in unseen])
    y = np.array([latency_ms(op, 2.5) for op in few])
    beside = [transfer.table(TARGET, part, NEW, [known]).values for part in (few, unseen)]
    alone = [features.table("variant", TARGET, part, NEW).values for part in (few, unseen)]
    errors = {
        name: np.median(np.abs(Codl().fit(X[0], y).predict(X[1]) / wanted - 1))
        for name, X in {"beside": beside, "alone": alone}.items()
    }
    assert errors["beside"] < 0.03
    assert errors["alone"] > 3 * errors["beside"]


def test_items_are_looked_up_or_predicted() -> None:
    ops = convolutions(80, 1)
    known = Known.of(REPLAYED, samples(ops[:60], 1.0))
    found = known.latency_us(ops)
    np.testing.assert_allclose(found[:60], [1e3 * latency_ms(o, 1.0) for o in ops[:60]], rtol=1e-5)
    table = features.table("variant", TARGET, ops[60:], REPLAYED)
    np.testing.assert_array_equal(found[60:], 1e3 * known.estimator.predict(table.values))
    names = transfer.table(TARGET, ops, NEW, [known]).names
    assert names == ("us_on_phone", "padded_macs", "input_bytes", "output_bytes", "weight_bytes")


def test_what_is_known_is_read_back() -> None:
    ops = convolutions(50, 2)
    known = Known.of(REPLAYED, samples(ops[:30], 1.0))
    state = json.loads(json.dumps(known.state(), allow_nan=False))
    read = Known.from_state(state, REPLAYED)
    np.testing.assert_array_equal(read.latency_us(ops), known.latency_us(ops))
    with pytest.raises(MismatchError, match="of 'phone', not of 'new'"):
        Known.from_state(state, NEW)
    with pytest.raises(MismatchError, match="phone is known by conv2d_gpu_replayed"):
        transfer.table("conv2d_cpu_replayed", ops, NEW, [known])
    for key, wrong in {"features": "x", "measured_ms": {"a": -1}, "predictor": "nn"}.items():
        with pytest.raises(ValueError, match=key):
            Known.from_state({**state, key: wrong}, REPLAYED)
