"""What tables and vectorised cuts say of chains is what lowering and a walk over commands say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every_plan import cuts, every_chain, least_ms
from support.random_networks import random_networks, random_plans
from support.references import converted
from support.simulated import SOC, WITH_IMAGES, soc_with
from support.some import some
from support.synthetic_predictors import Line, SyntheticPredictors, synthetic_predictors

from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, Region, Shape
from codl.ir.plan import Chain, Plan
from codl.ir.records.soc import Soc
from codl.ir.region import Span
from codl.ir.types import PROCESSORS
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.lower.partition import chain_outputs, cut, missing_regions
from codl.plan import parts as boxes
from codl.plan.beam_search import fastest
from codl.plan.build_plan import chain_of
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.parts import Walk
from codl.plan.predicted_plan import make_plan
from codl.plan.price import ProfiledTimes, paced, predicted_timeline, price, stage_times, walk
from codl.plan.search import Candidates, ChainSearch, greedy_chains, search, single_ops

#: A GPU with buffers, one with images too, one that works on the CPU's arrays, and one that
#: is a CPU, which launches image by image.
SOCS = {
    "buffers": SOC,
    "images": WITH_IMAGES,
    "shared": soc_with(fine_grained_svm=True),
    "one CPU": soc_with(type="cpu"),
}


@st.composite
def planned(draw: st.DrawFn) -> tuple[Network, Plan, Soc]:
    network = draw(random_networks())
    soc = SOCS[draw(st.sampled_from(sorted(SOCS)))]
    return network, draw(random_plans(network, soc)), soc


@given(case=planned(), predictors=synthetic_predictors(), factor=st.floats(1.0, 4.0))
@settings(max_examples=20, derandomize=True)
def test_slower_processors_take_longer(
    case: tuple[Network, Plan, Soc], predictors: SyntheticPredictors, factor: float
) -> None:
    """By no more than the factor that nets and kernels do, and the more the slower they are."""
    network, plan, soc = case
    cost = CostModel(soc, predictors)
    chains = [replace(chain, variants={}) for chain in plan.chains]
    plan = make_plan(network, cost, chains, strategy="test", sharing=plan.sharing)
    executable = lower(network, plan, soc, Tuning())
    times = stage_times(executable, cost)

    def latency_ms(cpu: float, gpu: float) -> float:
        return walk(executable, paced(times, {"cpu": cpu, "gpu": gpu})).latency_ms

    usual, both = latency_ms(1.0, 1.0), latency_ms(factor, factor)
    assert usual == pytest.approx(price(executable, cost).latency_ms)
    assert both <= factor * usual * (1 + 1e-9)
    for one in (latency_ms(factor, 1.0), latency_ms(1.0, factor)):
        assert usual * (1 - 1e-9) <= one <= both * (1 + 1e-9)
    spans = [x.span for x in predicted_timeline(executable, times)]
    assert max((s.end_ms for s in spans), default=0.0) == pytest.approx(usual, rel=1e-9)
    for side in PROCESSORS:
        lane = [span for span in spans if span.processor == side]
        assert all(before.end_ms <= after.start_ms for before, after in pairwise(lane))


@given(case=planned(), predictors=synthetic_predictors())
@settings(max_examples=60, derandomize=True)
def test_tables_say_what_the_walk_says(
    case: tuple[Network, Plan, Soc], predictors: SyntheticPredictors
) -> None:
    network, drawn, soc = case
    cost = CostModel(soc, predictors)
    chains = [replace(chain, variants={}) for chain in drawn.chains]
    plan = make_plan(network, cost, chains, strategy="test", sharing=drawn.sharing)
    walked = price(lower(network, plan, soc, Tuning()), cost)
    assert walked.latency_ms == pytest.approx(plan.predicted_ms, rel=1e-9)


@given(network=random_networks(most_layers=6), predictors=synthetic_predictors(), data=st.data())
@settings(max_examples=25, derandomize=True)
def test_a_search_says_what_the_walk_over_its_plan_says(
    network: Network, predictors: SyntheticPredictors, data: st.DataObject
) -> None:
    soc = SOCS[data.draw(st.sampled_from(sorted(SOCS)))]
    cost = CostModel(soc, predictors)
    candidates = Candidates(network, cost)
    best = fastest(candidates.costs, candidates.starting)
    chains = [
        chain_of(network.layers[one.start : one.stop], one.dim, one.gpu_ratio)
        for one in best.chains
    ]
    plan = make_plan(network, cost, chains, strategy="test", sharing="missing")
    assert plan.predicted_ms == pytest.approx(best.latency_ms, rel=1e-9)
    plan = search(network, cost, "test")
    walked = price(lower(network, plan, soc, Tuning()), cost)
    assert walked.latency_ms == pytest.approx(plan.predicted_ms, rel=1e-9)


def every_cut(network: Network) -> Iterator[list[Chain]]:
    """All ways to cut a network into chains, on one processor or half and half."""
    layers = network.layers
    for ends in product((False, True), repeat=len(layers) - 1):
        stops = [at + 1 for at, is_end in enumerate(ends) if is_end] + [len(layers)]
        pairs = zip([0, *stops], stops, strict=False)
        pieces = [layers[start:stop] for start, stop in pairs]
        yield from map(
            list,
            product(*([chain_of(x, dim, step / 2) for dim, step in cuts(x, 2)] for x in pieces)),
        )


def small(build: Callable[[ModelBuilder, str], str]) -> Network:
    b = ModelBuilder("small")
    b.output(build(b, b.input("x", (1, 16, 20, 20))))
    return converted(b)


#: A line, a residual add that the convolution before it computes too, and an op for ONNX Runtime
#: between two for ncnn.
SMALL = {
    "line": small(lambda b, x: b.conv(b.max_pool(b.conv(x, 32, 3, pad=1), 2, 2), 16, 1, pad=0)),
    "residual": small(lambda b, x: b.add(x, b.conv(b.relu(b.conv(x, 16, 3, pad=1)), 16, 1, pad=0))),
    "engines": small(lambda b, x: b.conv(b.softmax(b.conv(x, 8, 1, pad=0)), 8, 3, pad=1)),
}


@given(
    name=st.sampled_from(sorted(SMALL)),
    soc=st.sampled_from(sorted(SOCS)),
    predictors=synthetic_predictors(),
)
@settings(max_examples=4, derandomize=True)
def test_no_plan_is_faster_than_what_an_exhaustive_search_finds(
    name: str, soc: str, predictors: SyntheticPredictors
) -> None:
    """All plans are priced by the walk over what they are lowered to, which knows no tables."""
    network, cost = SMALL[name], CostModel(SOCS[soc], predictors)
    costs, starting = every_chain(network, cost, steps=4)
    best_ms = least_ms(costs, starting)
    for chains in every_cut(network):
        plan = make_plan(network, cost, chains, strategy="test", sharing="missing")
        walked = price(lower(network, plan, SOCS[soc], Tuning()), cost)
        assert best_ms <= walked.latency_ms * (1 + 1e-9)
    beam = fastest(costs, starting, widest=10**6)
    assert beam.exact
    assert beam.latency_ms == pytest.approx(best_ms, rel=1e-9)


LAWS = st.builds(
    lambda gpu, fixed, per_mb: SyntheticPredictors(gpu=gpu, exchange=Line(fixed, per_mb)),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.sampled_from([1e-4, 0.01, 0.1, 3.0]),
    st.sampled_from([0.0, 0.1, 2.0]),
)


@given(name=st.sampled_from(sorted(SMALL)), law=LAWS)
@settings(max_examples=8, derandomize=True)
def test_a_search_loses_little_by_what_it_leaves_out(name: str, law: SyntheticPredictors) -> None:
    """Against all chains at all ratios, op by op, and by the paper's algorithm."""
    network, cost = SMALL[name], CostModel(SOC, law)
    candidates = Candidates(network, cost)
    some_ms = fastest(candidates.costs, candidates.starting).latency_ms
    all_ms = fastest(*every_chain(network, cost), widest=10**6).latency_ms
    assert all_ms * (1 - 1e-9) <= some_ms <= 1.03 * all_ms
    found_ms = search(network, cost, "test").predicted_ms or inf
    assert found_ms <= some_ms * (1 + 1e-9)
    alone = ChainSearch(network, cost, "missing")
    for chains in (single_ops(alone), greedy_chains(alone)):
        assert found_ms <= (alone.plan("test", chains).predicted_ms or inf) * 1.01


def test_parts_of_the_runs_that_count_add_up() -> None:
    """Each run but the first is disturbed, in another part each time."""
    parts = [(1.0, 1.0), (4.0, 1.0), (1.0, 4.5), (1.0, 5.0), (5.5, 1.0), (90.0, 1.0), (1.0, 99.0)]
    runs = [ProfiledTimes({0: cpu}, {1: gpu}, {}, [cpu, gpu]) for cpu, gpu in parts]
    found = ProfiledTimes.typical(runs)
    near = parts[:3]  # around the second: a fifth of the way from the shortest to the longest
    assert found.nets_ms == {0: pytest.approx(sum(cpu for cpu, _ in near) / 3)}
    assert found.kernels_ms == {1: pytest.approx(sum(gpu for _, gpu in near) / 3)}
    assert sum(found.stages_ms) == pytest.approx(found.nets_ms[0] + found.kernels_ms[1])
    assert ProfiledTimes.typical(runs[:1]) == runs[0]


SHAPE = Shape(3, 12, 9, 5)


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """Of a tensor of `SHAPE`; not empty."""
    spans = []
    for size in SHAPE[:3]:
        start = draw(st.integers(0, size - 1))
        spans.append(Span(start, draw(st.integers(start + 1, size))))
    return Region(*spans)


@given(held=st.one_of(st.none(), regions()), need=regions())
@settings(max_examples=300, derandomize=True)
def test_what_is_missing_has_the_sizes_of_what_moves(held: Region | None, need: Region) -> None:
    _, moved = missing_regions(SHAPE, held, need, "missing")
    expected = [tuple(piece.shape(SHAPE))[:3] for piece in moved]
    rows = (np.array([boxes.box(one)], np.int64) for one in (held, need))
    assert sorted(map(tuple, boxes.missing_sizes(*rows).tolist())) == sorted(expected)


@given(regions(), regions())
def test_the_larger_entries_are_the_box_around_both(one: Region, other: Region) -> None:
    joined = np.maximum(boxes.box(one), boxes.box(other)).tolist()
    assert boxes.region(joined) == one.join(other)


@given(network=random_networks(), data=st.data())
@settings(max_examples=60, derandomize=True)
def test_walks_cut_chains_as_lowering_does(network: Network, data: st.DataObject) -> None:
    """Every part, and what is read from outside and left, of chains of all lengths at once."""
    layers, ratios = network.layers, [0.0, 0.2, 0.5, 0.85, 1.0]
    stop = data.draw(st.integers(1, len(layers)))
    dim = data.draw(st.sampled_from(["H", "OC", "N"]))
    step = data.draw(st.integers(0, len(ratios) - 1))
    starts = frozenset(data.draw(st.sets(st.integers(0, stop - 1), min_size=1)))
    if 0 < step < len(ratios) - 1 and not all(dim in x.op.dims for x in layers[:stop]):
        dim, step = "H", 0
    costs = ChainCosts(network, CostModel(SOC, SyntheticPredictors()), ratios)
    walk = Walk(stop, dim, step, starts)
    steps = {one.layer: one for one in costs.halo([walk]).steps()}
    for candidate in some(costs.evaluate([walk])):
        own = layers[candidate.start : stop]
        outputs = chain_outputs(network, own)
        shards = cut(own, outputs, dim, ratios[step], block=SOC.gpu.vector_width)
        for side, shard in some(enumerate(shards)):
            expected = {part.layer.output: part.region for part in shard.parts}
            numbers = {x.output: int(steps[k].parts[0, side])
                       for k, x in enumerate(own, candidate.start)}  # fmt: skip
            cut_boxes = {name: costs.table.boxes[number] for name, number in numbers.items()}
            assert {n: boxes.region(b) for n, b in cut_boxes.items() if boxes.is_something(b)} == (
                expected
            )
            for rows, regions_of in (
                (candidate.reads, shard.inputs),
                (candidate.writes, shard.left(outputs)),
            ):
                table = {
                    name: costs.regions.boxes[number]
                    for name, owner, number in costs.named(candidate.start, rows)
                    if owner == side
                }
                # Constants that one layer alone reads are there from the start.
                assert {name: boxes.region(box) for name, box in table.items()} == {
                    n: r
                    for n, r in regions_of.items()
                    if not r.is_empty and n not in costs.private_tensors
                }
