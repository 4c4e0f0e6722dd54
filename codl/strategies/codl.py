"""`codl`, the default: the plan of least predicted latency, single processors included.

Dimension, ratio and chains are chosen together for the whole graph, with what every tensor's place
means for the chains behind it, and only what the other side lacks moves. Where that is predicted to
gain next to nothing over one processor, it is that one's plan.
"""

from __future__ import annotations

from codl.ir import Network
from codl.ir.plan import Plan
from codl.plan.search import search
from codl.predict import DEFAULT
from codl.strategies.base import Context, strategy


@strategy("codl")
def codl(network: Network, context: Context) -> Plan:
    cost = context.cost(DEFAULT)
    return search(
        network, cost, "codl", method=context.method, objective=context.objective, may_be_alone=True
    )
