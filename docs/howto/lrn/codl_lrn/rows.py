from __future__ import annotations

from codl.ir import Layer, Network
from codl.ir.plan import Plan
from codl.plan.search import ChainSearch, IsolatedChain
from codl.plan.strategies.base import Context, strategy

RATIOS = tuple(i / 10 for i in range(11))


@strategy("rows", default_predictor="power_law")
def rows(network: Network, context: Context) -> Plan:
    """Every op split on its rows, where both processors are predicted to end together."""
    search = ChainSearch(network, context.cost("power_law"))
    return search.plan("rows", [balanced(search, layer) for layer in network.layers])


def balanced(search: ChainSearch, layer: Layer) -> IsolatedChain:
    ratios = RATIOS if "H" in layer.op.dims else (0.0, 1.0)
    candidates = [search.at([layer], "H", ratio) for ratio in ratios]
    return min(candidates, key=lambda one: max(one.alone_ms))
