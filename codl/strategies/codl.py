"""`codl`, the default: the plan of least latency, single processors included.

Dimension, ratio and chains are chosen together for the whole graph, with what every tensor's place
means for the chains behind it, and only what the other side lacks moves. Where a device is at hand,
the network is profiled on it first (`codl.strategies.rehearsal`). Elsewhere predictions decide, and
where two processors are predicted to gain next to nothing over one, it is that one's plan.
"""

from __future__ import annotations

from codl.errors import DeviceError, UnsupportedError
from codl.ir import Network
from codl.ir.plan import Plan
from codl.plan.search import search
from codl.predict import DEFAULT
from codl.strategies.base import Context, strategy
from codl.strategies.rehearsal import rehearsed

NAME = "codl"
#: Plans on both processors that run, and how many more where the last was the fastest: see
#: docs/decisions.md for what they are worth.
ROUNDS, FURTHER = 2, 1
#: Seconds in which rounds are to end: ten with what comes before and behind them.
SECONDS = 9.0


@strategy(NAME, profiles=True)
def codl(network: Network, context: Context) -> Plan:
    """The default: chains, dimensions and ratios together, by a search over the whole network.

    Where a device is at hand, the network is profiled on it first.
    """
    if context.profiling is not None and context.objective.is_latency:
        try:
            return rehearsed(
                network, context, strategy=NAME, rounds=ROUNDS, further=FURTHER, seconds=SECONDS
            )
        except (DeviceError, UnsupportedError) as error:
            context.note(
                f"{network.name}: planned by predictions alone, since nothing ran. {error}"
            )
    cost = context.cost(DEFAULT)
    return search(
        network, cost, NAME, method=context.method, objective=context.objective, may_be_alone=True
    )
