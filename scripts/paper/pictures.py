"""Pictures of the paper's figures, from the files of the scripts beside this one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, ClassVar, Literal

from markupsafe import Markup

from codl.ir.plan import Chain
from codl.ir.types import PROCESSORS
from codl.report import charts
from codl.report.charts import (
    AXIS,
    Bar,
    Dot,
    Key,
    Part,
    Picture,
    Scale,
    axis,
    gutter,
    label,
    mark,
    point,
)
from codl.report.results import ResultFile, SocSummary, parse_as
from codl.report.text_table import TextTable, Value, digits

sys.path.append(str(Path(__file__).parents[1]))
from standalone import Line, below, lines

Rows = Sequence[Mapping[str, Value]]
MILLISECONDS, HEIGHT = "milliseconds", 160
SIDES = [Key(side, f"{side.upper()}, measured", "circle") for side in PROCESSORS]


@dataclass(frozen=True, kw_only=True)
class PaperResult(ResultFile):
    """A file of a script beside this one: rows of one of the paper's figures, on one SoC."""

    command: ClassVar[str] = "paper"
    figure: str
    soc: SocSummary
    rows: tuple[Mapping[str, str | int | float | None], ...]
    made_by: str = ""

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(row["source"]) for row in self.rows if row.get("source")))


def of_all(contents: Sequence[Mapping[str, Any]], title: str) -> Picture | None:
    """One picture of a figure's files: of all SoCs where these are rows in it, else of the first.

    None where a figure has a table alone.
    """
    results = [parse_as(PaperResult, content, title) for content in contents]
    if (draw := SUMMARIES.get(results[0].figure)) is not None:
        return draw(results)
    draw_first = FIGURES.get(results[0].figure)
    panels = list(draw_first(results[0])) if draw_first and results[0].rows else []
    return below(title, panels) if panels else None


def _ratios(result: PaperResult) -> Iterator[Picture]:
    """Latency of both parts of an op over the ratio, along each dimension: Fig. 5."""

    def ratio(row: Mapping[str, Value]) -> float | None:
        share = _number(row, "share")
        return share if share is None or row.get("processor") == "gpu" else 1 - share

    for (op, dim), rows in _grouped(result.rows, "op", "dim").items():
        title = f"{op}, along {dim}".removeprefix(", ")
        yield _over(title, rows, ratio, "the GPU's share", result, Scale(0.0, 1.0), "line")


def _grouped(rows: Rows, *keys: str) -> dict[tuple[str, ...], list[Mapping[str, Value]]]:
    """Rows by the values of some keys, in their order."""
    groups: dict[tuple[str, ...], list[Mapping[str, Value]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key) or "") for key in keys), []).append(row)
    return groups


def _staircase(result: PaperResult) -> Iterator[Picture]:
    """Latency over the number of output channels: Fig. 6."""

    def channels(row: Mapping[str, Value]) -> float | None:
        return _number(row, "channels")

    most = max((channels(row) or 0.0 for row in result.rows), default=1.0)
    op = next((str(row["op"]) for row in result.rows if row.get("op")), "")
    title, name = op.format(channels="...") or "Latency over output channels", "output channels"
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
    return lines(
        title,
        of,
        table_of(title, rows),
        names=(name, MILLISECONDS),
        x=x,
        y=Scale(0.0, 1.05 * most or 1.0),
        height=HEIGHT,
        legend=legend,
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


def table_of(title: str, rows: Rows) -> TextTable:
    """All of some rows, by their keys."""
    heads = tuple(dict.fromkeys(key for row in rows for key in row))
    cells = [[row.get(key) for key in heads] for row in rows]
    return TextTable.plain(title, heads, cells, filled=True)


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
    title = "Data sharing with chains and without"
    drawn = charts.bars(
        title,
        bars,
        name=MILLISECONDS,
        legend=[
            Key("share", "predicted"),
            *([Key("bound hollow", "measured", "diamond")] if measured else []),
        ],
        sources=("predicted", *result.sources),
    )
    yield replace(drawn, table=table_of(title, result.rows))


def _strips(result: PaperResult) -> Iterator[Picture]:
    """Every plan as a strip of its layers: Fig. 17 and 19."""
    for (model, strategy), rows in _grouped(result.rows, "model", "strategy").items():
        chains = [
            Chain(
                tuple(str(row["op"]) for row in layers),
                "OC" if layers[0]["dim"] == "OC" else "H",
                _number(layers[0], "gpu_ratio") or 0.0,
                {},
            )
            for layers in _grouped(rows, "chain").values()
        ]
        yield charts.strip(f"{model}: {strategy}", chains, sources=result.sources)


#: Shapes and colours of strategies and predictors, of which the paper has some.
LOOKS: Mapping[str, Key] = {
    "cpu": Key("cpu", "cpu", "circle"),
    "gpu": Key("gpu", "gpu", "circle"),
    "mulayer": Key("library", "mulayer", "down"),
    "codl-paper": Key("share", "codl-paper", "up"),
    "flops_linear": Key("library", "flops_linear, of muLayer", "down"),
    "codl_linear": Key("share", "codl_linear, of CoDL", "up"),
    "random_forest": Key("library", "random_forest, of nn-Meter", "square"),
    "gbdt": Key("library", "gbdt", "cross"),
    "codl": Key("both", "codl", "circle"),
}


def speedups(results: Sequence[PaperResult]) -> Picture:
    """Strategies over the CPU, a row a SoC: the geometric mean of models, and the whole range."""
    rows: list[tuple[str, str, float, float, float, int]] = []
    for result in results:
        ms = {
            (str(row["model"]), str(row["strategy"])): _number(row, "latency_ms") or 0.0
            for row in result.rows
            if not row.get("doubts")
        }
        for name in LOOKS:
            of = [(ms.get((model, "cpu")), value) for (model, s), value in ms.items() if s == name]
            over = [cpu / value for cpu, value in of if cpu and value]
            if over:
                mean = geometric_mean(over)
                rows.append((result.soc.name, name, mean, min(over), max(over), len(over)))
    heads = ("SoC", "strategy", "over the CPU", "least", "most", "models")
    return _by_soc(
        "Speedup over the CPU", rows, heads, name="times as fast as the CPU", at=1.0, what="times"
    )


def accuracy(results: Sequence[PaperResult]) -> Picture:
    """Predictors by SoC: rows within 10 %, of shapes held out, and at a whisker's end of rows."""
    rows: list[tuple[str, str, float, float, float, int]] = []
    for result in results:
        for (name,), of in _grouped(result.rows, "predictor").items():
            by_split = {split: _weighed(of, split) for split in ("shape", "row")}
            shape, row = by_split["shape"], by_split["row"]
            if shape is not None and row is not None:
                targets = len(_grouped(of, "target"))
                rows.append((result.soc.name, name, shape, min(shape, row), row, targets))
    heads = ("SoC", "predictor", "shapes held out (%)", "least", "rows held out (%)", "targets")
    name = "percent within 10 %; the line: 84, published, rows held out"
    return _by_soc("Accuracy of predictors", rows, heads, name=name, at=84.0, what="percent")


def _weighed(rows: Rows, split: str) -> float | None:
    """The accuracy of several targets, each with the weight of its rows."""
    parts = [
        (_number(row, "rows") or 0.0, _number(row, "acc10"))
        for row in rows
        if row.get("split") == split
    ]
    counted = [(count, acc10) for count, acc10 in parts if acc10 is not None]
    total = sum(count for count, _ in counted)
    return sum(count * acc10 for count, acc10 in counted) / total if total else None


#: Pixels between dots of a row, and of a row with one dot.
DOT, ROOM = 9, 20


@dataclass(frozen=True, kw_only=True)
class RangeDot(Dot):
    """A dot with a whisker from `low` to `high`."""

    low: float
    high: float


def _dot(dot: RangeDot, scale: Scale, y: float) -> Markup:
    """A point with its whisker."""
    shape = point(scale(dot.value), y, class_=dot.class_, shape=dot.shape, tip=dot.tip)
    if dot.high <= dot.low:
        return shape
    ends = {"x1": scale(dot.low), "x2": scale(dot.high), "y1": f"{y:g}", "y2": f"{y:g}"}
    return mark("line", class_=f"whisker {dot.class_}", **ends) + shape


def dots(
    title: str,
    rows: Sequence[tuple[str, Sequence[RangeDot]]],
    table: TextTable,
    *,
    name: str,
    at: float | None = None,
    legend: Iterable[Key] = (),
    note: str = "",
    sources: Iterable[str] = (),
) -> Picture:
    """A picture of dots in rows; a line marks `at`."""
    ends = [end for _, of_row in rows for dot in of_row for end in (dot.low, dot.value, dot.high)]
    values = [end for end in (*ends, at) if end is not None]
    low, high = min(values, default=0.5), max(values, default=2.0)
    room = 0.04 * (high - low or 1.0)
    scale = Scale(max(0.0, low - room), high + room)
    heights = [DOT * (max(len(of_row), 1) - 1) + ROOM for _, of_row in rows]
    bottom = float(sum(heights))
    drawn = [axis(scale, 0, bottom, name)]
    if at is not None:
        drawn.append(mark("line", x1=scale(at), x2=scale(at), y1=0, y2=bottom, class_="zero"))
    top = 0.0
    for (of, of_row), height in zip(rows, heights, strict=True):
        drawn.append(label(of, top + height / 2))
        if top:
            drawn.append(mark("line", x1="0%", x2="100%", y1=top, y2=top, class_="grid"))
        for number, dot in enumerate(of_row):
            drawn.append(_dot(dot, scale, top + ROOM / 2 + DOT * number))
        top += height
    return Picture(
        title, Markup().join(drawn), bottom + AXIS, tuple(legend), note, tuple(sources),
        left=gutter(of for of, _ in rows), right=12, table=table,
    )  # fmt: skip


def _by_soc(
    title: str,
    rows: Sequence[tuple[str, str, float, float, float, int]],
    heads: tuple[str, ...],
    *,
    name: str,
    at: float,
    what: str,
) -> Picture:
    """Dots with whiskers, the SoCs below each other."""
    socs = dict.fromkeys(soc for soc, *_ in rows)
    by_soc = [
        (
            soc,
            [
                RangeDot(
                    value,
                    key.class_,
                    f"{of}, {who}: {digits(value)} {what}",
                    key.shape,
                    low=low,
                    high=high,
                )
                for of, who, value, low, high, _ in rows
                if of == soc
                for key in [LOOKS[who]]
            ],
        )
        for soc in socs
    ]
    legend = [key for who, key in LOOKS.items() if any(row[1] == who for row in rows)]
    table = TextTable.plain(title, heads, rows)
    return dots(title, by_soc, table, name=name, at=at, legend=legend)


FIGURES: Mapping[str, Callable[[PaperResult], Iterator[Picture]]] = {
    "fig05": _ratios,
    "fig06": _staircase,
    "fig17": _strips,
    "fig20": _sharing,
}
SUMMARIES: Mapping[str, Callable[[Sequence[PaperResult]], Picture]] = {
    "speedups": speedups,
    "predictors": accuracy,
}
