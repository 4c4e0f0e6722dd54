"""CoDL as published (MobiSys '22): hybrid dimensions, and chains by its Algorithm 1.

Every chain's outputs are gathered whole on each processor that reads them, and latencies come from
linear models of analytically extracted blocks (section 5.2 of the paper) unless told otherwise.
"""

from __future__ import annotations

from typing import ClassVar

from codl.ir import Network
from codl.ir.plan import Plan
from codl.plan.greedy import ChainSearch, greedy_chains
from codl.strategies.base import Context, Strategy


class CodlPaper(Strategy):
    name: ClassVar[str] = "codl-paper"
    default_predictor: ClassVar[str] = "codl_linear"

    def plan(self, network: Network, context: Context) -> Plan:
        search = ChainSearch(network, context.cost(self.default_predictor), dims=("H", "OC"))
        return search.plan(self.name, greedy_chains(search))
