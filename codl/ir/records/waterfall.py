"""Waterfalls: losses between a model's lossless bound and its run, in milliseconds.

A waterfall is a sequence of totals: each is the latency of one inference with one more cause of
loss than the previous total, computed separately. A term is the difference of two neighbours,
negative if the second is smaller. So the bound and all terms add up to the last total, for the
model and for each chain. `codl.plan.waterfall`, `codl.jobs.explain` and
docs/concepts/explain.md define the totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

from codl.ir.ops.base import Dim
from codl.ir.plan import Ratio
from codl.ir.types import Processor

#: Name of the total of the lossless bound.
BOUND = "bound"
#: Terms with totals that need no run, in order, with their causes.
PREDICTED_TERMS: Mapping[str, str] = {
    "cuts": "splits in steps of whole rows, blocks of channels or images, ops without a split, and "
    "parts that cost more than their share",
    "chains": "one dimension and ratio for all ops of a chain, regions that both processors "
    "compute, and choices that compute slower to save data sharing",
    "fusion": "savings of ops that share a net's call or a kernel",
    "layouts": "packing by the CPU's libraries, copies between the GPU's storages",
    "overlap": "a processor that starts a chain while the other one is still in the chain before",
    "sharing": "data sharing: transform, map, copy, sync and unmap",
    "launches": "enqueueing kernels, and their delay on an idle GPU",
    "contention": "both processors using the same memory",
}
#: Terms with measured totals, in order, with their causes.
MEASURED_TERMS: Mapping[str, str] = {
    "pace": "slowdown of the anchors since the dataset was measured",
    "cpu": "the CPU's nets, beyond the prediction",
    "gpu": "the GPU's kernels, beyond the prediction",
    "exchange": "data sharing, beyond the prediction",
    "engine": "the rest of a profiled run: waking threads, gaps between kernels",
    "profiling": "difference of plain runs to profiled ones",
}
TERMS: Mapping[str, str] = {**PREDICTED_TERMS, **MEASURED_TERMS}


@dataclass(frozen=True)
class Total:
    """Milliseconds of one inference by chain, with all losses up to the term `name`."""

    name: str
    chains_ms: tuple[float, ...]

    @property
    def ms(self) -> float:
        return fsum(self.chains_ms)


@dataclass(frozen=True)
class WaterfallTerm:
    """Difference of a total to the previous one, in milliseconds."""

    name: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class ChainTerms:
    """A chain's part of a waterfall; the transfer of results to the CPU is a chain without ops.

    `predicted_ms` and `measured_ms` are the chain's parts of the totals. `work_ms` is the predicted
    latency of each processor's nets or kernels, `measured_work_ms` the profiled one.
    """

    ops: tuple[str, ...]
    dim: Dim
    gpu_ratio: Ratio
    bound_ms: float
    terms: tuple[WaterfallTerm, ...]
    predicted_ms: float
    measured_ms: float | None
    work_ms: Mapping[Processor, float]
    measured_work_ms: Mapping[Processor, float] | None = None


@dataclass(frozen=True, kw_only=True)
class WholeOp:
    """An op that a plan leaves whole on one processor, and the effect of splitting it alone.

    `best_ms` is the latency of the slower part at the best cut, `gpu_ratio` along `dim`; `saves_ms`
    is `whole_ms` minus `best_ms`. `best_ms` is the lossless bound plus two losses: `cuts_ms`, as
    parts cost more than their shares, and `variants_ms`, as parts cannot use the whole op's kernel
    variant. `sharing_ms` is the extra latency of transfers, `net_ms` that of the whole plan. For an
    op that cannot be split, `dim` and `gpu_ratio` are None, and the rest 0.
    """

    op: str
    processor: Processor
    whole_ms: float
    best_ms: float
    dim: Dim | None = None
    gpu_ratio: float | None = None
    saves_ms: float = 0.0
    sharing_ms: float = 0.0
    cuts_ms: float = 0.0
    variants_ms: float = 0.0
    net_ms: float = 0.0


def terms_of(totals_ms: Sequence[tuple[str, float]]) -> tuple[WaterfallTerm, ...]:
    """The terms between named totals, the first of which is the bound."""
    return tuple(
        WaterfallTerm(name, ms - before) for (_, before), (name, ms) in pairwise(totals_ms)
    )
