"""The forms of pictures: dots in rows, bars, lines over an axis, a plan's strip, timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from codl.ir.plan import Chain
from codl.ir.types import PROCESSORS
from codl.records.results import TimeSpan
from codl.report.drawing import (
    LABEL,
    LETTER,
    TICKS,
    Data,
    Key,
    Picture,
    Scale,
    axis,
    gutter,
    label,
    mark,
    point,
    text,
)
from codl.report.results import COMPUTING, SHARING
from codl.report.text_table import digits

#: Pixels from a dot to the next in a row, of a row of one, of a bar and from bar to bar, and of a
#: heading.
DOT, ROOM, BAR, STEP, HEADING = 9, 20, 13, 21, 26
#: The room of axis numbers and of the axis's label.
AXIS = TICKS + LABEL


@dataclass(frozen=True)
class Dot:
    """A value with its spread and its tip."""

    value: float
    class_: str
    tip: str
    shape: str = "circle"
    low: float | None = None
    high: float | None = None


def dots(
    title: str,
    rows: Sequence[tuple[str, Sequence[Dot]]],
    data: Data,
    *,
    name: str,
    log: bool = False,
    at: float | None = None,
    band: tuple[float, float] | None = None,
    pitch: float = DOT,
    legend: Iterable[Key] = (),
    note: str = "",
    sources: Iterable[str] = (),
) -> Picture:
    """Dots with whiskers, in rows; a line `at` a reference value, in a `band` around it.

    The dots of a row stand `pitch` pixels below each other.
    """
    ends = [end for _, of_row in rows for dot in of_row for end in (dot.low, dot.value, dot.high)]
    scale = _around([end for end in ends if end is not None], at, band, log=log)
    heights = [pitch * (max(len(of_row), 1) - 1) + ROOM for _, of_row in rows]
    bottom = float(sum(heights))
    drawn = [axis(scale, 0, bottom, name)]
    if band:
        wide = f"{100 * (scale.part(band[1]) - scale.part(band[0])):.2f}%"
        box: dict[str, Any] = {"x": scale(band[0]), "width": wide, "y": 0, "height": bottom}
        drawn.insert(0, mark("rect", class_="band", **box))
    if at is not None:
        drawn.append(mark("line", x1=scale(at), x2=scale(at), y1=0, y2=bottom, class_="zero"))
    top = 0.0
    for (of, of_row), height in zip(rows, heights, strict=True):
        drawn.append(label(of, top + height / 2))
        if top:
            drawn.append(mark("line", x1="0%", x2="100%", y1=top, y2=top, class_="grid"))
        for number, dot in enumerate(of_row):
            drawn.append(_dot(dot, scale, top + ROOM / 2 + pitch * number))
        top += height
    return Picture(
        title, Markup().join(drawn), bottom + AXIS, data, tuple(legend), note, tuple(sources),
        left=gutter(of for of, _ in rows), right=12,
    )  # fmt: skip


def _around(
    values: Sequence[float],
    at: float | None,
    band: tuple[float, float] | None,
    *,
    log: bool,
) -> Scale:
    every = [*values, *([] if at is None else [at]), *(band or ())]
    low, high = min(every, default=0.5), max(every, default=2.0)
    if log:
        return Scale(max(low, 0.05) / 1.08, min(high, 20.0) * 1.08, log=True)
    room = 0.04 * (high - low or 1.0)
    return Scale(max(0.0, low - room), high + room)


def _dot(dot: Dot, scale: Scale, y: float) -> Markup:
    shape = point(scale(dot.value), y, class_=dot.class_, shape=dot.shape, tip=dot.tip)
    if dot.low is None or dot.high is None or dot.high <= dot.low:
        return shape
    ends = {"x1": scale(dot.low), "x2": scale(dot.high), "y1": f"{y:g}", "y2": f"{y:g}"}
    return mark("line", class_=f"whisker {dot.class_}", **ends) + shape


@dataclass(frozen=True)
class Part:
    """A piece of a bar, and its tip."""

    start: float
    end: float
    class_: str
    tip: str


@dataclass(frozen=True)
class Bar:
    """A bar of parts, with the number at its right, and points and a whisker on it.

    The `heading` begins a group.
    """

    label: str
    parts: tuple[Part, ...]
    text: str
    points: tuple[Dot, ...] = ()
    whisker: tuple[float, float] | None = None
    heading: str = ""


def bars(
    title: str,
    rows: Sequence[Bar],
    data: Data,
    *,
    name: str,
    low: float = 0.0,
    at: tuple[float, str] | None = None,
    legend: Iterable[Key] = (),
    note: str = "",
    sources: Iterable[str] = (),
) -> Picture:
    """Bars below each other on one axis from `low` on; a dashed line is `at` a value with a tip."""
    ends = [part.end for bar in rows for part in bar.parts]
    ends += [dot.value for bar in rows for dot in bar.points]
    ends += [bar.whisker[1] for bar in rows if bar.whisker] + ([at[0]] if at else [])
    scale = Scale(low, 1.02 * (max(ends, default=0.0) - low) + low or 1.0)
    drawn, y, left = [], 0.0, gutter(bar.label for bar in rows)
    widest = round(max((1.15 * LETTER * len(bar.text) for bar in rows), default=0))
    for bar in rows:
        if bar.heading:
            drawn.append(text(bar.heading, -left + 4, y + 14, class_="strong"))
            y += HEADING
        drawn.append(_bar(bar, scale, y + 3))
        drawn.append(text(bar.text, "100%", y + 3 + BAR / 2, anchor="end", dx=widest + 8))
        y += STEP
    if at:
        ends_at: dict[str, Any] = {"x1": scale(at[0]), "x2": scale(at[0]), "y1": 0, "y2": y}
        drawn.append(mark("line", tip=at[1], class_="line bound dashed", **ends_at))
    drawn.insert(0, axis(scale, 0, y, name))
    return Picture(
        title, Markup().join(drawn), y + AXIS, data, tuple(legend), note, tuple(sources),
        left=left, right=max(widest + 10, 24),
    )  # fmt: skip


def _bar(bar: Bar, scale: Scale, y: float) -> Markup:
    middle = y + BAR / 2
    drawn = [label(bar.label, middle)]
    drawn += [
        mark(
            "rect", tip=part.tip, x=scale(part.start), y=y, height=BAR, class_=part.class_,
            width=f"{max(0.1, 100 * (scale.part(part.end) - scale.part(part.start))):.2f}%",
        )
        for part in bar.parts
    ]  # fmt: skip
    if bar.whisker and bar.whisker[1] > bar.whisker[0]:
        ends = {"x1": scale(bar.whisker[0]), "x2": scale(bar.whisker[1])}
        drawn.append(mark("line", y1=middle, y2=middle, class_="whisker", **ends))
    drawn += [_dot(dot, scale, middle) for dot in bar.points]
    return Markup().join(drawn)


#: Pixels of a strip's ratios, of a lane below them and of one of a timeline.
STRIP, LANE, WORK = 44, 9, 20
DIMENSIONS = {"H": "rows (H)", "OC": "channels (OC)", "N": "images (N)"}


def strip(title: str, chains: Sequence[Chain], *, sources: Iterable[str] = ()) -> Picture:
    """The network as a strip of its layers: the CPU's part above the GPU's, and below, in a lane a
    dimension, the chains that are cut along it.
    """
    count = sum(len(chain.ops) for chain in chains)
    scale = Scale(0.0, float(max(count, 1)))
    cut = [chain.dim for chain in chains if 0 < chain.gpu_ratio < 1]
    dims = [dim for dim in DIMENSIONS if dim in cut]
    drawn, rows, first = [], [], 0
    for number, chain in enumerate(chains, start=1):
        last, tip = first + len(chain.ops), _chain_words(number, chain)
        place: dict[str, Any] = {
            "x": scale(first),
            "width": f"{100 * len(chain.ops) / max(count, 1):.3f}%",
        }
        shared = STRIP * (1 - chain.gpu_ratio)
        pieces = (("cpu", 0.0, shared), ("gpu", shared, STRIP - shared))
        drawn += [
            mark("rect", tip=tip, y=f"{y:g}", height=f"{high:g}", class_=side, **place)
            for side, y, high in pieces
            if high
        ]
        if 0 < chain.gpu_ratio < 1:
            y = STRIP + 8 + (LANE + 5) * dims.index(chain.dim)
            drawn.append(mark("rect", tip=tip, y=y, height=LANE, class_="both", rx=3, **place))
        if first:
            x = scale(first)
            drawn.append(mark("line", class_="gap", x1=x, x2=x, y1=0, y2=STRIP))
        rows += [
            (op, str(number), _where(chain), chain.gpu_ratio, _variant(chain, op, "cpu"),
             _variant(chain, op, "gpu"))
            for op in chain.ops
        ]  # fmt: skip
        first = last
    lanes = [DIMENSIONS[dim] for dim in dims]
    drawn += [label(of, STRIP + 8 + (LANE + 5) * at + LANE / 2) for at, of in enumerate(lanes)]
    drawn.append(label("layers", STRIP / 2))
    bottom = STRIP + 8 + (LANE + 5) * len(dims)
    drawn.append(axis(scale, bottom, bottom, "layer, in order"))
    heads = ("layer", "chain", "cut along", "GPU ratio", "CPU variant", "GPU variant")
    legend = [Key("cpu", "the CPU's part"), Key("gpu", "the GPU's part")]
    legend += [Key("both", "a chain, cut along one dimension")] if dims else []
    return Picture(
        title, Markup().join(drawn), bottom + AXIS, Data.filled(heads, rows), tuple(legend),
        sources=tuple(sources), left=gutter(["layers", *lanes]), right=12,
    )  # fmt: skip


def _chain_words(number: int, chain: Chain) -> str:
    ops = f"{len(chain.ops)} layers" if len(chain.ops) > 1 else "one layer"
    return f"Chain {number}, {ops}: {chain.label}. {_where(chain)}, GPU ratio {chain.gpu_ratio:g}."


def _where(chain: Chain) -> str:
    if 0 < chain.gpu_ratio < 1:
        return DIMENSIONS[chain.dim]
    return "GPU only" if chain.gpu_ratio else "CPU only"


def _variant(chain: Chain, op: str, side: str) -> str:
    return chain.variants.get(op, {}).get(side, "")


@dataclass(frozen=True)
class Track:
    """Spans of one inference; `heading` stands above the lanes of its processors."""

    heading: str
    spans: tuple[TimeSpan, ...]


#: Spans that are a smaller part of a timeline cannot be seen.
LEAST_SEEN = 2e-4


def timelines(
    title: str, tracks: Sequence[Track], *, note: str = "", sources: Iterable[str] = ()
) -> Picture:
    """What each processor did when: computing fills a lane, data sharing less, waiting a line."""
    end = max((span.end_ms for track in tracks for span in track.spans), default=0.0)
    scale = Scale(0.0, end or 1.0)
    drawn, y = [], 0.0
    left = gutter(PROCESSORS) + 8
    for track in tracks:
        drawn.append(text(track.heading, -left + 4, y + 13, class_="strong"))
        y += HEADING
        for side in PROCESSORS:
            drawn.append(label(side.upper(), y + WORK / 2))
            lane = [span for span in track.spans if span.processor == side]
            drawn += [_span(span, scale, y) for span in lane if span.ms > LEAST_SEEN * end]
            y += WORK + 4
        y += 4
    drawn.insert(0, axis(scale, 0, y, "milliseconds"))
    rows = tuple(
        (track.heading, span.processor, span.kind, span.label, span.start_ms, span.end_ms)
        for track in tracks
        for span in track.spans
    )
    heads = ("timeline", "processor", "kind", "label", "start (ms)", "end (ms)")
    kinds = [
        Key("cpu", "the CPU computes"), Key("gpu", "the GPU computes"),
        Key("share", "data sharing"), Key("wait", "waiting"),
    ]  # fmt: skip
    return Picture(
        title, Markup().join(drawn), y + AXIS, Data(heads, rows), tuple(kinds), note,
        tuple(sources), left=left, right=12,
    )  # fmt: skip


def _span(span: TimeSpan, scale: Scale, y: float) -> Markup:
    class_, high = "wait", 0.2 * WORK
    if span.kind in COMPUTING:
        class_, high = str(span.processor), float(WORK)
    elif span.kind in SHARING:
        class_, high = "share", 0.7 * WORK
    return mark(
        "rect",
        tip=f"{span.processor.upper()}, {span.kind}: {span.label}, {digits(span.ms)} ms from "
        f"{digits(span.start_ms)} ms on",
        x=scale(span.start_ms),
        y=f"{y + (WORK - high) / 2:g}",
        width=f"{100 * span.ms / (scale.high - scale.low):.2f}%",
        height=f"{high:g}",
        class_=class_,
    )
