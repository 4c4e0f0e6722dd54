"""Anchors: a few ops that are measured with every batch, to see how fast the machine is just then.

They are the same in every collection, so that a later run can be calibrated against the first. The
target measures them; the collector keeps their levels, and says what is usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, get_args

import numpy as np

from codl.ir import parse, to_text
from codl.ir.types import PROCESSORS, Processor
from codl.measure.dataset import AnchorRow, Dataset
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import OpTask, op_tasks
from codl.measure.timing import ORDINARY, TOLERANCE, WHOLE, level_s

#: Short ones that keep the arithmetic units busy from the cache, and one that waits for memory.
OPS = (
    "conv2d in=1x32x14x14 oc=32 kernel=1x1",
    "conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1",
    "fc in=1x1024x1x1 oc=512",
)
#: The usual level is this percentile of the levels of all batches: most may be disturbed.
USUAL = 20


@dataclass
class Anchors:
    """The anchors of one collection; `levels` are those of every batch, in milliseconds."""

    levels: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, batch: Sequence[AnchorRow]) -> None:
        """Keep the levels of a batch."""
        for own in batch:
            self.levels.setdefault((own.op, own.processor), []).append(own.latency_ms)

    @property
    def tolerance(self) -> dict[str, float]:
        """By which part of its usual level each processor may be slower in a quiet batch."""
        return {p: max(TOLERANCE, ORDINARY * self.spread(p)) for p in PROCESSORS}

    def spread(self, processor: Processor) -> float:
        """By which part of its level one batch usually differs from the next; 0 before the second.

        So what is slow for a while, one batch after another, does not become ordinary.
        """
        own = [levels for (_, side), levels in self.levels.items() if side == processor]
        steps = [float(np.median(np.abs(np.diff(np.log(x))))) for x in own if len(x) > 1]
        return median(steps) if steps else 0.0

    @property
    def usual_ms(self) -> dict[tuple[str, str], float]:
        """The usual levels in milliseconds, by op and processor."""
        return {key: float(np.percentile(own, USUAL)) for key, own in self.levels.items()}

    def to_json(self) -> dict[str, dict[str, float]]:
        """The usual levels in milliseconds, by processor and op, as the manifest keeps them."""
        by_processor: dict[str, dict[str, float]] = {}
        for (op, processor), ms in self.usual_ms.items():
            by_processor.setdefault(processor, {})[op] = ms
        return by_processor


def calibration(runs: Mapping[str, Mapping[str, Any]], run: str) -> dict[str, float]:
    """How much slower each processor is in a run than in the first run with the same anchors.

    `runs` are those of a manifest; 1.0 in the first. The factor is the median over the anchors.
    """
    own = runs[run].get("anchors_ms", {})
    factors = {}
    for processor, levels in own.items():
        others = (other.get("anchors_ms", {}).get(processor, {}) for other in runs.values())
        first = next(known for known in others if known.keys() & levels.keys())
        ratios = [levels[op] / first[op] for op in levels.keys() & first.keys()]
        factors[processor] = round(median(ratios), 4)
    return factors


def first_ms(dataset: Dataset) -> dict[tuple[str, str], float]:
    """The usual levels of a dataset's first run that has anchors, in milliseconds, by `key`."""
    runs = dataset.manifest().get("runs", {}) if dataset.manifest_path.exists() else {}
    levels: dict[str, dict[str, float]] = next(
        (run["anchors_ms"] for run in runs.values() if run.get("anchors_ms")), {}
    )
    return {(op, side): ms for side, own in levels.items() for op, ms in own.items()}


def prepare(bench: Bench) -> list[Prepared]:
    """The anchors that the SoC can run, each in the default variant of either processor."""
    ready = []
    for op in map(parse, OPS):
        for processor in get_args(Processor):
            tasks = op_tasks(op, processor, bench.soc, [1.0])[:1]
            ready += [one for task in tasks if isinstance(one := bench.prepare(task), Prepared)]
    return ready


def level(one: Prepared) -> AnchorRow:
    """What an anchor took, by its samples so far; the collector counts the batches."""
    row, (op, processor) = one.row(), key(one)
    return AnchorRow(
        op=op,
        processor=processor,
        batch=0,
        latency_ms=row.latency_ms,
        p20_ms=row.p20_ms,
        p80_ms=row.p80_ms,
        runs=row.runs,
        run=row.run,
    )


def slowdown(
    anchors: Sequence[Prepared], processor: Processor, usual_ms: Mapping[tuple[str, str], float]
) -> float:
    """By how much of the usual level a processor is slower by these samples; 0 where none is."""
    slower = [
        1e3 * level_s(one.timed.found[WHOLE]) / usual_ms[key(one)] - 1
        for one in anchors
        if key(one)[1] == processor and key(one) in usual_ms
    ]
    return median(slower) if slower else 0.0


def key(one: Prepared) -> tuple[str, Processor]:
    """The op of an anchor and its processor."""
    assert isinstance(one.task, OpTask)
    return to_text(one.task.op), one.task.processor
