"""What lowering refuses of plans, where constants lie, what moves, and nets without weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.executables import numbers, small_network, small_plan
from support.plans import make_plan, row
from support.random_networks import (
    random_networks,
    random_plans,
)
from support.references import tensors
from support.simulated import SOC

from codl.errors import CodlError
from codl.ir.executable import Fill, Relayout
from codl.ir.network import Layer, Network
from codl.ir.op_text import parse
from codl.ir.plan import Chain, Plan
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.lower.partition import partition_plan
from codl.measure.inputs import random_inputs
from codl.plan.build_plan import preferring


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({}, "has no cpu kernel variant"),
        ({"cpu": "cpu_gemm"}, "has no gpu kernel variant"),
        ({"cpu": "gpu_direct", "gpu": "gpu_direct"}, "Unknown CPU kernel variant of conv2d"),
        ({"cpu": "cpu_gemm", "gpu": "cpu_gemm"}, "Unknown GPU kernel variant of conv2d"),
        ({"cpu": "cpu_gemm", "gpu": "nope"}, "Unknown GPU kernel variant of conv2d 'nope'"),
    ],
)
def test_variants_are_of_their_processor(own: Mapping[str, str], problem: str) -> None:
    network = small_network()
    plan = small_plan(network, SOC)
    first, *others = plan.chains
    chains = (replace(first, variants={**first.variants, "op0": own}), *others)
    with pytest.raises(CodlError, match=problem):
        lower(network, replace(plan, chains=chains), SOC, Tuning())


def test_each_processor_has_its_part_of_a_table_as_kernels_read_it() -> None:
    """Nothing of a constant is copied in an inference, by neither processor."""
    op = parse("gather in=100x32,5 axis=0")
    layer = Layer("op0", op, ("table", "x"), "t0", {})
    network = Network(
        "table",
        (layer,),
        {"x": op.inputs[1]},
        {"y": ("t0", (5, 32))},
        constants={"table": numbers(op.inputs[0])},
    )
    plan = make_plan(network, SOC, [(1, op.dims[-1], 0.25)])
    executable = lower(network, plan, SOC, Tuning())
    assert not [step for step in executable.steps if isinstance(step, Relayout)]
    held = {
        executable.buffers[own.buffer].place: own.held
        for own in executable.tensors
        if own.name == "table"
    }
    sizes = {place: own.shape(op.inputs[0]).elements for place, own in held.items()}
    assert sizes == {"cpu": 100 * 24, "staging": 100 * 8, "gpu": 100 * 8}


def test_each_processor_has_its_own_half_of_a_constant() -> None:
    op = parse("eltwise in=1x4x6x5,1x4x6x5 mode=mul")
    value = numbers(op.inputs[1])
    layer = Layer("op0", op, ("x", "c"), "t0", {})
    outputs = {"y": ("t0", tuple(op.output))}
    network = Network("halves", (layer,), {"x": op.inputs[0]}, outputs, constants={"c": value})
    executable = lower(network, make_plan(network, SOC, [(1, "H", 0.5)]), SOC, Tuning())
    filled = {
        executable.buffers[executable.tensors[one.target.tensor].buffer].place: one
        for one in executable.setup
        if isinstance(one, Fill)
    }
    for place, rows in (("cpu", slice(3, 6)), ("staging", slice(0, 3))):
        constant = filled[place].constant
        own = executable.constants[constant.constants].arrays()[constant.name]
        np.testing.assert_array_equal(own, value[:, :, rows])


def test_a_part_that_reads_other_images_than_it_writes_runs_in_another_variant() -> None:
    """ncnn takes one image at a time: a row that lies in the third image is copied elsewhere."""
    op = parse("reshape in=3x5x1x1 to=1x1x3x5")
    layer = Layer("op0", op, ("x",), "t0", {})
    network = Network("images", (layer,), {"x": op.inputs[0]}, {"y": ("t0", (1, 1, 3, 5))})
    chain = Chain(("op0",), "H", 0.7, {"op0": {"cpu": "cpu_copy", "gpu": "gpu_copy"}})
    plan = replace(make_plan(network, SOC, [(1, "H", 0.5)]), chains=(chain,))
    executable = lower(network, plan, SOC, Tuning())
    assert [each.variant for net in executable.nets for each in net.layers] == ["cpu_ort"]


@given(data=st.data(), network=random_networks())
@settings(max_examples=50, derandomize=True)
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
    @settings(max_examples=200, database=None, derandomize=True)
    def look(network: Network) -> None:
        seen.update({layer.op.kind for layer in network.layers})
        seen["batch"] += any(shape.n > 1 for shape in network.inputs.values())
        seen["inputs"] += len(network.inputs) > 1
        seen["outputs"] += len(network.outputs) > 1
        seen["skip"] += any(len(network.readers(x.output)) > 1 for x in network.layers)
        values = tensors(network, random_inputs(network))
        assert all(np.isfinite(v).all() and np.abs(v).max() < 1e3 for v in values.values())

    look()
    kinds = {"conv2d", "pooling", "eltwise", "concat", "fc", "softmax", "norm", "reshape"}
    others = {"matmul", "transpose", "batch", "inputs", "outputs", "skip"}
    assert all(seen[name] >= 2 for name in kinds | others), seen


@pytest.mark.parametrize("name", ["cpu_direct", "cpu_ort"])
def test_a_network_without_weights_becomes_the_same_nets(name: str) -> None:
    network = row(2)
    plan = preferring(network, SOC, "cpu")
    plan = replace(
        plan,
        chains=tuple(
            replace(chain, variants={layer: {"cpu": name} for layer in chain.variants})
            for chain in plan.chains
        ),
    )
    bare = replace(network, layers=tuple(replace(x, weights={}) for x in network.layers))
    full, empty = (lower(each, plan, SOC, Tuning()) for each in (network, bare))
    assert list(map(type, empty.nets)) == list(map(type, full.nets))
    assert len(empty.nets) == len(full.nets) > 0
