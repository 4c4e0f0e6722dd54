"""Whether two processors are worth it: a plan must be predicted to gain more than errors may be."""

from __future__ import annotations

from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS
from codl.plan.cost_model import CostModel
from codl.plan.single_processor import does_all, one_processor

#: A plan that moves work between processors must be predicted to take less than this part of what
#: one of them takes alone. What one takes is predicted within 10 % for most networks, and plans of
#: many chains come out slower than predicted more often than faster (docs/predictors.md).
WORTH = 0.9


def unless_alone(plan: Plan, network: Network, cost: CostModel) -> Plan:
    """The plan, or that of the faster processor alone where the plan gains too little over it."""
    for alone in sorted(_alone(network, cost, plan.strategy), key=_predicted_ms):
        if _predicted_ms(plan) > WORTH * _predicted_ms(alone):
            return alone
    return plan


def _predicted_ms(plan: Plan) -> float:
    assert plan.predicted_ms is not None
    return plan.predicted_ms


def _alone(network: Network, cost: CostModel, strategy: str) -> list[Plan]:
    """The network on either processor that has variants for all of it."""
    return [
        one_processor(
            network,
            cost,
            processor,
            strategy=strategy,
            sharing="missing",
            method=f"the {processor} alone: two gain less than {1 - WORTH:.0%}",
        )
        for processor in PROCESSORS
        if does_all(network, cost, processor)
    ]
