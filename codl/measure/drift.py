"""Anchors: a few ops that are measured with every batch, to see how fast the machine is just then.

They are the same in every collection, so that a later run can be calibrated against the first. The
target measures them, and divides the drift of a batch out of its rows; the collector keeps their
levels, and says what is usual.

Three more stream what no cache holds, on each processor and on the CPU while the GPU does so too:
there the memory's own pace shows, and a neighbour who takes a part of it. Nothing is divided by it,
since rows wait for the memory more or less; it is told.

Where a machine drifts (clocks, heat, a neighbour), its anchors agree on how much. Where they do
not, something else went on that hits one op more than another: nothing can be divided out then, and
the batch is disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, get_args

from codl.errors import CodlError
from codl.ir import parse, to_text
from codl.ir.ops.pooling import Pool2d
from codl.ir.types import PROCESSORS, Processor
from codl.measure.dataset import AnchorRow, Dataset, Row
from codl.measure.runner import Bench, BesideTask, Prepared
from codl.measure.tasks import OpTask, op_tasks
from codl.measure.timing import ORDINARY, WHOLE, AnchorTime
from codl.records.soc import Soc
from codl.records.statistic import level

#: Short ones that keep the arithmetic units busy from the cache, and one that waits for memory.
OPS = (
    "conv2d in=1x32x14x14 oc=32 kernel=1x1",
    "conv2d in=1x64x28x28 oc=64 kernel=3x3 pad=1",
    "fc in=1x1024x1x1 oc=512",
)
_SHORT = frozenset(to_text(parse(op)) for op in OPS)
#: Anchors that scatter by no more agree: a drift of a tenth hits one of them some percent more than
#: another, and much less is left when it is divided out.
SCATTER = 0.05


#: How the names of streams' paces end, of the CPU, the GPU and the CPU beside a busy GPU; and how
#: the last one is written among anchors.
MEMORY, BOTH, BESIDE = " memory", "both", " beside"


@dataclass(frozen=True)
class Drift:
    """How many times slower a processor was than by its reference, and how far anchors `scatter`.

    The scatter is the median distance of an anchor's own factor, as a part of the factor.
    """

    factor: float = 1.0
    scatter: float = 0.0

    @classmethod
    def of(cls, factors: Sequence[float]) -> Drift:
        """By the factors of the anchors; none where there are none."""
        if not factors:
            return cls()
        middle = median(factors)
        return cls(middle, median(abs(each / middle - 1) for each in factors))


@dataclass
class Anchors:
    """The anchors of one collection; `levels` are those of every batch, in milliseconds."""

    levels: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, batch: Sequence[AnchorRow]) -> None:
        """Keep the levels of a batch."""
        for row in batch:
            self.levels.setdefault((row.op, row.processor), []).append(row.latency_ms)

    @property
    def tolerance(self) -> dict[str, float]:
        """How far the anchors of each processor may scatter in a quiet batch."""
        return {p: max(SCATTER, ORDINARY * self.scatter(p)) for p in PROCESSORS}

    def scatter(self, processor: Processor) -> float:
        """How far they usually scatter from one batch to the next; 0 before the second.

        So what hits some of them for a while, one batch after another, does not become ordinary.
        """
        anchors = [
            levels
            for (op, side), levels in self.levels.items()
            if side == processor and not is_stream(op)
        ]
        batches = range(1, min(map(len, anchors), default=0))
        scatters = [
            Drift.of([each[at] / each[at - 1] for each in anchors]).scatter for at in batches
        ]
        return median(scatters) if scatters else 0.0

    @property
    def reference_ms(self) -> dict[tuple[str, str], float]:
        """The levels of the first batch, by op and processor; rows are as of its speed."""
        return {key: levels[0] for key, levels in self.levels.items()}

    @property
    def usual_ms(self) -> dict[tuple[str, str], float]:
        """The usual levels in milliseconds, by op and processor: the level of all batches."""
        return {key: level(levels) for key, levels in self.levels.items()}


def by_processor(levels_ms: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Levels by processor and op, as the manifest keeps them."""
    levels: dict[str, dict[str, float]] = {}
    for (op, processor), ms in levels_ms.items():
        levels.setdefault(processor, {})[op] = ms
    return levels


def calibration(runs: Mapping[str, Mapping[str, Any]], run: str) -> dict[str, float]:
    """How much slower the rows of a run are, on each processor, than is usual in the first run.

    `runs` are those of a manifest; the first is the first with the same anchors.
    """
    usual = runs[run].get("anchors_ms", {})
    factors = {}
    for processor, levels in runs[run].get("reference_ms", usual).items():
        others = (other.get("anchors_ms", {}).get(processor, {}) for other in runs.values())
        first = next(known_ms for known_ms in others if known_ms.keys() & levels.keys())
        ratios = [
            levels[op] / first[op] for op in levels.keys() & first.keys() if not is_stream(op)
        ]
        factors[processor] = round(Drift.of(ratios).factor, 4)
    return factors


def first_ms(dataset: Dataset) -> dict[tuple[str, str], float]:
    """The usual levels of the first run that has anchors of a processor, in ms, by `key`."""
    runs = dataset.manifest()["runs"] if dataset.manifest_path.exists() else {}
    levels: dict[str, dict[str, float]] = {}
    for run in runs.values():
        for side, by_op in run.get("anchors_ms", {}).items():
            levels.setdefault(side, by_op)
    return {(op, side): ms for side, by_op in levels.items() for op, ms in by_op.items()}


def prepare(bench: Bench) -> list[Prepared]:
    """The anchors that the SoC can run, each in the default variant of either processor."""
    anchors = map(bench.prepare, tasks_of(bench.soc))
    return [*(each for each in anchors if isinstance(each, Prepared)), *bench.streams()]


def tasks_of(soc: Soc) -> list[OpTask]:
    """Those that are short, as tasks."""
    return [
        task
        for op in map(parse, OPS)
        for processor in get_args(Processor)
        for task in op_tasks(op, processor, soc, [1.0])[:1]
    ]


def row_of(anchor: Prepared) -> AnchorRow:
    """What an anchor took, by its samples so far; the collector counts the batches."""
    row, (op, processor) = anchor.row(), key(anchor)
    common = {field.name: getattr(row, field.name) for field in fields(Row)}
    return AnchorRow(op=op, processor=processor, batch=0, **common)


def drift_of(
    anchors: Sequence[Prepared],
    processor: Processor,
    reference_ms: Mapping[tuple[str, str], float],
) -> Drift:
    """The drift of a processor by the samples so far; none where there is no reference."""
    return Drift.of(
        [
            1e3 * level(anchor.timed.taken_s[WHOLE]) / reference_ms[key(anchor)]
            for anchor in anchors
            if key(anchor)[1] == processor
            and key(anchor) in reference_ms
            and not is_stream(key(anchor)[0])
        ]
    )


def key(anchor: Prepared) -> tuple[str, Processor]:
    """The op of an anchor, beside another or not, and its processor."""
    assert isinstance(anchor.task, OpTask)
    beside = BESIDE if isinstance(anchor.task, BesideTask) else ""
    return to_text(anchor.task.op) + beside, anchor.task.processor


def is_stream(op: str) -> bool:
    """Whether an anchor's op streams."""
    return op.startswith(f"{Pool2d.kind} ")


def is_anchor(op: str) -> bool:
    """Whether an anchor may have such an op, as text."""
    try:
        return op in _SHORT or isinstance(parse(op.removesuffix(BESIDE)), Pool2d)
    except CodlError:
        return False


def slowdown(
    anchors: Sequence[AnchorTime], usual_ms: Mapping[tuple[str, str], float]
) -> dict[str, float] | None:
    """By processor, how many times longer its anchors take than usual.

    None where no anchor has a usual latency: a dataset was imported, or there is none. Where other
    programs or the heat slow a processor down by a tenth, its plans take a tenth longer than
    predicted, and no predictor is to blame. Streams say the same of the memory, as `cpu memory`,
    `gpu memory` and `both memory`.
    """
    ratios: dict[str, list[float]] = {}
    for anchor in anchors:
        if (anchor.op, anchor.processor) in usual_ms:
            ratio = anchor.latency_ms / usual_ms[anchor.op, anchor.processor]
            ratios.setdefault(_pace_of(anchor), []).append(ratio)
    return {processor: Drift.of(each).factor for processor, each in ratios.items()} or None


def _pace_of(anchor: AnchorTime) -> str:
    """Whose pace an anchor shows."""
    if not is_stream(anchor.op):
        return anchor.processor
    return (BOTH if anchor.op.endswith(BESIDE) else anchor.processor) + MEMORY
