"""When each processor is free as a program's stages go by: what a plan takes from end to end.

The same order of events as in the co-executor (`codl.runtime.stage`): what the GPU has is sent off
first, the CPU hands over what the GPU lacks, then the GPU's kernels are enqueued, and only then
does the CPU wait for its share of the exchange and compute. No stage waits for the one before, but
for what it needs of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codl.ir import Network
from codl.ir.types import Direction
from codl.lower.program import Program, Segment
from codl.plan.cost_model import CostModel, Moved, moved
from codl.predict.context_terms import Load

#: One of the CPU, one of the GPU.
Pair: TypeAlias = tuple[float, float]
START: Pair = (0.0, 0.0)
_COLUMNS = attrgetter("bytes", "flops", "latency_ms")


class Works(NamedTuple):
    """Milliseconds of the two shards of a segment, each alone, and when both begin at once."""

    alone: Pair
    together: Pair


class Move(NamedTuple):
    """A transfer in milliseconds: of the GPU, from its end to the CPU's turn, and of the CPU."""

    way: Direction
    gpu_ms: float
    wait_ms: float
    cpu_ms: float

    @classmethod
    def of(cls, way: Direction, parts: Mapping[str, float]) -> Move:
        """With the parts of data sharing by name; the GPU itself maps what it is to read."""
        kernel, mapped = parts.get("transform", 0.0), parts.get("map", 0.0)
        copied = parts.get("copy", 0.0) + parts.get("unmap", 0.0)
        if way == "to_cpu":
            return cls(way, kernel, parts.get("sync", 0.0) + mapped, copied)
        return cls(way, kernel + mapped, 0.0, copied)


def after_stage(
    clocks: Pair, moves: Sequence[Move], launches_ms: float = 0.0, works: Pair = START
) -> Pair:
    """When each processor is done with an exchange and with its shard of a chain.

    `clocks` are the milliseconds since the start at which each is done with what it was given;
    `launches_ms` is what enqueueing takes the CPU, `works` what each shard takes.
    """
    cpu, gpu = clocks
    arrivals = []
    for way, gpu_ms, wait_ms, cpu_ms in moves:
        if way == "to_cpu":  # enqueued by the CPU, which does not wait yet
            gpu = max(gpu, cpu) + gpu_ms
            arrivals.append((gpu + wait_ms, cpu_ms))
    for way, gpu_ms, _, cpu_ms in moves:
        if way == "to_gpu":
            cpu += cpu_ms
            gpu = max(gpu, cpu) + gpu_ms
    if works[1]:
        gpu = max(gpu, cpu) + works[1]
    cpu += launches_ms
    for arrival, cpu_ms in arrivals:
        cpu = max(cpu, arrival) + cpu_ms
    return cpu + works[0], gpu


def both_ends(works: ArrayLike, slowdowns: ArrayLike) -> NDArray[np.float64]:
    """When each of two works ends that begin at once and slow each other down.

    `works` are the milliseconds of each alone, `slowdowns` how many times longer they take while
    both are under way; both shaped (..., 2), and the ends. A work that never ends, of infinite
    milliseconds, is no longer than that.
    """
    works, slowdowns = np.asarray(works, np.float64), np.asarray(slowdowns, np.float64)
    finite = np.where(np.isfinite(works), works, 0.0)
    alone = (finite == 0).any(axis=-1, keepdims=True)
    together = (finite * slowdowns).min(axis=-1, keepdims=True)
    return np.where(alone, works, together + finite - together / slowdowns)


def works_of_loads(cost: CostModel, loads: Sequence[tuple[Load, Load]]) -> list[Works]:
    """What pairs of shards take, of which is known what each does alone."""
    columns = np.array([[_COLUMNS(load) for load in pair] for pair in loads]).reshape(-1, 2, 3)
    alone = columns[:, :, 2]
    together = both_ends(alone, cost.slowdowns(columns))
    pairs = zip(alone.tolist(), together.tolist(), strict=True)
    return [Works((a, b), (c, d)) for (a, b), (c, d) in pairs]


def works_of(network: Network, segments: Sequence[Segment], cost: CostModel) -> list[Works]:
    """What the shards of every segment take in the variants that its plan names."""
    loads = [
        cost.loads(network, s.outputs, (s.cpu, s.gpu), variants=s.chain.variants) for s in segments
    ]
    return works_of_loads(cost, loads)


def program_ms(network: Network, program: Program, cost: CostModel) -> float:
    """A whole plan in the variants that it names, with the transfers that will be made."""
    clocks = START
    works = works_of(network, program.segments, cost)
    for segment, own in zip(program.segments, works, strict=True):
        moves = priced(cost, moved(network, segment.transfers))
        launches_ms = cost.launches_ms(cost.launches(segment.gpu) + len(moves))
        clocks = after_stage(clocks, moves, launches_ms, own.together)
    final = priced(cost, moved(network, program.final))
    return max(after_stage(clocks, final))


def priced(cost: CostModel, moves: Sequence[Moved]) -> list[Move]:
    """What moves, with the milliseconds of its parts."""
    return [Move.of(way, cost.sharing_parts(way, shape)) for way, shape in moves]
