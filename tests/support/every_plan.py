"""All chains and all plans of small networks, to compare searches with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from codl.ir import Dim, Layer, Network
from codl.plan.beam_search import START, Transitions
from codl.plan.chain_costs import CandidateChain, ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.parts import Walk


def cuts(layers: Sequence[Layer], steps: int) -> Iterator[tuple[Dim, int]]:
    """The dimensions and steps at which layers can be one chain; 0 and `steps` are whole."""
    yield from (("H", 0), ("H", steps))
    for dim in ("H", "OC"):
        if all(dim in layer.op.dims and layer.op.output.h > 1 for layer in layers) and (
            dim == "H" or all(layer.op.carries_channels for layer in layers[1:])
        ):
            yield from ((dim, step) for step in range(1, steps))


def every_chain(
    network: Network, cost: CostModel, steps: int = 20
) -> tuple[ChainCosts, list[list[CandidateChain]]]:
    """The chains at all ratios in so many steps, by their first layer."""
    costs = ChainCosts(network, cost, [step / steps for step in range(steps + 1)])
    starting: list[list[CandidateChain]] = [[] for _ in network.layers]
    walks = [
        Walk(stop, dim, step, frozenset([start]))
        for stop in range(1, len(network.layers) + 1)
        for start in range(stop)
        for dim, step in cuts(network.layers[start:stop], steps)
    ]
    for candidate in costs.evaluate(walks):
        starting[candidate.start].append(candidate)
    return costs, starting


def least_ms(costs: ChainCosts, starting: Sequence[Sequence[CandidateChain]]) -> float:
    """The latency of the fastest sequence of these chains, by enumeration."""
    transitions = Transitions(costs, "missing")
    open_ends, least = [(0, START, transitions.start)], inf
    while open_ends:
        at, clocks, resident = open_ends.pop()
        if at == len(starting):
            least = min(least, transitions.end_ms(clocks, resident))
            continue
        for candidate in starting[at]:
            open_ends.append((candidate.stop, *transitions.after(clocks, resident, candidate)))
    return least
