"""Everything on the GPU with tensors in images, as the paper's GPU-only baseline (MACE) has them.

Ops that have no kernel over images, and tensors that are too large for one, stay in buffers. A GPU
reads images through its texture units; a CPU emulates them, and takes some 20 times as long.
"""

from __future__ import annotations

from typing import ClassVar

from codl.ir import Network
from codl.ir.plan import Plan
from codl.strategies.base import Context, Strategy, one_memory


class GpuImage(Strategy):
    name: ClassVar[str] = "gpu-image"

    def plan(self, network: Network, context: Context) -> Plan:
        return one_memory(network, context, self.name, "image2d")
