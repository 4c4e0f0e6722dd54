"""Vectorised cutting and sharing, against the scalar rules that lowering has."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_networks import random_networks
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import SyntheticPredictors

from codl.ir import Network, Region, Shape
from codl.ir.region import Span
from codl.lower.partition import chain_outputs, cut, missing_regions
from codl.plan import parts as boxes
from codl.plan.chain_costs import ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.parts import Walk

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
