"""When each processor is free as a program's stages go by: what a plan takes from end to end.

The same order of events as in the co-executor (`codl.execute.stage`): what the GPU has is sent off
first, the CPU hands over what the GPU lacks, then the GPU's kernels are enqueued, and only then
does the CPU wait for its share of the exchange and compute. No stage waits for the one before, but
for what it needs of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from codl.execute.program import Program, Transfer
from codl.ops import Network
from codl.ops.chain import Half
from codl.plan.cost import CostModel, moved
from codl.predict.surroundings import Load

#: One of the CPU, one of the GPU.
Pair: TypeAlias = tuple[float, float]


@dataclass
class Clocks:
    """Milliseconds since the start at which each processor has done all it was given."""

    network: Network
    cost: CostModel
    cpu: float = 0.0
    gpu: float = 0.0

    @property
    def end(self) -> float:
        return max(self.cpu, self.gpu)

    def stage(
        self,
        transfers: Sequence[Transfer],
        gpu_half: Half | None = None,
        loads: tuple[Load, Load] | None = None,
        slowdowns: Pair = (1.0, 1.0),
    ) -> None:
        """Exchange, then compute both halves; without halves only exchange."""
        parts = [
            (way, self.cost.sharing_parts(way, s)) for way, s in moved(self.network, transfers)
        ]
        ready = [self._send(own) for way, own in parts if way == "to_cpu"]
        for way, own in parts:
            if way == "to_gpu":
                self._hand_over(own)
        begin_gpu = max(self.gpu, self.cpu)
        if gpu_half is not None:
            self.cpu += self.cost.launches_ms(gpu_half)
        received = (own for way, own in parts if way == "to_cpu")
        for at, own in zip(ready, received, strict=True):
            waited = max(self.cpu, at + own.get("sync", 0.0) + own.get("map", 0.0))
            self.cpu = waited + own.get("copy", 0.0) + own.get("unmap", 0.0)
        if loads is not None:
            works = (loads[0].latency_ms, loads[1].latency_ms)
            starts = (self.cpu, begin_gpu if works[1] else self.gpu)
            self.cpu, self.gpu = both_ends(starts, works, slowdowns)

    def _send(self, parts: Mapping[str, float]) -> float:
        """Begin to send to the CPU what the GPU has computed; when it will be there."""
        self.gpu = max(self.gpu, self.cpu) + parts.get("transform", 0.0)
        return self.gpu

    def _hand_over(self, parts: Mapping[str, float]) -> None:
        """The CPU copies, and the GPU goes on from there."""
        self.cpu += parts.get("copy", 0.0) + parts.get("unmap", 0.0)
        self.gpu = max(self.gpu, self.cpu) + parts.get("transform", 0.0) + parts.get("map", 0.0)


def both_ends(starts: Pair, works: Pair, slowdowns: Pair) -> Pair:
    """When each of two works ends that slow each other down while both are under way.

    `works` are the milliseconds of each alone, `slowdowns` how many times longer they take then.
    """
    both = max(starts)
    left = [works[i] - min(works[i], both - starts[i]) for i in (0, 1)]
    if 0.0 in left:
        return starts[0] + works[0], starts[1] + works[1]
    together = min(left[0] * slowdowns[0], left[1] * slowdowns[1])
    ends = [both + together + left[i] - together / slowdowns[i] for i in (0, 1)]
    return ends[0], ends[1]


def program_ms(network: Network, program: Program, cost: CostModel) -> float:
    """A whole plan in the variants that it names, with the transfers that will be made."""
    clocks = Clocks(network, cost)
    loads = [
        cost.loads(network, s.outputs, (s.cpu, s.gpu), s.chain.variants) for s in program.segments
    ]
    for segment, own, slower in zip(program.segments, loads, cost.slowdowns(loads), strict=True):
        clocks.stage(segment.transfers, segment.gpu, own, slower)
    clocks.stage(program.final)
    return clocks.end
