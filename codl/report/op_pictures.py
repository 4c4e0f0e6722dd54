"""Pictures of single ops: kernels beside each other, and the paper's figures of parts of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from codl.ir.types import PROCESSORS
from codl.report import charts
from codl.report.charts import DIMENSIONS, Bar, Dot, Line, Part
from codl.report.drawing import Data, Key, Picture, Scale, Value
from codl.report.results import BenchResult, PaperResult
from codl.report.text_table import digits

Rows = Sequence[Mapping[str, Value]]
MILLISECONDS = "milliseconds"
SIDES = [Key(side, f"{side.upper()}, measured", "circle") for side in PROCESSORS]


def kernels(result: BenchResult) -> Picture | None:
    """Every variant of every op, the fastest first."""
    if not result.ops:
        return None
    bars, before = [], ""
    for row in result.ops:
        tip = f"{row.variant}: {digits(row.latency_ms)} ms, {digits(row.gflops)} GFLOP/s"
        ends = (row.p20_ms, row.p80_ms) if row.p80_ms else None
        part = Part(0.0, row.latency_ms, row.processor, tip)
        heading = "" if row.op == before else row.op
        bars.append(Bar(row.variant, (part,), digits(row.latency_ms), (), ends, heading))
        before = row.op
    heads = ("op", "variant", "processor", "latency (ms)", "p80 (ms)", "GFLOP/s")
    rows = tuple(
        (r.op, r.variant, r.processor, r.latency_ms, r.p80_ms or None, r.gflops) for r in result.ops
    )
    return charts.bars(
        "Kernels beside each other",
        bars,
        Data.filled(heads, rows),
        name=MILLISECONDS,
        legend=[Key(side, f"on the {side.upper()}") for side in PROCESSORS],
        note="Whiskers reach to the 80th percentile.",
        sources=(result.source,),
    )


def figures(result: PaperResult) -> Iterator[Picture]:
    """Of a figure of the paper, where this can draw it."""
    draw = FIGURES.get(result.figure)
    if draw is not None and result.rows:
        yield from draw(result)


def _ratios(result: PaperResult) -> Iterator[Picture]:
    """Latency of both parts of an op over the ratio, along each dimension: Fig. 5."""

    def ratio(row: Mapping[str, Value]) -> float | None:
        share = _number(row, "share")
        return share if share is None or row.get("processor") == "gpu" else 1 - share

    for dim in dict.fromkeys(row.get("dim") for row in result.rows):
        rows = [row for row in result.rows if row.get("dim") == dim]
        along = DIMENSIONS.get(str(dim), str(dim))
        title = f"Latency over the ratio, cut along {along}"
        yield _over(title, rows, ratio, "the GPU's share", result, Scale(0.0, 1.0), "line")


def _staircase(result: PaperResult) -> Iterator[Picture]:
    """Latency over the number of output channels: Fig. 6."""

    def channels(row: Mapping[str, Value]) -> float | None:
        return _number(row, "channels")

    most = max((channels(row) or 0.0 for row in result.rows), default=1.0)
    title, name = "Latency over output channels", "output channels"
    yield _over(title, result.rows, channels, name, result, Scale(0.0, most), "steps")


def _over(
    title: str,
    rows: Rows,
    place: Callable[[Mapping[str, Value]], float | None],
    name: str,
    result: PaperResult,
    x: Scale,
    drawn: Literal["line", "steps"],
) -> Picture:
    """Both processors: measured by points or steps, predicted by a thin line."""
    of: list[Line] = []
    for side in PROCESSORS:
        mine = [row for row in rows if row.get("processor") == side]
        predicted = _points(mine, place, "predicted_ms", f"{side.upper()} predicted")
        measured = _points(mine, place, "measured_ms", f"{side.upper()} measured")
        of.append(Line(predicted, f"{side} thin dashed", ""))
        if drawn == "steps":
            of.append(Line(measured, side, "", drawn="steps"))
        of.append(Line(measured, side, drawn="points"))
    most = max((point[1] for each in of for point in each.points), default=1.0)
    legend = [*SIDES, *(Key(f"{side} dashed", "predicted", "line") for side in PROCESSORS)]
    op = next((str(row["op"]) for row in rows if row.get("op")), "")
    return charts.lines(
        title,
        of,
        data_of(rows),
        names=(name, MILLISECONDS),
        x=x,
        y=Scale(0.0, 1.05 * most or 1.0),
        legend=legend,
        note=op,
        sources=result.sources,
    )


def _points(
    rows: Rows, place: Callable[[Mapping[str, Value]], float | None], key: str, what: str
) -> tuple[tuple[float, float, str], ...]:
    pairs = [(place(row), _number(row, key)) for row in rows]
    told = [(x, ms) for x, ms in pairs if x is not None and ms is not None]
    return tuple((x, ms, f"{what}: {digits(ms)} ms at {x:g}") for x, ms in sorted(told))


def _number(row: Mapping[str, Value], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or isinstance(value, str) else float(value)


def data_of(rows: Rows) -> Data:
    """All of some rows, by their keys."""
    heads = tuple(dict.fromkeys(key for row in rows for key in row))
    return Data.filled(heads, [[row.get(key) for key in heads] for row in rows])


def _sharing(result: PaperResult) -> Iterator[Picture]:
    """Data sharing of plans with chains and without: Fig. 20."""
    bars, before, measured = [], None, False
    for row in result.rows:
        predicted, ran = _number(row, "predicted_sharing_ms"), _number(row, "measured_sharing_ms")
        if predicted is None:
            continue
        plan, heading = str(row.get("plan")), "" if row.get("model") == before else row.get("model")
        part = Part(0.0, predicted, "share", f"{plan}: {digits(predicted)} ms predicted")
        tip = f"{plan}: {digits(ran)} ms measured"
        points = () if ran is None else (Dot(ran, "bound hollow", tip, "diamond"),)
        bars.append(Bar(plan, (part,), digits(predicted), points, None, str(heading or "")))
        before, measured = row.get("model"), measured or ran is not None
    yield charts.bars(
        "Data sharing with chains and without",
        bars,
        data_of(result.rows),
        name=MILLISECONDS,
        legend=[
            Key("share", "predicted"),
            *([Key("bound hollow", "measured", "diamond")] if measured else []),
        ],
        sources=("predicted", *result.sources),
    )


FIGURES: Mapping[str, Callable[[PaperResult], Iterator[Picture]]] = {
    "fig05": _ratios,
    "fig06": _staircase,
    "fig20": _sharing,
}
