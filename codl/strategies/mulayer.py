"""muLayer (EuroSys '19): every op on both processors, split on output channels, shared at once.

The ratio comes from a linear model of FLOPs for each kind of op, and data sharing is not part of
the decision: each op's output is made whole on both sides before the next begins.
"""

from __future__ import annotations

from typing import ClassVar

from codl.ir import Layer, Network
from codl.ir.plan import Plan
from codl.plan.greedy import Candidate, ChainSearch
from codl.strategies.base import Context, Strategy

#: The GPU's shares that it chooses from.
RATIOS = tuple(i / 10 for i in range(11))


class MuLayer(Strategy):
    name: ClassVar[str] = "mulayer"
    default_predictor: ClassVar[str] = "flops_linear"

    def plan(self, network: Network, context: Context) -> Plan:
        search = ChainSearch(network, context.cost(self.default_predictor, by_op=True))
        return search.plan(self.name, [self._split(search, layer) for layer in network.layers])

    def _split(self, search: ChainSearch, layer: Layer) -> Candidate:
        """The share at which both shards are predicted to end together."""
        ratios = RATIOS if "OC" in layer.op.dims else (0.0, 1.0)
        candidates = [search.at([layer], "OC", ratio) for ratio in ratios]
        return min(candidates, key=search.computing_ms)
