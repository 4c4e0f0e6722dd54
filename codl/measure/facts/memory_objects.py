"""In which memory object the tensors of an op are faster: `buffer` or `image2d`, by kind of op.

Image reads go through the texture units of a GPU with a cache of their own; on Adreno GPUs that is
faster for most ops, on others it is not. What decides is the best kernel variant of either memory,
on a few shapes that mobile networks have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import mean
from typing import cast

from codl.ir import Op, parse
from codl.ir.types import LAYOUTS
from codl.kernels import registry
from codl.kernels.base import GpuVariant
from codl.measure.bench_rows import BenchRow
from codl.measure.facts.fact import Fact, Point
from codl.records.results import Latency

KEY = "gpu.preferred_memory"
BUFFER, IMAGE = "buffer", "image2d"
OPS = (
    "conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1",
    "conv2d in=1x256x28x28 oc=128 kernel=1x1",
    "conv2d in=1x96x28x28 oc=96 kernel=3x3 pad=1 groups=96",
    "pooling in=1x64x56x56 kernel=3x3 stride=2x2 pad=1",
    "fc in=1x512x7x7 oc=512",
    "eltwise in=1x256x28x28,1x256x28x28",
    "concat in=1x64x28x28,1x64x28x28",
)


def ops_to_compare() -> list[Op]:
    """Ops of every kind that has kernels over both memory objects."""
    return [parse(text) for text in OPS]


def preferred_keys() -> list[str]:
    """The keys of the facts, of all kinds of op."""
    return list(dict.fromkeys(f"{KEY}.{op.kind}" for op in ops_to_compare()))


def best_by_memory(op: Op, rows: Iterable[BenchRow]) -> dict[str, Latency]:
    """The fastest GPU variant's latency over each memory object."""
    variants = cast("Sequence[GpuVariant]", registry.of_kind(op.kind, "gpu"))
    memory_of = {own.name: LAYOUTS[own.storage.layout].memory for own in variants}
    best: dict[str, Latency] = {}
    for row in rows:
        memory = memory_of.get(row.variant) if row.processor == "gpu" else None
        if memory and (memory not in best or row.latency.level < best[memory].level):
            best[memory] = row.latency
    return best


def prefer(found: Sequence[tuple[Op, Mapping[str, Latency]]]) -> tuple[Fact, ...]:
    """A fact for each kind of op of which both memory objects were measured; points in FLOPs.

    Images are preferred where they are faster in the geometric mean, by more than the latencies
    scatter; else buffers, which can be divided between processors more finely.
    """
    both = [(op, best) for op, best in found if {BUFFER, IMAGE} <= {*best}]
    kinds = dict.fromkeys(op.kind for op, _ in both)
    return tuple(_preferred(kind, [own for own in both if own[0].kind == kind]) for kind in kinds)


def _preferred(kind: str, found: Sequence[tuple[Op, Mapping[str, Latency]]]) -> Fact:
    gain = mean(log(best[BUFFER].level / best[IMAGE].level) for _, best in found)
    scatter = mean(max(_scatter(best[BUFFER]), _scatter(best[IMAGE])) for _, best in found)
    memory = IMAGE if gain > scatter else BUFFER
    reason = f"image2d takes {exp(-gain):.2f} of the time that buffer does"
    if 0 < gain <= scatter:
        reason += ", which is no more than they scatter"
    points = tuple(
        Point(f"{kind} {name}", op.flops, best[name]) for op, best in found for name in best
    )
    return Fact(f"{KEY}.{kind}", memory, reason, points)


def _scatter(latency: Latency) -> float:
    """Half of what lies between the percentiles, as a logarithm."""
    return 0.5 * log(max(latency.p80, 1e-9) / max(latency.p20, 1e-9))
