"""Anchors: fixed ops measured in every batch to track the machine's speed, and its drift.

Anchors are the same in every collection, so later runs are calibrated against the first. The target
divides a batch's drift out of its rows; the collector keeps the anchors' usual latencies.

If a machine drifts (clocks, heat, another program), its anchors agree on a factor. If they
disagree, a disturbance hits some ops more than others: the batch is disturbed, and keeps its
latencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from codl.ir import parse, to_text
from codl.ir.records.statistic import level
from codl.ir.types import PROCESSORS, Processor
from codl.measure.dataset import Dataset
from codl.measure.timing import ORDINARY, AnchorTime

#: Anchor ops: two short ones that compute from the cache, and one bound by memory.
OPS = (
    "conv2d in=1x32x14x14 oc=32 kernel=1x1",
    "conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1",
    "fc in=1x1024x1x1 oc=512",
)
TEXTS = frozenset(to_text(parse(op)) for op in OPS)
#: Largest scatter of agreeing anchors: under a drift of 10 % they differ by some percent, of which
#: little remains in rows.
SCATTER = 0.05


@dataclass(frozen=True)
class Drift:
    """The median slowdown factor of a processor's anchors, and their median relative deviation."""

    factor: float = 1.0
    scatter: float = 0.0

    @classmethod
    def of(cls, factors: Sequence[float]) -> Drift:
        """The drift by the anchors' `factors`: their median; 1 without anchors."""
        if not factors:
            return cls()
        middle = median(factors)
        return cls(middle, median(abs(each / middle - 1) for each in factors))


@dataclass
class Anchors:
    """The anchors of a run, with their latencies (ms) in each batch, by op and processor."""

    levels: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, batch: Sequence[AnchorTime]) -> None:
        for anchor in batch:
            self.levels.setdefault((anchor.op, anchor.processor), []).append(anchor.latency_ms)

    @property
    def tolerance(self) -> dict[str, float]:
        """Largest scatter of the anchors of each processor in a quiet batch."""
        return {p: max(SCATTER, ORDINARY * self.scatter(p)) for p in PROCESSORS}

    def scatter(self, processor: Processor) -> float:
        """Median scatter between successive batches; 0 before the second.

        A disturbance that lasts for several batches does not raise it.
        """
        anchors = [levels for (_, side), levels in self.levels.items() if side == processor]
        batches = range(1, min(map(len, anchors), default=0))
        scatters = [
            Drift.of([each[at] / each[at - 1] for each in anchors]).scatter for at in batches
        ]
        return median(scatters) if scatters else 0.0

    @property
    def reference_ms(self) -> dict[tuple[str, str], float]:
        """Latencies (ms) of the first batch by op and processor, the reference speed of rows."""
        return {key: levels[0] for key, levels in self.levels.items()}

    @property
    def usual_ms(self) -> dict[tuple[str, str], float]:
        """Level of all batches' latencies (ms) by op and processor."""
        return {key: level(levels) for key, levels in self.levels.items()}


def by_processor(levels_ms: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Levels (ms) by processor, then op, as in the manifest."""
    levels: dict[str, dict[str, float]] = {}
    for (op, processor), ms in levels_ms.items():
        levels.setdefault(processor, {})[op] = ms
    return levels


def calibration(runs: Mapping[str, Mapping[str, Any]], run: str) -> dict[str, float]:
    """The slowdown of each processor in a run, relative to the usual level of the first run.

    `runs` are the manifest's; the first run is the first one with common anchors.
    """
    usual = runs[run].get("anchors_ms", {})
    factors = {}
    for processor, levels in runs[run].get("reference_ms", usual).items():
        others = (other.get("anchors_ms", {}).get(processor, {}) for other in runs.values())
        first = next(known_ms for known_ms in others if known_ms.keys() & levels.keys())
        ratios = [levels[op] / first[op] for op in levels.keys() & first.keys()]
        factors[processor] = round(Drift.of(ratios).factor, 4)
    return factors


def first_ms(dataset: Dataset) -> dict[tuple[str, str], float]:
    """Usual anchor latencies (ms) by op and processor, from each processor's first run."""
    runs = dataset.manifest()["runs"] if dataset.manifest_path.exists() else {}
    levels: dict[str, dict[str, float]] = {}
    for run in runs.values():
        for side, by_op in run.get("anchors_ms", {}).items():
            levels.setdefault(side, by_op)
    return {(op, side): ms for side, by_op in levels.items() for op, ms in by_op.items()}


def slowdown(
    anchors: Sequence[AnchorTime], usual_ms: Mapping[tuple[str, str], float]
) -> dict[str, float] | None:
    """Slowdown of the anchors relative to their usual latency, by processor.

    A processor slower by a tenth takes a tenth longer than predicted. None if no anchor has a usual
    latency, as without a dataset or with an imported one.
    """
    ratios: dict[str, list[float]] = {}
    for anchor in anchors:
        if (anchor.op, anchor.processor) in usual_ms:
            ratio = anchor.latency_ms / usual_ms[anchor.op, anchor.processor]
            ratios.setdefault(anchor.processor, []).append(ratio)
    return {processor: Drift.of(each).factor for processor, each in ratios.items()} or None
