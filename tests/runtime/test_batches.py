"""Batches of images: split by images, rows and channels, and side by side on the CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Barrier, get_ident

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import here
from support.kernel_runs import Case, variants_for_gpus
from support.plans import legal, make_plan
from support.references import by_onnx_runtime, converted
from support.simulated import SOC, soc_with
from support.some import some
from support.synthetic_predictors import Line, SyntheticPredictors, fastest

from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.frontend.graph.shapes import set_batch
from codl.frontend.models import load
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Array, Layer, Network, Region, Shape, Span, parse, to_text
from codl.ir.ops.movement import Reshape
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.lower.partition import cut, partition_plan
from codl.machine.placement import LocalSoc
from codl.machine.threads import ImageParallel
from codl.measure.closeness import max_rel_err
from codl.measure.dataset import Dataset, OpRow
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.parts import Walk
from codl.plan.search import ChainSearch, greedy_chains, image_ratios
from codl.plan.strategies import ideal
from codl.runtime.actions import WORTH_SHARING, copy_in_parts
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
    tested = Case.of(op)
    for variant in variants_for_gpus(op.restrict(part), as_gpu.soc):
        choices = variant.choices(op.restrict(part), as_gpu.soc)
        for choice in (choices[0], max(choices, key=lambda each: each.get("splits", 0))):
            tested.on_gpu(variant, as_gpu, part, choice)


@cache
def case(images: int) -> tuple[Network, Array, dict[str, Array]]:
    proto = residual(images)
    x = np.random.default_rng(images).random((images, 3, 19, 13), np.float32)
    return converted(proto, "residual"), x, by_onnx_runtime(proto, {"image": x})


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
    plan = make_plan(network, first_soc, legal(network, cuts), sharing)
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
    halved = soc_with(type="cpu")
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
            dataset.table(registry.target(variant, one)).append(row)
    # One image on the CPU while the GPU does three; all four take the GPU 16 ms.
    assert ideal.bound(network, SOC, dataset).layers == (("conv", "N", 0.75, 12.0),)


def test_any_model_takes_another_batch() -> None:
    proto = residual(1)
    set_batch(proto, 3)
    network = converted(proto, "residual")
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


def lanes_of(soc: LocalSoc, images: int) -> ImageParallel:
    return ImageParallel.of(soc.placement.cpu_cores, soc.placement.threads, images)


@pytest.fixture
def wide(first_soc: LocalSoc) -> LocalSoc:
    """As if the CPU side had four cores; they are this machine's, in turns."""
    cores = sorted(os.sched_getaffinity(0))
    return replace(
        first_soc, placement=replace(first_soc.placement, cpu_cores=tuple(cores * 4)[:4])
    )


@pytest.mark.parametrize(
    ("images", "lanes", "threads"), [(1, 1, 4), (2, 2, 2), (3, 3, 1), (4, 4, 1), (9, 4, 1)]
)
def test_lanes_share_the_threads(images: int, lanes: int, threads: int, wide: LocalSoc) -> None:
    found = lanes_of(wide, images)
    assert (found.count, found.threads) == (lanes, threads)


def test_items_come_back_in_order_from_lanes_that_run_at_once(wide: LocalSoc) -> None:
    meet, seen = Barrier(3, timeout=10), set()

    def work(item: int) -> int:
        if item < 3:  # each waits for the others, so they must be under way together
            meet.wait()
            seen.add(get_ident())
        return item * item

    assert lanes_of(wide, 3).each(work, range(7)) == [n * n for n in range(7)]
    assert len(seen) == 3
    assert get_ident() in seen, "the calling thread is a lane"


@pytest.mark.parametrize("wrong", [0, 5])
def test_an_error_ends_all_lanes_and_is_raised(wrong: int, wide: LocalSoc) -> None:
    def work(item: int) -> None:
        if item == wrong:
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match=f"item {wrong}"):
        lanes_of(wide, 6).each(work, range(6))
    assert lanes_of(wide, 6).each(str, range(2)) == ["0", "1"]


@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=5x20x11x9 oc=24 kernel=3 pad=1 act=relu",
        "pooling in=5x20x11x9 kernel=3 stride=2",
        "fc in=5x20x3x3 oc=10",
        "eltwise in=5x20x7x9,1x20x7x9",
    ],
)
def test_a_batch_side_by_side_is_what_the_reference_computes(text: str, wide: LocalSoc) -> None:
    op = parse(text)
    part = Region.whole(op.output)._replace(images=Span(1, 5))
    for variant in some(registry.variants(op.restrict(part), "cpu", wide)):
        Case.of(op).on_cpu(variant, wide, part)


@pytest.mark.parametrize("elements", [100, WORTH_SHARING // 4])
def test_images_are_copied_to_where_they_belong(elements: int, wide: LocalSoc) -> None:
    """Between parts of larger arrays, as homes are, by one thread and by several."""
    source = np.arange(5 * 2 * elements, dtype=np.float32).reshape(5, 2, elements)
    target = np.zeros((5, 3, elements), np.float32)
    copy_in_parts(replace(lanes_of(wide, 5), count=3), target[:, 1:], source)
    np.testing.assert_array_equal(target[:, 1:], source)
    assert not target[:, 0].any()
