"""README's table of gains: a line for every place where models ran on each processor and on both.

A gain is over the better processor of the same run. Rows that are compared and doubtful are left
out, and the caption says so. Replayed rows are of scripts/paper/speedups.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from curves import CurveResult, load_curve

from codl.ir.records.results import EvalRow, doubts
from codl.report.results import EvalResult, SocSummary
from codl.report.text_table import NONE, Column, TextTable, digits, listed

CPU, GPU, BOTH = "cpu", "gpu", "codl"
#: A processor alone that takes so much longer than predicted makes every gain over it doubtful.
MOST_OFF = 1.2
#: Of a file of the paper's speedups.
FIGURE, REPLAYED = "speedups", "replayed"


@dataclass(frozen=True)
class Gain:
    """A model on two processors; `rival_ms` is of the fastest library that had all cores."""

    model: str
    soc: SocSummary
    cpu_ms: float
    gpu_ms: float
    both_ms: float
    rival_ms: float | None = None
    doubts: tuple[str, ...] = ()

    @property
    def better_ms(self) -> float:
        return min(self.cpu_ms, self.gpu_ms)

    @property
    def gain(self) -> float:
        """Over the better processor."""
        return self.better_ms / self.both_ms

    @property
    def bound(self) -> float:
        """The gain of two processors that share nothing."""
        return 1 + self.better_ms / max(self.cpu_ms, self.gpu_ms)


@dataclass(frozen=True)
class Place:
    """Gains that were measured, or predicted, in one place."""

    name: str
    file: str
    commit: str
    gains: tuple[Gain, ...]

    @property
    def sure(self) -> tuple[Gain, ...]:
        return tuple(gain for gain in self.gains if not gain.doubts)


def gains(evaluation: EvalResult) -> Iterator[Gain]:
    """Of every model that ran on each processor and on both."""
    for model in evaluation.models:
        rows = {row.strategy: row for row in evaluation.of(model) if row.latency_ms}
        if not {CPU, GPU, BOTH} <= {*rows}:
            continue
        cpu_ms, gpu_ms, both_ms = (_ms(rows[name]) for name in (CPU, GPU, BOTH))
        better = rows[CPU if cpu_ms < gpu_ms else GPU]
        unsure = tuple(
            f"{row.strategy}: {doubt}" for row in (better, rows[BOTH]) for doubt in _doubts(row)
        )
        for row in (rows[CPU], rows[GPU]):
            if row.predicted_ms and _ms(row) > MOST_OFF * row.predicted_ms:
                off = digits(_ms(row) / row.predicted_ms)
                unsure += (f"{row.strategy} took {off} times its prediction",)
        rival_ms = min((_ms(row) for row in rows.values() if row.peer), default=None)
        yield Gain(model, evaluation.soc, cpu_ms, gpu_ms, both_ms, rival_ms, unsure)


def _doubts(row: EvalRow) -> tuple[str, ...]:
    return doubts(row.latency_ms, row.cold_ms) if row.latency_ms else ()


def _ms(row: EvalRow) -> float:
    assert row.latency_ms is not None
    return row.latency_ms.level


def gains_content(files: Sequence[Path]) -> TextTable:
    """A line a place."""
    every = [place for file in files for place in _places(file)]
    left_out = ", ".join(
        f"{gain.model} of `{place.file}` ({gain.doubts[0]})"
        for place in every
        for gain in place.gains
        if gain.doubts
    )
    caption = [
        "Geometric means over models; the better processor of the same run is 1.",
        f"Left out as doubtful: {left_out}." if left_out else "",
    ]
    rows = [
        (place.name, len(place.sure), f"**{_mean(gain.gain for gain in place.sure)}**",
         _range([gain.gain for gain in place.sure]), _mean(gain.bound for gain in place.sure),
         _rival(place), f"[{place.commit[:7]}](docs/results/{place.file})")
        for place in every
        if place.sure
    ]  # fmt: skip
    figures = ("models", "gain", "least to most", "bound", "best library, all cores")
    heads = ("where", *map(Column, figures), "file")
    return TextTable.plain("Gains", heads, rows, filter(None, caption))


def _mean(values: Iterable[float]) -> str:
    return digits(geometric_mean(list(values)))


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(map(digits, (min(values), max(values)))))


def _rival(place: Place) -> str:
    over = [gain.better_ms / gain.rival_ms for gain in place.sure if gain.rival_ms]
    return _mean(over) if over else NONE


def _places(file: Path) -> Iterator[Place]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if content.get("figure") == FIGURE:
        yield from _replayed(content, file)
        return
    result = load_curve(file)
    if isinstance(result, EvalResult):
        yield Place(_machine(result), file.name, result.commit, tuple(gains(result)))
    elif isinstance(result, CurveResult):
        yield from _in_part(result, file)


def _machine(result: EvalResult) -> str:
    cpu, gpu = result.soc.cpu, result.soc.gpu
    if cpu is None or gpu is None:
        return result.soc.name
    pair = "a divided CPU" if result.soc.is_one_cpu else f"{cpu.name} beside {gpu.name}"
    return f"{pair} ({cpu.name}, {len(cpu.cores)} + {len(gpu.cores)} cores)"


def _in_part(result: CurveResult, file: Path) -> Iterator[Place]:
    """Each model at the size of the GPU at which both processors are most alike."""
    closest: dict[str, Gain] = {}
    for evaluation in result.evaluations:
        for gain in gains(evaluation) if not evaluation.soc.is_one_cpu else ():
            before = closest.get(gain.model)
            if before is None or (not before.doubts, before.bound) < (not gain.doubts, gain.bound):
                closest[gain.model] = gain
    names = [gain.soc.gpu.name for gain in closest.values() if gain.soc.gpu]
    beside = [gain.soc.cpu.name for gain in closest.values() if gain.soc.cpu]
    if closest:
        name = f"a part of a GPU ({listed(names)}) beside {listed(beside)}"
        yield Place(name, file.name, result.commit, tuple(closest.values()))


def _replayed(content: Mapping[str, object], file: Path) -> Iterator[Place]:
    """A phone, from what others measured on it."""
    by_model: dict[str, dict[str, float]] = {}
    for row in content["rows"]:  # type: ignore[attr-defined]
        if REPLAYED in row["source"]:
            by_model.setdefault(row["model"], {})[row["strategy"]] = row["latency_ms"]
    soc: Mapping[str, str] = content["soc"]  # type: ignore[assignment]
    of = SocSummary(name=soc["name"])
    whole = tuple(
        Gain(model, of, ms[CPU], ms[GPU], ms[BOTH])
        for model, ms in by_model.items()
        if {CPU, GPU, BOTH} <= {*ms}
    )
    if whole:
        name = f"{(soc.get('description') or soc['name']).partition(', by')[0]}, replayed"
        yield Place(name, file.name, str(content["commit"]), whole)
