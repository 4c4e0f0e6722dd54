"""`codl`, the default: the plan of least latency, single processors included.

Dimension, ratio and chains are chosen together for the whole graph, and only data that is missing
on the other processor moves. Where a device is at hand, plans run on it and are improved by what
they took (`codl.strategies.device_loop`). Elsewhere predictions decide, and where two processors
are predicted to gain next to nothing over one, it is that one's plan.
"""

from __future__ import annotations

from codl.errors import DeviceError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.plan.search import search
from codl.predict import DEFAULT
from codl.strategies.base import Context, strategy
from codl.strategies.device_loop import planned_on_device

NAME = "codl"


@strategy(NAME, runs_plans=True)
def codl(network: Network, context: Context) -> Plan:
    """The default: chains, dimensions and ratios together, by a search over the whole network.

    Where a device is at hand, plans run on it before the fastest is taken.
    """
    if context.profiling is not None and context.objective.is_latency:
        try:
            return planned_on_device(network, context, strategy=NAME)
        except (DeviceError, UnsupportedError) as error:
            context.note(f"{network.name}: no plan ran, so predictions decide. {error}")
    cost = context.cost(DEFAULT)
    return search(
        network, cost, NAME, method=context.method, objective=context.objective, may_be_alone=True
    )
