"""Everything on the GPU with all tensors in buffers, whatever else it could keep them in."""

from __future__ import annotations

from typing import ClassVar

from codl.ir import Network
from codl.ir.plan import Plan
from codl.strategies.base import Context, Strategy, one_memory


class GpuBuffer(Strategy):
    name: ClassVar[str] = "gpu-buffer"

    def plan(self, network: Network, context: Context) -> Plan:
        return one_memory(network, context, self.name, "buffer")
