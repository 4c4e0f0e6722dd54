"""CoDL as published but with all of the GPU's tensors in buffers: what images are worth to it.

Where a SoC has only buffers, as hosts do, it plans what `codl-paper` plans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from codl.ir import Network
from codl.ir.plan import Plan
from codl.strategies.base import Context, Strategy
from codl.strategies.codl_paper import CodlPaper


class CodlBuffer(Strategy):
    name: ClassVar[str] = "codl-buffer"
    default_predictor: ClassVar[str] = CodlPaper.default_predictor

    def plan(self, network: Network, context: Context) -> Plan:
        plan = CodlPaper().plan(network, context.with_memory("buffer"))
        return replace(plan, strategy=self.name)
