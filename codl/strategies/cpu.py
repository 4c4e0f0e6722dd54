"""Everything on the CPU, in the fastest variant of every op."""

from __future__ import annotations

from typing import ClassVar

from codl.ops import Network
from codl.ops.plan import Plan
from codl.plan.fixed import one_processor
from codl.predict.names import DEFAULT
from codl.strategies.base import Context


class Cpu:
    name: ClassVar[str] = "cpu"
    default_predictor: ClassVar[str] = DEFAULT
    runs_plans: ClassVar[bool] = False

    def plan(self, network: Network, context: Context) -> Plan:
        return one_processor(
            network, context.cost(self.default_predictor), "cpu", strategy=self.name
        )
