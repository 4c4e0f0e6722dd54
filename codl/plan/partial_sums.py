"""Which products of a plan may run as partial sums, and where their features are cut.

A product needs all features of its input. Where these come by columns from a chain on both
processors, each has a part of them, and can add up that part alone: then what is shared is one term
of the output, and not the features before it and a part of the output behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, lcm

from codl.ir import Layer, Network, Region
from codl.ir.network import terms_at, terms_of, views_of
from codl.ir.ops.matmul_terms import TERMS, Terms
from codl.ir.ops.norm import Norm
from codl.ir.plan import Plan
from codl.ir.region import Span
from codl.ir.types import PROCESSORS
from codl.lower.partition import partition_plan
from codl.plan.candidates import STEPS
from codl.plan.cost_model import CostModel


def sums_of(network: Network, plan: Plan, cost: CostModel) -> dict[str, int]:
    """The products whose features a plan has by columns on both, and how many are the GPU's.

    That is as the plan has it, to a step of a search, where both terms take the same time. There
    are none of products that one processor does faster alone, and of those that make such features.
    """
    shares = _shares(network, plan, cost)
    makers = {layer.output: layer for layer in network.layers}
    cuts: dict[Terms, int | None] = {}
    found: dict[str, int] = {}
    by_columns: set[str] = set()
    for layer in reversed(network.layers):
        if layer.name in by_columns:
            continue
        terms = next(_cut(layer, makers, shares), None)
        if terms is not None:
            if terms not in cuts:
                cuts[terms] = _balanced(terms, cost)
            cut = cuts[terms]
            if cut is not None and terms_of(layer, makers, cut) is not None:
                found[layer.name] = cut
                by_columns.update(_makers_of(layer, makers))
    return found


def _makers_of(layer: Layer, makers: Mapping[str, Layer]) -> set[str]:
    """The products that make the features of one, with nothing between that mixes them."""
    found, left, seen = set(), [*layer.inputs], set(layer.inputs)
    while left:
        maker = makers.get(left.pop())
        if maker is not None and maker.op.kind in TERMS:
            found.add(maker.name)
        elif maker is not None and maker.op.kind != Norm.kind:
            left += [name for name in maker.inputs if name not in seen]
            seen.update(maker.inputs)
    return found


def _shares(network: Network, plan: Plan, cost: CostModel) -> Mapping[str, tuple[Region, Region]]:
    """What the CPU and the GPU compute of every tensor that both compute a part of."""
    return {
        name: (segment.cpu.outputs[name], region)
        for segment in partition_plan(network, plan, cost.soc).segments
        for name, region in segment.gpu.outputs.items()
        if name in segment.cpu.outputs
    }


def _cut(
    layer: Layer, makers: Mapping[str, Layer], shares: Mapping[str, tuple[Region, Region]]
) -> Iterator[Terms]:
    """The terms of a product whose features are cut as both processors have them."""
    for name, shape in views_of(layer, makers):
        axis = terms_at(layer, shape, 0).depth_axis
        if name in shares and axis is not None:
            cpu, gpu = (region[axis] for region in shares[name])
            if gpu == Span(0, cpu.start) and cpu.stop == shape[axis]:
                step = terms_at(layer, shape, 0).k // shape[axis]
                yield terms_at(layer, shape, cpu.start * step)


def _balanced(terms: Terms, cost: CostModel) -> int | None:
    """Where to cut, near where terms are cut, so that the slower one takes least.

    None where one processor alone takes less.
    """
    step = lcm(terms.cut_step, cost.soc.gpu.vector_width)
    reach = terms.k // (2 * STEPS)
    places = {round(terms.cut / step) * step}
    places.update(range(-(-(terms.cut - reach) // step) * step, terms.cut + reach + 1, step))
    inner = sorted(place for place in places if 0 < place < terms.k)
    ops = [terms.term_of(place) for place in inner], [terms.term_of(terms.k - p) for p in inner]
    taken = zip(cost.fastest_ms(ops[1], "cpu"), cost.fastest_ms(ops[0], "gpu"), strict=True)
    slower = zip((max(pair) for pair in taken), inner, strict=True)
    least_ms, place = min(slower, default=(inf, 0))
    alone_ms = min(cost.fastest_ms([terms.whole], side)[0] for side in PROCESSORS)
    return place if least_ms < alone_ms else None
