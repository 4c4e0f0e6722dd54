"""Everything on the GPU, in the fastest variant of every op."""

from __future__ import annotations

from typing import ClassVar

from codl.ir import Network
from codl.ir.plan import Plan
from codl.plan.single_processor import one_processor
from codl.strategies.base import Context, Strategy


class Gpu(Strategy):
    name: ClassVar[str] = "gpu"

    def plan(self, network: Network, context: Context) -> Plan:
        return one_processor(
            network, context.cost(self.default_predictor), "gpu", strategy=self.name
        )
