"""From when to when a program needs the memory of every tensor, on either processor.

Stages are counted from 0; the last exchange is one more. Kernels run in the order in which they are
enqueued, so the GPU's memory is free for others once the last command that uses it is enqueued. The
CPU's is not: a kernel may still have to read it, until the CPU has next waited for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codl.ir.types import PROCESSORS, Processor
from codl.lower.program import PartitionedPlan

#: A stage that never comes.
NEVER = 1 << 30


@dataclass(frozen=True)
class Lifetime:
    """The first and the last stage that memory is needed in."""

    first: int
    last: int

    def until(self, stage: int) -> Lifetime:
        return Lifetime(min(self.first, stage), max(self.last, stage))


def lifetimes(
    program: PartitionedPlan, *, shared_in_place: bool
) -> Mapping[Processor, Mapping[str, Lifetime]]:
    """By processor and tensor, of all that a processor ever holds.

    `shared_in_place`: kernels read the CPU's arrays, and not copies of them.
    """
    found: dict[Processor, dict[str, Lifetime]] = {"cpu": {}, "gpu": {}}

    def use(processor: Processor, tensor: str, stage: int) -> None:
        known = found[processor].get(tensor, Lifetime(stage, stage))
        found[processor][tensor] = known.until(stage)

    exchanges = [*(segment.transfers for segment in program.segments), program.final]
    waits = [any(t.direction == "to_cpu" for t in moves) for moves in exchanges]
    for stage, moves in enumerate(exchanges):
        for move in moves:
            use("cpu", move.tensor, stage)
            use("gpu", move.tensor, stage)
            if move.direction == "to_gpu" and shared_in_place:
                later = (s for s in range(stage + 1, len(waits)) if waits[s])
                use("cpu", move.tensor, next(later, NEVER) - 1)
    for stage, segment in enumerate(program.segments):
        for side, shard in zip(PROCESSORS, (segment.cpu, segment.gpu), strict=True):
            for tensor in (*shard.inputs, *(n for n in segment.outputs if n in shard.outputs)):
                use(side, tensor, stage)
    return found
