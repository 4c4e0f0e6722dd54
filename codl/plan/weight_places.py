"""Where a plan may have weights: anywhere, or each of them on one processor alone.

Cut by rows, a product has all of its weights on both processors; cut by columns each has its own.
Two plans of the same layers have weights in common only where both have them in the same places: so
one of them follows the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from codl.ir import Dim, Network, Region
from codl.ir.plan import Plan
from codl.ir.soc import Soc
from codl.lower.partition import partition_plan

#: What the CPU and the GPU compute of a layer.
Shares: TypeAlias = tuple[Region | None, Region | None]


@dataclass(frozen=True)
class WeightPlaces:
    """`once`: no weights on both processors. `shares` are by layer those of a plan to follow.

    `cuts` are the dimension and the ratio of the chain that each layer has there.
    """

    once: bool = False
    shares: Mapping[str, Shares] = field(default_factory=dict)
    cuts: Mapping[str, tuple[Dim, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, plan: Plan, soc: Soc) -> WeightPlaces:
        """Those of a plan that has weights once."""
        shares: dict[str, Shares] = {}
        cuts: dict[str, tuple[Dim, float]] = {}
        for segment in partition_plan(network, plan, soc).segments:
            own = [{p.layer.name: p.region for p in s.parts} for s in (segment.cpu, segment.gpu)]
            for name in segment.chain.ops:
                shares[name] = own[0].get(name), own[1].get(name)
                cuts[name] = segment.chain.dim, segment.chain.gpu_ratio
        return cls(True, shares, cuts)


ANYWHERE = WeightPlaces()
