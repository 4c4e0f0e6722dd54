"""Random networks cut by random plans: what the shards compute, and what moves between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.random_networks import (
    random_inputs,
    random_networks,
    random_plans,
    reference_outputs,
    reference_tensors,
)
from support.simulated import SOC
from support.some import some

from codl.ir.network import Network
from codl.ir.ops.base import Array
from codl.ir.plan import Plan
from codl.ir.types import Processor
from codl.lower.partition import PartitionedPlan, Shard, TensorMove, partition_plan

SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
Tensors = dict[str, NDArray[np.float64]]


class Simulation:
    """A program in NumPy: each processor has memory of its own, which starts as not-a-numbers."""

    def __init__(
        self, network: Network, program: PartitionedPlan, inputs: dict[str, Array]
    ) -> None:
        self.network, self.program = network, program
        self.memory: dict[Processor, Tensors] = {
            side: {name: np.full(shape, np.nan) for name, shape in network.shapes.items()}
            for side in ("cpu", "gpu")
        }
        for name, value in {**inputs, **network.constants}.items():
            self.memory["cpu"][name][:] = value
        for name, value in network.constants.items():
            self.memory["gpu"][name][:] = value

    def run(self) -> Tensors:
        for segment in self.program.segments:
            self._move(segment.transfers)
            self._compute("cpu", segment.cpu)
            self._compute("gpu", segment.gpu)
        self._move(self.program.final)
        return {
            name: self.memory["cpu"][holder].reshape(shape)
            for name, (holder, shape) in self.network.outputs.items()
        }

    def _move(self, transfers: tuple[TensorMove, ...]) -> None:
        """Nothing is moved that its sender does not have."""
        for transfer in transfers:
            ways: dict[str, tuple[Processor, Processor]] = {
                "to_gpu": ("cpu", "gpu"),
                "to_cpu": ("gpu", "cpu"),
            }
            source, target = (self.memory[side] for side in ways[transfer.direction])
            values = source[transfer.tensor][transfer.region.slices]
            assert not np.isnan(values).any(), f"{transfer} moves what was not computed"
            target[transfer.tensor][transfer.region.slices] = values

    def _compute(self, side: Processor, shard: Shard) -> None:
        """Tensors inside a chain are a shard's own: what another one computed is not theirs."""
        memory = self.memory[side]
        for part in shard.parts:
            inputs = [
                memory[name][need.slices].reshape(shape)
                for name, need, shape in zip(
                    part.layer.inputs, part.needs, part.op.inputs, strict=True
                )
            ]
            weights = part.layer.op.restrict_weights(part.layer.weights, part.region)
            values = part.op.reference(inputs, weights)
            memory[part.layer.output][part.region.slices] = values


@given(data=st.data(), network=random_networks())
@settings(max_examples=150, **SETTINGS)
def test_shards_and_transfers_compute_what_the_network_does(
    data: st.DataObject, network: Network
) -> None:
    plan: Plan = data.draw(random_plans(network, SOC))
    inputs = random_inputs(network)
    outputs = Simulation(network, partition_plan(network, plan, SOC), inputs).run()
    for name, expected in some(reference_outputs(network, inputs).items()):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-9, atol=1e-9)


@given(data=st.data(), network=random_networks())
@settings(max_examples=50, **SETTINGS)
def test_what_is_missing_is_never_more_than_the_whole(
    data: st.DataObject, network: Network
) -> None:
    plan: Plan = data.draw(random_plans(network, SOC, "missing"))
    moved = [
        sum(t.region.shape(network.shapes[t.tensor]).bytes for t in transfers)
        for program in (
            partition_plan(network, own, SOC) for own in (plan, replace(plan, sharing="gather"))
        )
        for transfers in [
            [*(t for segment in program.segments for t in segment.transfers), *program.final]
        ]
    ]
    assert moved[0] <= moved[1]


def test_random_networks_are_of_every_kind() -> None:
    """Kinds of ops, skips, batches, several inputs and outputs; values neither vanish nor grow."""
    seen: Counter[str] = Counter()

    @given(network=random_networks())
    @settings(max_examples=200, database=None, **SETTINGS)
    def look(network: Network) -> None:
        seen.update({layer.op.kind for layer in network.layers})
        seen["batch"] += any(shape.n > 1 for shape in network.inputs.values())
        seen["inputs"] += len(network.inputs) > 1
        seen["outputs"] += len(network.outputs) > 1
        seen["skip"] += any(len(network.readers(x.output)) > 1 for x in network.layers)
        values = reference_tensors(network, random_inputs(network))
        assert all(np.isfinite(v).all() and np.abs(v).max() < 1e3 for v in values.values())

    look()
    kinds = {"conv2d", "pooling", "eltwise", "concat", "fc", "softmax", "norm", "reshape"}
    others = {"matmul", "transpose", "batch", "inputs", "outputs", "skip"}
    assert all(seen[name] >= 2 for name in kinds | others), seen
