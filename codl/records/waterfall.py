"""Waterfalls: where the time goes between the lossless bound of a model and its run.

Totals stand in a row: each is the milliseconds of one inference with one cause of loss more than
the total before, and each is computed by itself. A term is the difference of two neighbours,
negative where the second is smaller. So the bound and all terms add up to the last total, for the
model and for each of its chains. `codl.plan.waterfall`, `codl.evaluation.explain` and
docs/concepts/explain.md define the totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

from codl.ir.ops.base import Dim
from codl.ir.types import Processor

#: What the total of the lossless bound is called.
BOUND = "bound"
#: The terms whose totals need no run, in order: what each one is of.
PREDICTED_TERMS: Mapping[str, str] = {
    "cuts": "splits at whole rows, blocks of channels or images, ops without a split, and parts "
    "that cost more than their share",
    "steps": "ratios in steps",
    "chains": "one dimension and one ratio for all ops of a chain",
    "choices": "dimensions, ratios and kernel variants that compute slower, to save data sharing "
    "or because the plan is not the best",
    "halo": "regions that both processors compute",
    "fusion": "savings of ops that share a net's call or a kernel",
    "layouts": "packing by the CPU's libraries, copies between the GPU's storages",
    "overlap": "a processor that starts a chain while the other one is still in the chain before",
    "sharing": "data sharing: transform, map, copy, sync and unmap",
    "launches": "enqueueing kernels, and their delay on an idle GPU",
    "contention": "both processors using the same memory",
}
#: The terms whose totals are measured, in order.
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
    """Difference of a total to the one before, in milliseconds."""

    name: str
    ms: float


@dataclass(frozen=True, kw_only=True)
class ChainTerms:
    """A chain's part of a waterfall; the transfer of the results to the CPU is one without ops.

    `predicted_ms` and `measured_ms` are the chain's parts of the totals. `work_ms` is the predicted
    latency of each processor's nets or kernels, `measured_work_ms` the profiled one.
    """

    ops: tuple[str, ...]
    dim: Dim
    gpu_ratio: float
    bound_ms: float
    terms: tuple[WaterfallTerm, ...]
    predicted_ms: float
    measured_ms: float | None
    work_ms: Mapping[Processor, float]
    measured_work_ms: Mapping[Processor, float] | None = None


@dataclass(frozen=True, kw_only=True)
class WholeOp:
    """An op that a plan leaves whole on one processor, and what splitting it alone would change.

    `best_ms` is what the slower part takes at the best cut, at `gpu_ratio` along `dim`, and
    `saves_ms` how much less that is than `whole_ms`. It is the lossless bound and two losses:
    `cuts_ms`, since parts take more than their shares, and `variants_ms`, since they cannot have
    the whole op's kernel variant. `sharing_ms` is what transfers would take more than now, and
    `net_ms` how much longer the whole plan would. An op that cannot be split saves nothing: `dim`
    and `gpu_ratio` are None, and the rest 0.
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
    """The terms between totals by name, the first of which is the bound."""
    return tuple(
        WaterfallTerm(name, ms - before) for (_, before), (name, ms) in pairwise(totals_ms)
    )
