"""Whether two processors are worth it: a plan must be predicted to gain more than errors may be."""

from __future__ import annotations

from collections.abc import Iterator

from codl.kernels.base import PROCESSORS
from codl.ops import Network
from codl.ops.plan import Plan
from codl.plan import unmeasured
from codl.plan.chosen import Cut, make_plan
from codl.plan.cost import CostModel

#: A plan that moves work between processors must be predicted to take less than this part of what
#: one of them takes alone. What one takes is predicted within 10 % for most networks, and plans of
#: many chains come out slower than predicted more often than faster (docs/predictors.md).
WORTH = 0.9


def unless_alone(plan: Plan, network: Network, cost: CostModel) -> Plan:
    """The plan, or that of the faster processor alone where the plan gains too little over it."""
    assert plan.predicted_ms is not None
    for alone in sorted(
        _alone(network, cost, plan.strategy), key=lambda one: one.predicted_ms or 0
    ):
        assert alone.predicted_ms is not None
        if plan.predicted_ms > WORTH * alone.predicted_ms:
            return alone
    return plan


def _alone(network: Network, cost: CostModel, strategy: str) -> Iterator[Plan]:
    """The network on either processor, where that has variants for all of it."""
    cost = unmeasured.filled(cost, network)
    for ratio, processor in enumerate(PROCESSORS):
        if all(cost.choice(layer.op, processor) for layer in network.layers):
            cut = Cut(network.layers, "H", float(ratio))
            how = f"the {processor} alone: two gain less than {1 - WORTH:.0%}"
            yield make_plan(network, cost, [cut], strategy=strategy, sharing="missing", method=how)
