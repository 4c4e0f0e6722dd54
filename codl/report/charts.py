"""The forms of pictures: dots in rows, bars, lines over an axis, a plan's strip, timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from math import ceil, floor, log10
from typing import Any

from markupsafe import Markup

from codl.ir.plan import Chain
from codl.ir.records.results import TimeSpan
from codl.ir.types import PROCESSORS
from codl.report.results import COMPUTING, SHARING
from codl.report.text_table import TextTable, digits

#: Pixels of a letter, of the margin beside a plot, and of the widest label.
LETTER, BESIDE, WIDEST = 7.0, 58, 140
#: Pixels of the ticks of an axis, and of its label.
TICKS, LABEL = 20, 18
#: The most ticks of an axis.
MOST_TICKS = 7
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def mark(tag: str, content: str | Markup = "", *, tip: str = "", **attributes: object) -> Markup:
    """An SVG element; browsers show the `tip` under the pointer.

    `class_` and `text_anchor` stand for the attributes; attributes of None are omitted.
    """
    named = Markup().join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), value)
        for name, value in attributes.items()
        if value is not None
    )
    told = Markup("<title>{}</title>").format(tip) if tip else Markup()
    return Markup("<{}{}>{}{}</{}>").format(tag, named, told, content, tag)


def text(
    content: str, x: str | float, y: float, *, class_: str | None = None, anchor: str = "start",
    dx: float | None = None, tip: str = "",
) -> Markup:  # fmt: skip
    """Text, vertically centred at `y`."""
    where = None if anchor == "start" else anchor
    return mark(
        "text", content, tip=tip, x=x, y=f"{y + 4:g}", dx=dx, class_=class_, text_anchor=where
    )


def shortened(name: str, most: int = 18) -> str:
    """A name shortened to at most `most` letters."""
    name = " ".join(name.split())
    return name if len(name) <= most else name[: most - 1] + ELLIPSIS


def gutter(labels: Iterable[str]) -> int:
    """Pixels that row labels need to the left of a plot."""
    return int(min(max((LETTER * len(name) for name in labels), default=0) + 12, WIDEST))


def label(name: str, y: float) -> Markup:
    """The name of a row, at the left of the plot."""
    short = shortened(name)
    return text(short, -8, y, anchor="end", tip=name if short != name else "")


@dataclass(frozen=True)
class Scale:
    """Maps values to positions along an axis, from 0 to 1."""

    low: float
    high: float

    def part(self, value: float) -> float:
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def __call__(self, value: float) -> str:
        """The position of a value as an x attribute."""
        return f"{100 * min(max(self.part(value), 0.0), 1.0):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """Round values for ticks, at most seven."""
        span = (self.high - self.low) or 1.0
        rough = 10 ** floor(log10(span / 5))
        step = next(rough * k for k in (1, 2, 5, 10) if span / (rough * k) <= MOST_TICKS - 1)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def axis(scale: Scale, top: float, bottom: float, name: str) -> Markup:
    lines = [
        mark("line", x1=scale(tick), x2=scale(tick), y1=top, y2=bottom, class_="grid")
        for tick in scale.ticks
    ]
    numbers = [
        text(f"{tick:g}", scale(tick), bottom + 11, class_="faded", anchor="middle")
        for tick in scale.ticks
    ]
    named = text(name, "100%", bottom + TICKS + 9, class_="faded", anchor="end")
    return Markup().join([*lines, *numbers, named])


#: Shapes of points in a box of 10 pixels: no strategy is distinguished by colour alone.
SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "diamond": "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "square": "M-3.8-3.8h7.6v7.6h-7.6z",
    "up": "M0-4.8L5 4H-5z",
    "down": "M0 4.8L5-4H-5z",
    "bar": "M-2-5.5h4v11h-4z",
    "cross": "M-5-1.8h3.2v-3.2h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2z",
    "star": "M0-5.6L1.7-1.7L5.6 0L1.7 1.7L0 5.6L-1.7 1.7L-5.6 0L-1.7-1.7z",
}


def point(x: str, y: float, *, class_: str, shape: str = "circle", tip: str = "") -> Markup:
    path = mark("path", tip=tip, d=SHAPES[shape], class_=f"point {class_}")
    return mark("svg", path, x=x, y=f"{y:g}", overflow="visible")


@dataclass(frozen=True)
class Key:
    """A line of a legend: class and shape of a mark, and its meaning."""

    class_: str
    label: str
    shape: str = "square"

    @property
    def sample(self) -> Markup:
        if self.shape == "line":
            return mark("line", x1=0, x2=14, y1=7, y2=7, class_=f"line {self.class_}")
        return point("7", 7, class_=self.class_, shape=self.shape)


@dataclass(frozen=True)
class Picture:
    """A picture: SVG marks of a plot `height` pixels high.

    `left` and `right` are margins in pixels. `note` is a caveat, and `sources` are the sources of
    the numbers. `table` has the numbers where the page has no other table of them.
    """

    title: str
    marks: Markup
    height: float
    legend: tuple[Key, ...] = ()
    note: str = ""
    sources: tuple[str, ...] = ()
    left: float = 0
    right: float = BESIDE
    table: TextTable | None = None


def colours() -> str:
    return resources.files("codl.report").joinpath("picture.css").read_text(encoding="utf-8")


#: Pixels of a bar, between bars, and of a heading.
BAR, STEP, HEADING = 13, 21, 26
#: Pixels for the numbers of an axis, and for its label.
AXIS = TICKS + LABEL


@dataclass(frozen=True)
class Dot:
    """A value with its tooltip."""

    value: float
    class_: str
    tip: str
    shape: str = "circle"


@dataclass(frozen=True)
class Part:
    """A piece of a bar, with its tooltip."""

    start: float
    end: float
    class_: str
    tip: str


@dataclass(frozen=True)
class Bar:
    """A bar of parts with number, points and whisker; a `heading` starts a group of bars."""

    label: str
    parts: tuple[Part, ...]
    text: str
    points: tuple[Dot, ...] = ()
    whisker: tuple[float, float] | None = None
    heading: str = ""


def bars(
    title: str,
    rows: Sequence[Bar],
    *,
    name: str,
    low: float = 0.0,
    at: tuple[float, str] | None = None,
    legend: Iterable[Key] = (),
    note: str = "",
    sources: Iterable[str] = (),
) -> Picture:
    """A picture of bars on one axis from `low`; a dashed line with a tooltip marks `at`."""
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
        title, Markup().join(drawn), y + AXIS, tuple(legend), note, tuple(sources),
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
    drawn += [
        point(scale(dot.value), middle, class_=dot.class_, shape=dot.shape, tip=dot.tip)
        for dot in bar.points
    ]
    return Markup().join(drawn)


#: Pixels of the strip, of a lane of chains below it, and of a lane of a timeline.
STRIP, LANE, WORK = 44, 9, 20
DIMENSIONS = {"H": "rows (H)", "OC": "channels (OC)", "N": "images (N)"}


def strip(title: str, chains: Sequence[Chain], *, sources: Iterable[str] = ()) -> Picture:
    """A picture of layers, the CPU's share above the GPU's, over lanes of split chains."""
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
        title, Markup().join(drawn), bottom + AXIS, tuple(legend), sources=tuple(sources),
        left=gutter(["layers", *lanes]), right=12,
        table=TextTable.plain(title, heads, rows, filled=True),
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


#: Spans shorter than this part of a timeline are not drawn.
LEAST_SEEN = 2e-4


def timelines(
    title: str, tracks: Sequence[Track], *, note: str = "", sources: Iterable[str] = ()
) -> Picture:
    """A picture of spans per processor: full lanes compute, thin ones share data, lines wait."""
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
    kinds = [
        Key("cpu", "the CPU computes"), Key("gpu", "the GPU computes"),
        Key("share", "data sharing"), Key("wait", "waiting"),
    ]  # fmt: skip
    return Picture(
        title, Markup().join(drawn), y + AXIS, tuple(kinds), note, tuple(sources),
        left=left, right=12,
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
