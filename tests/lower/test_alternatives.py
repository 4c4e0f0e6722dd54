"""What a plan becomes where a processor is slower: ratios by the rule, weights within a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan, row
from support.simulated import SOC

from codl.errors import DeviceError
from codl.ir import Network
from codl.ir.executable import Executable
from codl.ir.ops.base import cuts
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.alternatives import SCALES, alternatives, gpu_weights, shifted
from codl.records.soc import Soc

PLENTY = 1e12


@given(ratio=st.floats(0.05, 0.95), scale=st.floats(0.25, 4.0), work_ms=st.floats(0.1, 100.0))
def test_shifted_shares_end_together(ratio: float, scale: float, work_ms: float) -> None:
    """By the rule r_i' = r_i / sum_j(t_i r_j / t_j), with the GPU `scale` times as fast as then."""
    cpu, gpu = work_ms, work_ms / scale
    by_rule = ratio / (gpu * (ratio / gpu + (1 - ratio) / cpu))
    assert shifted(ratio, scale) == pytest.approx(by_rule)
    own_ms = cpu * (1 - shifted(ratio, scale)) / (1 - ratio)
    assert own_ms == pytest.approx(gpu * shifted(ratio, scale) / ratio)


def test_one_processor_alone_keeps_everything() -> None:
    assert [shifted(ratio, 2.0) for ratio in (0.0, 1.0)] == [0.0, 1.0]
    network = row(2)
    plan = make_plan(network, SOC, [(1, "H", 0.0), (1, "H", 1.0)], "missing")
    assert list(found(network, plan, PLENTY)) == [1.0]


def how(network: Network, soc: Soc = SOC) -> Callable[[Plan], Executable]:
    return partial(lower, network, soc=soc, tuning=Tuning())


def found(network: Network, plan: Plan, budget: float, soc: Soc = SOC) -> dict[float, list[float]]:
    made = alternatives(network, plan, how(network, soc), budget=budget, gpu_factor=1.0)
    for scale, (own, executable) in made.items():
        assert executable.digest() == how(network, soc)(own).digest()
        assert own.predicted_ms is None or scale == 1.0
    return {scale: [chain.gpu_ratio for chain in own.chains] for scale, (own, _) in made.items()}


def test_rows_move_without_any_weights_and_channels_as_far_as_memory_is_there() -> None:
    network = row(3)
    plan = make_plan(network, SOC, [(2, "H", 0.5), (1, "OC", 0.5)], "missing")
    every = {scale: [shifted(0.5, scale)] * 2 for scale in SCALES}
    assert found(network, plan, PLENTY) == every
    for scale, (rows, channels) in found(network, plan, 0).items():
        assert rows == shifted(0.5, scale)
        assert cuts(network.layers[2].op, "OC", [channels], align=4) == [8]


def test_little_memory_is_for_the_scales_farthest_off() -> None:
    """Of kernels whose tiles, and so the order of their weights, are the same at every ratio."""
    network, soc = row(1), replace(SOC, gpu=replace(SOC.gpu, type="cpu"))
    plan = make_plan(network, soc, [(1, "OC", 0.5)], "missing")
    weights = sum(array.nbytes for array in network.layers[0].weights.values())
    # A third on the CPU and a sixth more on the GPU at 2; two thirds on the CPU at 1/2.
    ratios = found(network, plan, 0.6 * weights, soc)
    assert list(ratios) == [1.0, SCALES[-1]]
    assert ratios[SCALES[-1]] == [shifted(0.5, 2.0)]


def test_weights_in_the_order_of_other_tiles_are_taken_anew() -> None:
    """Of two blocks of channels a GPU's tile has both, of three one: nothing is shared at 2."""
    network = row(1)
    plan = make_plan(network, SOC, [(1, "OC", 0.5)], "missing")
    weights = sum(array.nbytes for array in network.layers[0].weights.values())
    assert list(found(network, plan, 0.9 * weights)) == [1.0]
    assert list(found(network, plan, 1.1 * weights)) == [1.0, SCALES[-1]]


def test_weights_of_kernels_are_counted_as_the_model_has_them() -> None:
    network = row(2)
    weights = sum(array.nbytes for layer in network.layers for array in layer.weights.values())
    rows = make_plan(network, SOC, [(2, "H", 0.5)], "missing")
    assert gpu_weights(how(network)(rows)) == weights
    channels = make_plan(network, SOC, [(1, "OC", 0.5), (1, "OC", 0.5)], "missing")
    assert gpu_weights(how(network)(channels)) == weights / 2


def test_a_scale_that_cannot_be_lowered_is_left_out() -> None:
    network = row(1)
    plan = make_plan(network, SOC, [(1, "H", 0.5)], "missing")

    def picky(own: Plan) -> Executable:
        if own.chains[0].gpu_ratio > 0.6:
            raise DeviceError("no variant does so few rows")
        return how(network)(own)

    made = alternatives(network, plan, picky, budget=PLENTY, gpu_factor=1.0)
    assert max(made) < 2**0.6
    assert len(made) == 5
