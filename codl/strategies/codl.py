"""Our own: the fastest plan that a search finds under the predictor, one processor included.

Dimension, ratio and chains are chosen together for the whole graph, with what every tensor's place
means for the chains behind it, and only what the other side lacks moves. Where that is predicted to
gain next to nothing over one processor, it is that one's plan.
"""

from __future__ import annotations

from typing import ClassVar

from codl.ir import Network
from codl.ir.plan import Plan
from codl.plan.search import search
from codl.plan.single_processor import unless_alone
from codl.strategies.base import Context, Strategy


class Codl(Strategy):
    name: ClassVar[str] = "codl"

    def plan(self, network: Network, context: Context) -> Plan:
        cost = context.cost(self.default_predictor)
        method, objective = context.method, context.objective
        found = search(network, cost, self.name, method=method, objective=objective)
        return unless_alone(found, network, cost) if objective.is_latency else found
