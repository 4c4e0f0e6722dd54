"""The gain of co-execution against the ratio of the processors' speeds: tables and a picture.

They are of the files that scripts/bench/stage.py writes; scripts/render_docs.py puts both into
docs/results/curve.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import log2
from pathlib import Path
from statistics import geometric_mean
from typing import Any, ClassVar

from standalone import Line, RatioScale, below, lines

from codl import files
from codl.ir.records.results import EvalRow
from codl.report.charts import SHAPES, Key, Picture, Scale, shortened
from codl.report.results import (
    UNMEASURED,
    EvalResult,
    Result,
    ResultFile,
    SocSummary,
    parse_as,
    parse_result,
)
from codl.report.tables import LATENCY, origin_lines, warnings
from codl.report.text_table import Column, TextRow, TextSection, TextTable, digits, listed

#: The better one of the first two is what the third is compared with.
CPU, GPU, PLAN = "cpu", "gpu", "codl"
STRATEGIES = (CPU, GPU, PLAN)
SPEEDS = "GPU speed over CPU speed"


@dataclass(frozen=True, kw_only=True)
class CurveResult(ResultFile):
    """A file of scripts/bench/stage.py: evaluations on SoCs of several sizes.

    Of a SoC there are several where a later run went on.
    """

    command: ClassVar[str] = "curve"
    evaluations: tuple[EvalResult, ...]


def load_curve(path: Path) -> CurveResult | Result:
    """A curve, or whatever result a command of codl wrote; raises `InvalidFileError`."""
    return parse_curve(files.read_json(path), path)


def parse_curve(content: Any, path: str | Path) -> CurveResult | Result:
    """Check the content of a file."""
    if isinstance(content, dict) and content.get("command") == CurveResult.command:
        return parse_as(CurveResult, content, path)
    return parse_result(content, path)


@dataclass(frozen=True)
class Latencies:
    """Milliseconds on either processor alone and on both."""

    cpu_ms: float
    gpu_ms: float
    plan_ms: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the CPU the GPU is."""
        return self.cpu_ms / self.gpu_ms

    @property
    def gain(self) -> float:
        """Over the better processor."""
        return min(self.cpu_ms, self.gpu_ms) / self.plan_ms


@dataclass(frozen=True)
class CurvePoint:
    """A model on a SoC of some size; `predicted` is None where something had no prediction."""

    soc: SocSummary
    model: str
    measured: Latencies
    predicted: Latencies | None
    source: str

    @property
    def bound(self) -> float:
        """The gain of both processors side by side without loss."""
        return lossless(self.measured.ratio)

    @property
    def distance(self) -> float:
        """From processors that are equally fast."""
        return abs(log2(self.measured.ratio))


@dataclass(frozen=True)
class Family:
    """Points of one pair of processors in several sizes, in the order of the file."""

    title: str
    points: tuple[CurvePoint, ...]

    @property
    def models(self) -> Mapping[str, tuple[CurvePoint, ...]]:
        """The points of each model, those of the slowest GPU first."""
        names = dict.fromkeys(point.model for point in self.points)
        ordered = sorted(self.points, key=lambda point: point.measured.ratio)
        return {name: tuple(p for p in ordered if p.model == name) for name in names}

    @property
    def closest(self) -> tuple[CurvePoint, ...]:
        """Of each model the point at which both processors are most alike."""
        return tuple(
            min(points, key=lambda point: point.distance) for points in self.models.values()
        )


def lossless(ratio: float) -> float:
    """The most that two processors can gain over the better one."""
    return 1 + min(ratio, 1 / ratio)


def families(results: Sequence[CurveResult]) -> tuple[Family, ...]:
    """The points of all files, those of one pair of processors together."""
    by_title: dict[str, list[CurvePoint]] = {}
    for (soc, model), rows in _measured(results).items():
        if point := _point(soc, model, rows):
            by_title.setdefault(_title(soc), []).append(point)
    return tuple(Family(title, tuple(points)) for title, points in by_title.items())


def _title(soc: SocSummary) -> str:
    """The pair of processors, whatever its size."""
    cpu, gpu = soc.cpu, soc.gpu
    if cpu is None or gpu is None:
        return soc.name
    if soc.is_one_cpu:
        return f"{cpu.name}, its cores divided between ncnn and {gpu.platform}"
    return f"{gpu.name} in part beside {cpu.name}"


def _size(soc: SocSummary) -> str:
    """What tells it from others of its family."""
    return _described(soc).removeprefix(f"{soc.gpu.name}, " if soc.gpu else "")


def _described(soc: SocSummary) -> str:
    return soc.description.strip().rstrip(".") or soc.name


def _evaluations(results: Sequence[CurveResult]) -> list[EvalResult]:
    return [evaluation for result in results for evaluation in result.evaluations]


def _measured(
    results: Sequence[CurveResult],
) -> dict[tuple[SocSummary, str], Mapping[str, EvalRow]]:
    """The rows of each model on each SoC by strategy, the last ones where there are several."""
    return {
        (evaluation.soc, model): {row.strategy: row for row in evaluation.of(model)}
        for evaluation in _evaluations(results)
        for model in evaluation.models
    }


def _point(soc: SocSummary, model: str, rows: Mapping[str, EvalRow]) -> CurvePoint | None:
    """None where one of the three failed."""
    present = [rows[name] for name in STRATEGIES if name in rows]
    levels = [row.latency_ms.level for row in present if row.latency_ms]
    if len(levels) < len(STRATEGIES) or min(levels) <= 0:
        return None
    predicted = [row.predicted_ms for row in present if row.predicted_ms]
    is_whole = len(predicted) == len(STRATEGIES)
    sources = [row.source for row in present]
    return CurvePoint(
        soc=soc,
        model=model,
        measured=Latencies(*levels),
        predicted=Latencies(*predicted) if is_whole else None,
        source=listed([one for one in sources if one in UNMEASURED]) or sources[-1],
    )


def curve_content(results: Sequence[CurveResult]) -> TextTable:
    """A line for every model on every SoC."""
    columns = (
        Column("model", numeric=False),
        *(Column(f"`{name}` (ms)") for name in STRATEGIES),
        Column("predicted (ms)"),
        Column(SPEEDS),
        Column("gain"),
        Column("predicted gain"),
        Column("bound"),
    )
    sections: dict[str, list[TextRow]] = {}
    for (soc, model), rows in _measured(results).items():
        sections.setdefault(_described(soc), []).append(_row(soc, model, rows))
    caption = (
        f"{LATENCY} All of a model on a SoC in one run, in turns.",
        "Gains are over the better processor; bound: that of both side by side, "
        "1 + min(r, 1/r) for a ratio r of their speeds.",
        *map(_summary, families(results)),
        *_origins(results),
    )
    text_sections = tuple(TextSection(heading, tuple(rows)) for heading, rows in sections.items())
    title = "Gain against the ratio of speeds"
    return TextTable(title, columns, text_sections, caption)


def _row(soc: SocSummary, model: str, rows: Mapping[str, EvalRow]) -> TextRow:
    point = _point(soc, model, rows)
    if point is None:
        reasons = [row.reason for row in rows.values() if row.reason]
        return TextRow((model,), failure=listed(reasons) or "no reason recorded")
    measured, predicted = point.measured, point.predicted
    cells = (
        model,
        *map(digits, (measured.cpu_ms, measured.gpu_ms, measured.plan_ms)),
        digits(predicted.plan_ms if predicted else None),
        digits(measured.ratio),
        digits(measured.gain),
        digits(predicted.gain if predicted else None),
        digits(point.bound),
    )
    return TextRow(cells)


def _summary(family: Family) -> str:
    gains = [point.measured.gain for point in family.closest]
    bounds = [point.bound for point in family.closest]
    least = min(family.points, key=lambda point: point.measured.gain)
    return (
        f"{family.title}: where the two are closest, the geometric mean of {len(gains)} models is "
        f"{digits(geometric_mean(gains))} times the better one, {digits(geometric_mean(bounds))} "
        f"at most; the least at any size is {digits(least.measured.gain)}, of {least.model} "
        f"({_size(least.soc)})."
    )


def _origins(results: Sequence[CurveResult]) -> tuple[str, ...]:
    """What was measured on what, when and by which codl."""
    evaluations = _evaluations(results)
    lines = [_driver(evaluation.soc) for evaluation in evaluations if evaluation.soc.gpu]
    if any(evaluation.soc.is_one_cpu for evaluation in evaluations):
        lines.append("Divided cores say nothing about a CPU beside a GPU.")
    lines += warnings([row.source for evaluation in evaluations for row in evaluation.rows])
    for result in results:
        commits = [evaluation.commit for evaluation in result.evaluations if evaluation.commit]
        lines += origin_lines(replace(result, commit=listed(commits) or result.commit))
    return tuple(dict.fromkeys(lines))


def _driver(soc: SocSummary) -> str:
    gpu = soc.gpu
    return f"{_title(soc)}: {gpu.platform} {gpu.driver}." if gpu else ""


#: As many shapes as there are: no model is told by its colour.
HEIGHT = 250
#: Parts of the ratio beyond the outermost points, and gain beyond the least and the largest.
MARGIN, ABOVE = 1.2, 0.05


def curve(results: Sequence[CurveResult]) -> Picture:
    """A panel for every pair of processors: filled what was measured, hollow what was predicted.

    Both stand at the measured ratio. A line is the bound.
    """
    return below("Gain of co-execution against the ratio of speeds", pictures(results))


def pictures(results: Sequence[CurveResult]) -> list[Picture]:
    """A picture for every pair of processors."""
    shown = families(results)
    models = list(dict.fromkeys(point.model for family in shown for point in family.points))
    shapes = dict(zip(models, cycle(SHAPES), strict=False))
    return [_panel(family, shapes) for family in shown]


def _panel(family: Family, shapes: Mapping[str, str]) -> Picture:
    ratios = [point.measured.ratio for point in family.points]
    gains = [gain for point in family.points for gain in _gains(point)]
    x = RatioScale(min(1.0, *ratios) / MARGIN, max(1.0, *ratios) * MARGIN)
    y = Scale(min(1.0, *gains) - ABOVE, max(2.0, *gains) + ABOVE)
    through = sorted({1.0, *(x.low * (x.high / x.low) ** (k / 60) for k in range(61))})
    bound = Line(tuple((r, lossless(r), "") for r in through), "bound dashed", shape="")
    of = [bound]
    for model, points in family.models.items():
        of += _lines(model, points, shapes[model])
    rows = tuple(
        (family.title, point.model, _size(point.soc), point.measured.ratio, point.measured.gain,
         point.predicted.gain if point.predicted else None, point.bound, point.source)
        for point in family.points
    )  # fmt: skip
    heads = ("processors", "model", "size", SPEEDS, "gain", "predicted gain", "bound",
             "source")  # fmt: skip
    legend = [Key("both", shortened(model), shape) for model, shape in shapes.items()]
    legend += [
        Key("both hollow", "predicted", "circle"),
        Key("bound dashed", "bound", "line"),
    ]
    sources = tuple(dict.fromkeys(point.source for point in family.points))
    note = f" ({', '.join(set(sources) & {*UNMEASURED})})" if {*sources} & {*UNMEASURED} else ""
    return lines(
        f"{family.title}{note}",
        of,
        TextTable.plain(family.title, heads, rows),
        names=(SPEEDS, "gain over the better processor"),
        x=x,
        y=y,
        height=HEIGHT,
        legend=legend,
        sources=sources,
    )


def _lines(model: str, points: Sequence[CurvePoint], shape: str) -> list[Line]:
    """The points of a model, and what was predicted of them."""
    measured = tuple(
        (p.measured.ratio, p.measured.gain,
         f"{model}, {_size(p.soc)}: {digits(p.measured.gain)} at {digits(p.measured.ratio)}")
        for p in points
    )  # fmt: skip
    predicted = tuple(
        (p.measured.ratio, p.predicted.gain, f"{model}: predicted {digits(p.predicted.gain)}")
        for p in points
        if p.predicted
    )
    return [
        Line(predicted, "both", shape, hollow=True, drawn="points"),
        Line(measured, "both thin", shape),
    ]


def _gains(point: CurvePoint) -> list[float]:
    return [latencies.gain for latencies in (point.measured, point.predicted) if latencies]
