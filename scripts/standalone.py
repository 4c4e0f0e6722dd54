"""Pictures for documents, as SVG files: panels with one legend, and lines over axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

from markupsafe import Markup

from codl.report.charts import (
    AXIS,
    LETTER,
    MOST_TICKS,
    Key,
    Picture,
    Scale,
    axis,
    colours,
    mark,
    point,
    shortened,
    text,
)
from codl.report.text_table import TextSection, TextTable

#: Pixels that pictures are wide that stand alone, and how much larger a wide page shows them: their
#: letters can be read on a phone.
ALONE, LARGER = 480, 1.25
#: Letters of a title that such a picture has room for.
FITTING = 62
#: Pixels that a line of the legend takes.
LINE = 20
#: Ticks of ratio axes, from fine to coarse.
RATIOS = (
    [k / 10 for k in range(1, 31)],
    [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 20.0],
    [2.0**k for k in range(-7, 11)],
    [4.0**k for k in range(-5, 8)],
)


class RatioScale(Scale):
    """A logarithmic axis of ratios, with as many ticks as fit."""

    def part(self, value: float) -> float:
        return log(max(value, 1e-12) / self.low) / log(self.high / self.low)

    @property
    def ticks(self) -> list[float]:
        inside = [[t for t in ticks if self.low <= t <= self.high] for ticks in RATIOS]
        return next((ticks for ticks in inside if len(ticks) <= MOST_TICKS), inside[-1])


def below(title: str, panels: Sequence[Picture]) -> Picture:
    """Pictures below each other as one, each under its title, with one legend."""
    drawn, y, left = [], 0.0, max((panel.left for panel in panels), default=0)
    for panel in panels:
        short = shortened(panel.title, FITTING)
        drawn.append(text(short, -left, y + 8, class_="strong", tip=panel.title))
        drawn.append(
            mark(
                "svg", panel.marks, y=y + 28, width="100%", height=panel.height, overflow="visible"
            )
        )
        y += 28 + panel.height + 12
    first, *_ = panels
    tables = [panel.table for panel in panels if panel.table]
    sections = tuple(section for table in tables for section in table.sections)
    return replace(
        first, title=title, marks=Markup().join(drawn), height=y, left=left,
        right=max(panel.right for panel in panels),
        table=replace(tables[0], sections=sections) if tables else None,
        legend=tuple(dict.fromkeys(key for panel in panels for key in panel.legend)),
    )  # fmt: skip


def stand_alone(picture: Picture, width: int = ALONE) -> str:
    """An SVG file of a picture and its legend, for light pages and for dark ones."""
    x, y, keys = 0.0, 0, []
    for key in picture.legend:
        wide = 26 + LETTER * 1.08 * len(key.label)
        if x + wide > width:
            x, y = 0.0, y + LINE
        sample = mark("svg", key.sample, x=f"{x:g}", y=y, width=14, height=14, overflow="visible")
        keys += [sample, text(key.label, f"{x + 18:g}", y + 7)]
        x += wide
    top = y + LINE + 6 if picture.legend else 8
    plot = mark(
        "svg",
        picture.marks,
        x=picture.left,
        y=top,
        width=width - picture.left - picture.right,
        height=picture.height,
        overflow="visible",
    )
    style = Markup("<style>{}svg{{color:var(--ink)}}</style>").format(Markup(colours()))
    ground = mark("rect", width="100%", height="100%", class_="ground")
    heads = mark("title", picture.title) + mark("desc", _words(picture.table)) + style + ground
    height = top + picture.height
    box = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width} {height:g}",
        "width": f"{LARGER * width:g}",
        "height": f"{LARGER * height:g}",
    }
    content = heads + Markup().join(keys) + plot
    return str(mark("svg", content, role="img", class_="picture", **box)) + "\n"


def _words(table: TextTable | None) -> str:
    sections = table.sections if table else tuple[TextSection]()
    return "; ".join(", ".join(row.cells) for section in sections for row in section.rows)


@dataclass(frozen=True)
class Line:
    """Points of a line with their tips; drawn as a `line`, as `steps`, or as points alone.

    `class_` has the colour and what else tells it, `shape` is empty where only the line is drawn.
    """

    points: tuple[tuple[float, float, str], ...]
    class_: str
    shape: str = "circle"
    hollow: bool = False
    drawn: str = "line"


def lines(
    title: str,
    of: Sequence[Line],
    table: TextTable,
    *,
    names: tuple[str, str],
    x: Scale,
    y: Scale,
    height: float = 240,
    legend: Iterable[Key] = (),
    note: str = "",
    sources: Iterable[str] = (),
) -> Picture:
    """Lines and points over an x axis; `names` says what the axes are of."""
    top = 22.0
    drawn = [text(names[1], -40, 6, class_="faded")]
    plot = [axis(x, 0, height, names[0])]
    for tick in y.ticks:
        at = f"{height * (1 - y.part(tick)):.1f}"
        plot.append(mark("line", x1="0%", x2="100%", y1=at, y2=at, class_="grid"))
        plot.append(text(f"{tick:g}", -8, float(at), class_="faded", anchor="end"))
    for each in of:
        plot += _line(each, x, y, height)
    inner = mark("svg", Markup().join(plot), y=top, width="100%", height=height, overflow="visible")
    return Picture(
        title, Markup().join([*drawn, inner]), top + height + AXIS, tuple(legend), note,
        tuple(sources), left=44, right=16, table=table,
    )  # fmt: skip


def _line(each: Line, x: Scale, y: Scale, height: float) -> list[Markup]:
    corners = [(a, b) for a, b, _ in each.points]
    if each.drawn == "steps":
        risen = [(after, b) for (_, b), (after, _) in pairwise(corners)]
        both = zip(corners, [*risen, corners[-1]] if corners else [], strict=True)
        corners = [corner for pair in both for corner in pair]
    drawn = []
    if each.drawn != "points" and len(corners) > 1:
        drawn.append(line(corners, x, y, height, class_=each.class_))
    if each.shape:
        look = f"{each.class_} hollow" if each.hollow else each.class_
        drawn += [
            point(x(a), height * (1 - y.part(b)), class_=look, shape=each.shape, tip=tip)
            for a, b, tip in each.points
        ]
    return drawn


def line(
    points: Sequence[tuple[float, float]], x: Scale, y: Scale, height: float, *, class_: str
) -> Markup:
    """A line through points, as wide as the plot and `height` pixels high."""
    where = " ".join(f"{1000 * x.part(a):.1f},{1000 * (1 - y.part(b)):.1f}" for a, b in points)
    drawn = mark("polyline", points=where, class_=f"line {class_}")
    box = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none"}
    return mark("svg", drawn, width="100%", height=f"{height:g}", overflow="visible", **box)
