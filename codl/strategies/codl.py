"""Our own: the fastest plan that a search finds under the predictor, one processor included.

Dimension, ratio and chains are chosen together for the whole graph, with what every tensor's place
means for the chains behind it, and only what the other side lacks moves.
"""

from __future__ import annotations

from typing import ClassVar

from codl.ops import Network
from codl.ops.plan import Plan
from codl.plan.optimal import search
from codl.predict.names import DEFAULT
from codl.strategies.base import Context


class Codl:
    name: ClassVar[str] = "codl"
    default_predictor: ClassVar[str] = DEFAULT
    runs_plans: ClassVar[bool] = False

    def plan(self, network: Network, context: Context) -> Plan:
        cost = context.cost(self.default_predictor)
        method, objective = context.method, context.objective
        return search(network, cost, self.name, method=method, objective=objective)
