"""The drawing of pictures: marks that carry their values, as small SVG without a library.

Places along the x axis are parts of the width, in percent, and all else is in pixels: so a picture
is as wide as its page, on paper and on a phone, while letters and lines keep their size. Colours
are classes with one meaning each: `cpu`, `gpu`, `both` (what runs on both), `share` (data sharing),
`wait`, `library` and `bound`. picture.css says which they are, on light pages and on dark ones.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from io import StringIO
from math import ceil, floor, log, log10
from urllib.parse import quote

from markupsafe import Markup

from codl.report.text_table import NONE, Column, TextRow, TextSection, TextTable, count, digits

#: What a cell of a picture's table holds.
Value = str | float | None
#: Pixels of a letter in labels, of the room beside a plot, and of the widest labels.
LETTER, BESIDE, WIDEST = 7.0, 58, 140
#: Pixels that the marks of an axis and its label take.
TICKS, LABEL = 20, 18
#: Numbers of an axis, and those of ratios, from fine to coarse.
MOST_TICKS = 7
RATIOS = (
    [k / 10 for k in range(1, 31)],
    [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 20.0],
    [2.0**k for k in range(-7, 11)],
    [4.0**k for k in range(-5, 8)],
)
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def mark(tag: str, content: str | Markup = "", *, tip: str = "", **attributes: object) -> Markup:
    """An element; browsers show the `tip` where the mouse is. `class_` and `text_anchor` are names
    of attributes, and what is None is left out.
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
    """Letters whose middle line is at `y`."""
    where = None if anchor == "start" else anchor
    return mark(
        "text", content, tip=tip, x=x, y=f"{y + 4:g}", dx=dx, class_=class_, text_anchor=where
    )


def shortened(name: str, most: int = 18) -> str:
    """A name that fits beside a picture."""
    name = " ".join(name.split())
    return name if len(name) <= most else name[: most - 1] + ELLIPSIS


def gutter(labels: Iterable[str]) -> int:
    """Pixels that the labels of rows need at the left of a plot."""
    return int(min(max((LETTER * len(name) for name in labels), default=0) + 12, WIDEST))


def label(name: str, y: float) -> Markup:
    """The name of a row, at the left of the plot."""
    short = shortened(name)
    return text(short, -8, y, anchor="end", tip=name if short != name else "")


@dataclass(frozen=True)
class Scale:
    """From values to places along an axis: parts of the plot, from 0 to 1; `log` scales ratios."""

    low: float
    high: float
    log: bool = False

    def part(self, value: float) -> float:
        if self.log:
            return log(max(value, 1e-12) / self.low) / log(self.high / self.low)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def __call__(self, value: float) -> str:
        """The place as an x attribute has it."""
        return f"{100 * min(max(self.part(value), 0.0), 1.0):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """Round values, seven at most; of ratios as fine as there is room for."""
        if self.log:
            inside = [[t for t in ticks if self.low <= t <= self.high] for ticks in RATIOS]
            return next((ticks for ticks in inside if len(ticks) <= MOST_TICKS), inside[-1])
        span = (self.high - self.low) or 1.0
        rough = 10 ** floor(log10(span / 5))
        step = next(rough * k for k in (1, 2, 5, 10) if span / (rough * k) <= MOST_TICKS - 1)
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def axis(scale: Scale, top: float, bottom: float, name: str) -> Markup:
    """The lines of an x axis over the plot, its numbers, and what it is of."""
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


#: A point's shapes, in a box of 10 pixels around it: no strategy is told by its colour alone.
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
    """A shape at a place."""
    path = mark("path", tip=tip, d=SHAPES[shape], class_=f"point {class_}")
    return mark("svg", path, x=x, y=f"{y:g}", overflow="visible")


@dataclass(frozen=True)
class Data:
    """What a picture shows, as a table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @classmethod
    def filled(cls, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> Data:
        """Without the columns that have nothing in them."""
        lines = list(rows)
        kept = [at for at in range(len(columns)) if any(r[at] not in (None, "") for r in lines)]
        heads = tuple(columns[at] for at in kept)
        return cls(heads, tuple(tuple(row[at] for at in kept) for row in lines))

    def table(self, title: str) -> TextTable:
        numeric = [
            any(isinstance(row[at], float | int) for row in self.rows)
            and not any(isinstance(row[at], str) and row[at] for row in self.rows)
            for at in range(len(self.columns))
        ]
        heads = tuple(
            Column(name, numeric=is_number)
            for name, is_number in zip(self.columns, numeric, strict=True)
        )
        rows = tuple(TextRow(tuple(map(cell_text, row))) for row in self.rows)
        return TextTable(title, heads, (TextSection("", rows),))

    @property
    def link(self) -> str:
        """A link to it as CSV, which needs nothing but the page."""
        file = StringIO()
        rows = [["" if value is None else value for value in row] for row in self.rows]
        csv.writer(file, lineterminator="\n").writerows([self.columns, *rows])
        return f"data:text/csv;charset=utf-8,{quote(file.getvalue())}"


def cell_text(value: Value) -> str:
    if isinstance(value, str):
        return value or NONE
    return count(value) if isinstance(value, int) else digits(value)


@dataclass(frozen=True)
class Key:
    """A line of a legend: the class and the shape of marks, and what they are."""

    class_: str
    label: str
    shape: str = "square"

    @property
    def sample(self) -> Markup:
        """Such a mark in a box of 14 pixels."""
        if self.shape == "line":
            return mark("line", x1=0, x2=14, y1=7, y2=7, class_=f"line {self.class_}")
        return point("7", 7, class_=self.class_, shape=self.shape)


@dataclass(frozen=True)
class Picture:
    """Marks of a plot that is `height` pixels high, with room for `left` and `right` pixels beside
    it; `note` must be read with it, and `sources` are those of its numbers. `shown` is a table
    that takes the place of one of all its `data`.
    """

    title: str
    marks: Markup
    height: float
    data: Data
    legend: tuple[Key, ...] = ()
    note: str = ""
    sources: tuple[str, ...] = ()
    left: float = 0
    right: float = BESIDE
    shown: TextTable | None = None

    @property
    def table(self) -> TextTable:
        return self.shown or self.data.table(self.title)

    @property
    def file(self) -> str:
        """What its CSV is called."""
        letters = (letter if letter.isalnum() else "-" for letter in self.title.lower())
        return "-".join(filter(None, "".join(letters).split("-"))) + ".csv"


def colours() -> str:
    """The style sheet of pictures."""
    return resources.files("codl.report").joinpath("picture.css").read_text(encoding="utf-8")
