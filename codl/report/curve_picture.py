"""The gain of co-execution against the ratio of the processors' speeds, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle
from math import ceil, floor, log2
from typing import Any

import numpy as np

from codl.report.content import digits
from codl.report.curves import SPEEDS, CurvePoint, Family, families, lossless, words
from codl.report.plots import WIDTH, shortened
from codl.report.results import UNMEASURED, CurveResult
from codl.report.svg import INK, style, to_svg

#: Okabe and Ito's colours, and as many markers: no model is told by its colour alone.
LOOKS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#8A8A8A", "X"),
)
HEIGHT = 3.1
#: Doublings of the ratio beyond the outermost points, and gain beyond the least and the largest.
MARGIN, ABOVE = 0.25, 0.05


def curve_svg(results: Sequence[CurveResult], *, key: str, title: str) -> str:
    """A panel for every pair of processors: filled what was measured, hollow what was predicted.

    Both stand at the measured ratio. A line is the gain without loss.
    """
    from matplotlib.figure import Figure

    found = families(results)
    models = list(dict.fromkeys(point.model for own in found for point in own.points))
    looks = dict(zip(models, cycle(LOOKS), strict=False))
    with style():
        rows = max(len(found), 1)
        figure = Figure(figsize=(WIDTH, 0.7 + HEIGHT * rows), layout="constrained")
        for panel, family in zip(figure.subplots(rows, squeeze=False)[:, 0], found, strict=False):
            _panel(panel, family, looks)
        _legend(figure, looks)
        told = words(found)
        return to_svg(figure, key=key, title=title, description=told, tips=_tips(found))


def _panel(axes: Any, family: Family, looks: dict[str, tuple[str, str]]) -> None:
    ends = [log2(point.measured.ratio) for point in family.points]
    low, high = min(0.0, *ends) - MARGIN, max(0.0, *ends) + MARGIN
    ratios = 2 ** np.union1d(np.linspace(low, high, 81), [0.0])
    axes.set_xscale("log", base=2)
    axes.plot(ratios, [lossless(r) for r in ratios], color=INK, linewidth=1, linestyle="--")
    axes.axhline(1.0, color=INK, linewidth=0.6)
    for model, points in family.models.items():
        _line(axes, points, *looks[model], gid=_gid(family, model))
    axes.set_xlim(2**low, 2**high)
    ticks = [2.0**power for power in range(ceil(low), floor(high) + 1)]
    axes.set_xticks(ticks, [str(Fraction(tick)) for tick in ticks], minor=False)
    gains = [1.0, 2.0, *(gain for point in family.points for gain in _gains(point))]
    axes.set_ylim(min(gains) - ABOVE, max(gains) + ABOVE)
    axes.set_xlabel(SPEEDS)
    axes.set_ylabel("gain over the better one")
    sources = sorted({p.source for p in family.points} & {*UNMEASURED})
    note = f" ({', '.join(sources)})" if sources else ""
    axes.set_title(f"{family.title}{note}", loc="left")
    axes.grid(color=INK, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)


def _gid(family: Family, model: str) -> str:
    return f"{family.title}: {model}"


def _tips(found: Sequence[Family]) -> dict[str, str]:
    """What a model gains, by the ratio of the processors' speeds."""
    return {
        _gid(family, model): f"{model}, {family.title}: "
        + ", ".join(f"{digits(p.measured.gain)} at {digits(p.measured.ratio)}" for p in points)
        for family in found
        for model, points in family.models.items()
    }


def _line(axes: Any, points: Sequence[CurvePoint], colour: str, marker: str, *, gid: str) -> None:
    """The points of a model, and what was predicted of them."""
    ratios = [point.measured.ratio for point in points]
    look = {"color": colour, "marker": marker, "markersize": 4.5}
    axes.plot(ratios, [point.measured.gain for point in points], linewidth=0.8, gid=gid, **look)
    known = [point for point in points if point.predicted]
    axes.plot(
        [point.measured.ratio for point in known],
        [point.predicted.gain for point in known if point.predicted],
        linestyle="none",
        markerfacecolor="none",
        markeredgewidth=0.7,
        **look,
    )


def _gains(point: CurvePoint) -> list[float]:
    return [own.gain for own in (point.measured, point.predicted) if own]


def _legend(figure: Any, looks: dict[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    def sample(label: str, **look: Any) -> Line2D:
        return Line2D([], [], markersize=4.5, label=label, **look)

    handles = [
        sample(shortened(model), color=colour, marker=marker, linewidth=0.8)
        for model, (colour, marker) in looks.items()
    ]
    handles += [
        sample("predicted", color=INK, marker="o", markerfacecolor="none", linestyle="none"),
        sample("without loss", color=INK, linestyle="--", linewidth=1),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, frameon=False)
