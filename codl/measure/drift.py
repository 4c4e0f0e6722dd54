"""Anchors: a few ops that are measured with every batch, to see how fast the machine is just then.

They are the same in every collection, so that a later run can be calibrated against the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, get_args

import numpy as np

from codl.ir import parse, to_text
from codl.ir.types import Processor
from codl.measure.dataset import AnchorRow, Dataset
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import op_tasks
from codl.measure.timing import WHOLE, Timed, level_s

#: Short ones that keep the arithmetic units busy from the cache, and one that waits for memory.
OPS = (
    "conv2d in=1x32x14x14 oc=32 kernel=1x1",
    "conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1",
    "fc in=1x1024x1x1 oc=512",
)
#: A batch was disturbed where a processor's anchors were slower than usual by more than this, and
#: by more than so many times what one batch differs from the next: some machines are never quiet.
TOLERANCE, ORDINARY = 0.03, 2.0
#: The usual level is this percentile of the levels of all batches: most may be disturbed.
USUAL = 20


@dataclass
class Anchors:
    """The anchors of one collection; `levels` are those of every batch, in milliseconds."""

    bench: Bench
    dataset: Dataset
    run: str
    prepared: tuple[Prepared, ...] = field(init=False)
    levels: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prepared = tuple(prepare(self.bench))

    @property
    def timed(self) -> list[Timed]:
        return [one.timed for one in self.prepared]

    def begin(self) -> None:
        """Forget the samples: a batch begins."""
        for one in self.prepared:
            one.timed.found.clear()

    def end(self, batch: int) -> None:
        """Keep the level of every anchor in a batch, and write it down."""
        rows = []
        for one in self.prepared:
            row: Any = one.row()
            self.levels.setdefault(key(one), []).append(row.latency_ms)
            rows.append(
                AnchorRow(
                    op=row.op,
                    processor=processor_of(one),
                    batch=batch,
                    latency_ms=row.latency_ms,
                    p20_ms=row.p20_ms,
                    p80_ms=row.p80_ms,
                    runs=row.runs,
                    run=self.run,
                )
            )
        self.dataset.anchors().append(*rows)

    def slowdown(self, processor: Processor) -> float:
        """By how much of the usual level a processor was slower in this batch; 0 in the first."""
        found = [
            1e3 * level_s(one.timed.found[WHOLE]) / self.usual_ms(*key(one)) - 1
            for one in self.prepared
            if processor_of(one) == processor and self.levels.get(key(one))
        ]
        return median(found) if found else 0.0

    def is_disturbed(self, processor: Processor) -> bool:
        return self.slowdown(processor) > max(TOLERANCE, ORDINARY * self.spread(processor))

    def spread(self, processor: Processor) -> float:
        """By which part of its level one batch usually differs from the next; 0 before the second.

        So what is slow for a while, one batch after another, does not become ordinary.
        """
        own = [levels for (_, side), levels in self.levels.items() if side == processor]
        steps = [float(np.median(np.abs(np.diff(np.log(x))))) for x in own if len(x) > 1]
        return median(steps) if steps else 0.0

    def usual_ms(self, op: str, processor: str) -> float:
        return float(np.percentile(self.levels[op, processor], USUAL))

    def to_json(self) -> dict[str, dict[str, float]]:
        """The usual levels in milliseconds, by processor and op, as the manifest keeps them."""
        found: dict[str, dict[str, float]] = {}
        for op, processor in self.levels:
            found.setdefault(processor, {})[op] = self.usual_ms(op, processor)
        return found


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
    found = []
    for op in map(parse, OPS):
        for processor in get_args(Processor):
            tasks = op_tasks(op, processor, bench.soc, [1.0])[:1]
            found += [one for task in tasks if isinstance(one := bench.prepare(task), Prepared)]
    return found


def key(one: Prepared) -> tuple[str, str]:
    """The op of an anchor and its processor."""
    return to_text(one.task.op), processor_of(one)  # type: ignore[union-attr]


def processor_of(one: Prepared) -> Processor:
    return one.task.processor  # type: ignore[union-attr]
