"""Batches of images: split by images, rows and channels, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import here
from support.kernel_runs import assert_close, operands, reference, run_gpu, variants_for_gpus
from support.kernel_runs import cut as cut_region
from support.plans import make_plan
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import Line, SyntheticPredictors, fastest

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.integer_products import session_options
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.graph.shapes import set_batch
from codl.frontend.models import load
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Array, Layer, Network, Region, Shape, Span, parse, to_text
from codl.ir.ops.movement import Reshape
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.lower.partition import cut, partition_plan
from codl.measure.closeness import max_rel_err
from codl.measure.dataset import Dataset, OpRow
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.parts import Walk
from codl.plan.search import ChainSearch, greedy_chains, image_ratios
from codl.plan.strategies import ideal
from codl.runtime.opencl import OpenClDevice


def residual(images: int) -> onnx.ModelProto:
    """Residual adds, a depthwise convolution, a concat, poolings and two fully connected layers."""
    b = ModelBuilder("residual")
    x = b.input("image", (images, 3, 19, 13))
    x = b.relu(b.conv(x, 20, 3, pad=1))
    x = b.relu(b.add(x, b.conv(x, 20, 3, pad=1)))
    x = b.relu(b.conv(x, 20, 3, pad=1, stride=2, groups=20))
    x = b.concat([x, b.conv(x, 12, 1, pad=0)])
    b.output(x)
    x = b.max_pool(x, 2, 2)
    x = b.relu(b.fully_connected(b.flatten(x), 18))
    b.output(b.fully_connected(x, 7))
    return b.build()


@pytest.mark.parametrize(
    ("text", "first", "count"),
    [
        ("conv2d in=5x20x9x7 oc=24 kernel=3x3 pad=1 act=relu", 1, 4),
        ("conv2d in=4x9x12x10 oc=16 kernel=3x3 stride=2 pad=1", 0, 3),
        ("conv2d in=3x96x5x6 oc=40 kernel=1x1", 0, 3),
        ("conv2d in=4x12x9x11 oc=12 kernel=3x3 pad=1 groups=12 act=relu", 2, 2),
        ("pooling in=5x10x9x8 kernel=3x3 stride=2 pad=1", 2, 3),
        ("pooling in=3x10x6x5 mode=avg kernel=6x5", 0, 2),
        ("eltwise in=4x6x7x5,1x6x7x5 mode=mul", 1, 3),
    ],
)
def test_all_images_in_one_launch(
    text: str, first: int, count: int, as_gpu: OpenClDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some images of a batch, by every variant for GPUs, whether it takes all at once or not.

    Winograd's memory is cut so short that it takes two at a time; others share the work of sums.
    """
    monkeypatch.setattr("codl.kernels.conv2d.gpu_gemm.SCRATCH_BYTES", 300_000)
    op = parse(text)
    part = Region.whole(op.output)._replace(images=Span(first, first + count))
    inputs, weights = operands(op)
    expected = cut_region(reference(op, inputs, weights), part)
    for variant in variants_for_gpus(op.restrict(part), as_gpu.soc):
        choices = variant.choices(op.restrict(part), as_gpu.soc)
        for choice in (choices[0], max(choices, key=lambda each: each.get("splits", 0))):
            got, around = run_gpu(variant, op, part, inputs, weights, as_gpu, choice)
            assert_close(variant, op.restrict(part), got, expected)
            for rest in Region.whole(op.output).minus(part):
                assert (cut_region(around, rest) == 7).all(), f"{variant.name} wrote outside {part}"


@cache
def case(images: int) -> tuple[Network, Array, dict[str, Array]]:
    proto = residual(images)
    network = convert(simplify(import_onnx(proto, "residual")))
    x = np.random.default_rng(images).random((images, 3, 19, 13), np.float32)
    session = ort.InferenceSession(
        proto.SerializeToString(), session_options(1), ["CPUExecutionProvider"]
    )
    names = list(network.outputs)
    return network, x, dict(zip(names, session.run(names, {"image": x}), strict=True))


def able(network: Network, cuts: list[tuple[int, str, float]]) -> list[tuple[int, str, float]]:
    """One processor alone where an op of a chain cannot be cut as is wanted."""
    layers, made = list(network.layers), []
    for length, dim, ratio in cuts:
        taken, layers = layers[:length], layers[length:]
        legal = all(dim in layer.op.dims for layer in taken)
        if dim == "OC":
            legal = legal and all(layer.op.carries_channels for layer in taken[1:])
        made.append((length, dim, ratio if legal else round(ratio)))
    return made


CUTS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from(["N", "N", "H", "OC"]),
        st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0]),
    ),
    min_size=1,
    max_size=6,
)


@given(images=st.integers(1, 5), cuts=CUTS, sharing=st.sampled_from(["gather", "missing"]))
@settings(max_examples=5, derandomize=True)
def test_any_plan_of_a_batch_gives_the_same_outputs(
    images: int, cuts: list[tuple[int, str, float]], sharing: str, first_soc: Soc
) -> None:
    network, x, expected = case(images)
    plan = make_plan(network, first_soc, able(network, cuts), sharing)
    with Engine(network, plan, here(first_soc)) as engine:
        for _ in range(2):  # the second run reuses everything
            outputs = engine({"image": x})
            for name, reference in some(expected.items()):
                assert outputs[name].shape == reference.shape
                assert max_rel_err(outputs[name], reference) <= 1e-4


@pytest.mark.parametrize("gpu_ratio", [0.25, 0.5, 0.75])
def test_the_whole_network_is_one_chain_of_images(gpu_ratio: float, first_soc: Soc) -> None:
    network, x, expected = case(4)
    plan = make_plan(network, first_soc, [(len(network.layers), "N", gpu_ratio)], "missing")
    program = partition_plan(network, plan, first_soc)
    mine = round(4 * gpu_ratio)
    assert [move.region.images for move in program.segments[0].transfers] == [Span(0, mine)]
    assert {move.region.images for move in program.final} == {Span(0, mine)}
    with Engine(network, plan, here(first_soc)) as engine:
        outputs = engine({"image": x})
    for name, wanted in expected.items():
        assert max_rel_err(outputs[name], wanted) <= 1e-4


def test_what_mixes_images_is_computed_whole_by_whoever_reads_it() -> None:
    first = parse("conv2d in=4x6x5x5 oc=6 kernel=1")
    mixed = Reshape(shapes=((4, 6, 5, 5),), to=(6, 4, 5, 5))
    last = parse("conv2d in=6x4x5x5 oc=8 kernel=3 pad=1")
    ops = (first, mixed, last)
    layers = [Layer(f"l{i}", op, (f"t{i}",), f"t{i + 1}", {}) for i, op in enumerate(ops)]
    for shard in some(cut(layers, ["t3"], "N", 0.5, block=8)):
        assert [part.region.images.size for part in shard.parts] == [4, 6, 3]
        assert shard.inputs == {"t0": Region.whole(Shape(4, 6, 5, 5))}


def test_a_batch_costs_its_images_one_after_the_other_and_launches_at_once() -> None:
    """On a real GPU a variant that takes batches is launched once."""
    halved = replace(SOC, gpu=replace(SOC.gpu, type="cpu"))
    cost = CostModel(SOC, SyntheticPredictors())
    one, ten = (parse(f"conv2d in={n}x16x9x9 oc=8 kernel=3 pad=1") for n in (1, 10))
    for processor in PROCESSORS:
        single, batch = fastest(cost, one, processor), fastest(cost, ten, processor)
        assert batch.latency_ms == pytest.approx(10.0 * single.latency_ms)
    layer = Layer("conv", ten, ("x",), "y", {})
    network = Network("ten", (layer,), {"x": ten.inputs[0]}, {"y": ("y", tuple(ten.output))})
    for soc, launches in ((SOC, 1), (halved, 5)):
        costs = ChainCosts(network, CostModel(soc, SyntheticPredictors()), [0.0, 0.5, 1.0])
        (chain,) = costs.evaluate([Walk(1, "N", 1, frozenset([0]))])
        assert chain.launches == launches


def test_a_batch_is_shared_at_once_and_packed_image_by_image() -> None:
    lines = {"transform": Line(1.0), "map": Line(2.0), "copy": Line(0.0, 1e6)}
    predictors = SyntheticPredictors(parts={"to_gpu": lines}, packing=Line(0.0, 1e6))
    cost, shape = CostModel(SOC, predictors), Shape(5, 3, 7, 7)
    assert cost.sharing_parts("to_gpu", shape) == {"transform": 1, "map": 2, "copy": shape.bytes}
    assert cost.sharing_ms("load", shape) == 5 * cost.sharing_ms("load", shape._replace(n=1))


def test_a_search_splits_the_images_of_the_whole_network() -> None:
    """Rows of a chain would be computed twice at the cut, and channels must be gathered."""
    network = case(4)[0]
    assert image_ratios(network.layers) == [0.25, 0.5, 0.75]
    assert image_ratios(case(1)[0].layers) == []
    law = SyntheticPredictors(exchange=Line(1e-3, 0.01))
    (whole,) = greedy_chains(ChainSearch(network, CostModel(SOC, law), "missing"))
    assert (whole.chain.dim, whole.chain.gpu_ratio) == ("N", 0.5)
    rows = ChainSearch(network, CostModel(SOC, law), "missing", dims=("H", "OC"))
    assert all(one.chain.dim != "N" for one in greedy_chains(rows))
    assert whole.latency_ms < sum(chain.latency_ms for chain in greedy_chains(rows))


def test_the_ideal_of_a_batch_is_from_measurements_of_one_image(tmp_path: Path) -> None:
    one, four = (parse(f"conv2d in={n}x8x9x9 oc=8 kernel=3 pad=1") for n in (1, 4))
    layer = Layer("conv", four, ("x",), "y", {})
    network = Network("one", (layer,), {"x": four.input}, {"y": ("y", tuple(four.output))})
    dataset = Dataset.of(SOC.name, tmp_path)
    for processor, latency_ms in (("cpu", 12.0), ("gpu", 4.0)):
        for variant in registry.variants(one, processor, SOC):  # type: ignore[arg-type]
            row = OpRow(
                op=to_text(one),
                dim="H",
                share=1.0,
                part="",
                latency_ms=latency_ms,
                source="simulated",
            )
            dataset.ops(registry.target(variant, one)).append(row)
    # One image on the CPU while the GPU does three; all four take the GPU 16 ms.
    assert ideal.bound(network, SOC, dataset).layers == (("conv", "N", 0.75, 12.0),)


def test_any_model_takes_another_batch() -> None:
    proto = residual(1)
    set_batch(proto, 3)
    network = convert(simplify(import_onnx(proto, "residual")))
    assert network.digest == case(3)[0].digest
    with pytest.raises(CodlError, match="images, got 0"):
        set_batch(proto, 0)
    assert load("mobilenet_v2", 2).proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=2x16x9x9 oc=16 kernel=3 pad=1",
        "conv2d in=2x16x9x9 oc=16 kernel=3 pad=1 groups=16",
        "pooling in=2x16x8x8 kernel=8",
        "fc in=2x16x2x2 oc=9",
        "eltwise in=2x16x8x8,2x16x8x8",
    ],
)
def test_variants_that_take_a_batch_say_so(text: str, as_gpu: OpenClDevice) -> None:
    op = parse(text)
    for variant in some(registry.variants(op, "gpu", as_gpu.soc, include_unfit=True)):
        plan = variant.plan(op, as_gpu.soc)  # type: ignore[attr-defined]
        assert variant.takes_batch == plan.whole_batch, variant.name
