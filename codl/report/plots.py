"""Plots of latencies, timelines and plans, as SVG made small and accessible.

Matplotlib names every element alike in every picture, and fixes black and white. Inline in one page
the names would clash, and dark pages would hide the text. Colours are from Okabe and Ito's palette,
which colour-blind readers can tell apart; what a colour says is also said by height, by position or
in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from codl.ir.types import PROCESSORS
from codl.records.results import EvalRow
from codl.report.results import (
    COMPUTING,
    IDEAL,
    SHARING,
    SPAN_KINDS,
    UNMEASURED,
    InferenceProfile,
    SearchResult,
)
from codl.report.text_table import digits, listed

SVG = "http://www.w3.org/2000/svg"
BOX = re.compile(r"M (\S+) (\S+)" + r" L (\S+) (\S+)" * 3 + " z ?")
LINK = "{http://www.w3.org/1999/xlink}href"
#: Drawn in this colour, text and lines take the page's.
INK = "#010203"
FONT = {"font.size": 9, "axes.titlesize": 9, "font.family": "sans-serif"}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "codl",
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **FONT,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings while a picture is made and written; restored afterwards."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        yield


def to_svg(
    figure: Any, *, key: str, title: str, description: str, tips: Mapping[str, str] | None = None
) -> str:
    """An `<svg>` element for a page. `key` must be unique in the page.

    `tips` are what browsers show where the mouse is, by the gid of what is there.
    """
    file = StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(file.getvalue())
    _strip(root)
    _add_tips(root, tips or {})
    _rename(root, key)
    for element in root.iter():
        element.tag = element.tag.split("}")[1]
        if element.text and not element.text.strip():
            element.text = None
        element.tail = None
        for name, value in element.attrib.items():
            element.attrib[name] = _short(name, value)
    _describe(root, key, title, description)
    return ElementTree.tostring(root, encoding="unicode")


def stand_alone(svg: str) -> str:
    """The same as a file of its own: no page gives it colours and a font."""
    look = "color: #1f2328; background: white; font-family: sans-serif"
    return svg.replace("<svg ", f'<svg style="{look}" ', 1) + "\n"


def _strip(root: ElementTree.Element) -> None:
    """Drop the metadata, the fixed size, and the style sheet, which would style the whole page."""
    for element in root.findall(f"{{{SVG}}}metadata"):
        root.remove(element)
    for element in root.findall(f"{{{SVG}}}defs"):
        if element.find(f"{{{SVG}}}style") is not None:
            root.remove(element)
    root.set("stroke-linejoin", "round")
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for element in root.iter():
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]


def _add_tips(root: ElementTree.Element, tips: Mapping[str, str]) -> None:
    for element in root.iter(f"{{{SVG}}}g"):
        if (text := tips.get(element.get("id", ""))) is not None:
            tip = ElementTree.Element(f"{{{SVG}}}title")
            tip.text = text
            element.insert(0, tip)


def _rename(root: ElementTree.Element, key: str) -> None:
    """Keep only the ids that something refers to, and make those the picture's own."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    for element in root.iter():
        if element.get("id") in used:
            element.set("id", f"{key}-{element.get('id')}")
        else:
            element.attrib.pop("id", None)
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK).replace("#", f"#{key}-"))
        for name, value in element.attrib.items():
            element.attrib[name] = value.replace("url(#", f"url(#{key}-")


def _font(match: re.Match[str]) -> str:
    """A font shorthand without its families, which the page sets."""
    weight = "; font-weight: bold" if "bold" in match[0].split("px")[0] else ""
    return f"font-size: {match[2]}{weight}"


def _short(name: str, value: str) -> str:
    if name == "d":
        value = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}", value)
        return BOX.sub(_box, " ".join(value.split()))
    if name == "style":
        value = re.sub(r"font-family: [^;]*; ", "", value)  # the page's own
        value = re.sub(r"font: (bold |italic )*([\d.]+px)[^;]*", _font, value)
        return value.replace(INK, "currentColor")
    if name in ("x", "y"):
        return f"{float(value):.1f}"
    return value


def _box(match: re.Match[str]) -> str:
    """A rectangle in a third of the letters; a timeline holds hundreds."""
    x0, y0, x1, y1, x2, y2, x3, y3 = match.groups()
    if (x0, y0, x1, y2) == (x3, y1, x2, y3):
        return f"M{x0} {y0}H{x1}V{y2}H{x0}z"
    return match[0]


def _describe(root: ElementTree.Element, key: str, title: str, description: str) -> None:
    """Name the picture for those who cannot see it."""
    root.set("xmlns", SVG)
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-desc")
    for at, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{key}-{tag}"})
        element.text = text
        root.insert(at, element)


CPU, GPU = "#0072B2", "#D55E00"
PROCESSOR_COLOURS = {"cpu": CPU, "gpu": GPU}
KIND_COLOURS = {
    "net": CPU,
    "kernel": GPU,
    "copy": "#E69F00",
    "map": "#56B4E9",
    "unmap": "#009E73",
    "transform": "#CC79A7",
    "sync": "#8A8A8A",
}
WIDTH = 5.2
#: From one strategy's CPU lane to the next one's; a lane is 1 high.
LANES_APART = 2.9
LONGEST_LABEL = 26
#: More cells than this and their labels would overlap.
LABELLED_OPS = 40


def latency_svg(rows: Sequence[EvalRow], *, key: str, title: str) -> str:
    """Latencies of one model: a bar per strategy, whiskers to p80, the ideal as a line.

    A ring is the first run of a turn, a diamond the prediction.
    """
    from matplotlib.figure import Figure

    bars = [row for row in rows if row.strategy != IDEAL or row.latency_ms is None]
    ideal = next((row for row in rows if row.strategy == IDEAL and row.latency_ms), None)
    with style():
        figure = Figure(figsize=(WIDTH, 0.85 + 0.3 * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        for y, row in enumerate(bars):
            _bar(axes, y, row)
        axes.set_yticks(range(len(bars)), [_label(row) for row in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlim(0, 1.03 * _longest(rows))
        axes.set_xlabel("latency (ms)")
        if ideal and ideal.latency_ms:
            label = f"ideal {digits(ideal.latency_ms.level)} ({ideal.source})"
            axes.axvline(ideal.latency_ms.level, color=INK, linestyle="--", linewidth=1)
            axes.plot([], [], color=INK, linestyle="--", linewidth=1, label=label)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper left", ncols=3, frameon=False, columnspacing=1)
        _grid(axes)
        tips = {f"bar{y}": _latency_words([row]) for y, row in enumerate(bars)}
        words = _latency_words(rows)
        return to_svg(figure, key=key, title=title, description=words, tips=tips)


def _bar(axes: Any, y: int, row: EvalRow) -> None:
    latency = row.latency_ms
    if latency is None:
        axes.annotate("failed", (0, y), (6, 0), textcoords="offset points", va="center")
        return
    marked = row.source in UNMEASURED
    axes.barh(
        y,
        latency.level,
        height=0.62,
        color=CPU,
        alpha=0.4 if marked else 1,
        linestyle="--" if marked else "-",
        edgecolor=CPU,
        gid=f"bar{y}",
    )
    if latency.runs:
        whiskers = ([0], [max(0, latency.p80 - latency.level)])
        axes.errorbar(latency.level, y, xerr=whiskers, color=INK, capsize=3, elinewidth=1)
    if row.cold_ms is not None:
        _point(axes, (row.cold_ms.level, y), "first run", marker="o", markerfacecolor="none")
    if row.predicted_ms is not None:
        _point(axes, (row.predicted_ms, y), "predicted", marker="D", markerfacecolor="#F0E442")
    # Beside the axes, where no line crosses it.
    axes.annotate(
        digits(latency.level),
        (1, y),
        (6, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        va="center",
    )


def _point(axes: Any, at: tuple[float, float], label: str, **look: str) -> None:
    """A point, which the legend explains once."""
    is_new = label not in axes.get_legend_handles_labels()[1]
    axes.plot(
        *at,
        linestyle="none",
        markersize=4.5,
        markeredgecolor=INK,
        markeredgewidth=0.7,
        label=label if is_new else None,
        **look,
    )


def _longest(rows: Sequence[EvalRow]) -> float:
    latencies = [row.latency_ms for row in rows if row.latency_ms]
    ends = [value for latency in latencies for value in (latency.level, latency.p80)]
    ends += [row.cold_ms.level for row in rows if row.latency_ms and row.cold_ms]
    return max([*ends, *(r.predicted_ms or 0 for r in rows if r.latency_ms)], default=0) or 1


def _label(row: EvalRow) -> str:
    name = shortened(row.strategy)
    return f"{name} ({row.source})" if row.source in UNMEASURED else name


def _latency_words(rows: Sequence[EvalRow]) -> str:
    return "; ".join(
        f"{row.strategy} {digits(row.latency_ms.level)} ms ({row.source}){_first_run(row)}"
        if row.latency_ms
        else f"{row.strategy} failed"
        for row in rows
    )


def _first_run(row: EvalRow) -> str:
    return f", first run {digits(row.cold_ms.level)} ms" if row.cold_ms else ""


def timeline_svg(timelines: Sequence[InferenceProfile], *, key: str, title: str) -> str:
    """One inference per strategy, a CPU lane and a GPU lane each, on one axis of time.

    Computing fills a lane's height, data sharing most of it, waiting a thin line.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with style():
        figure = Figure(figsize=(WIDTH, 0.95 + 0.75 * len(timelines)), layout="constrained")
        axes = figure.add_subplot()
        ticks: list[float] = []
        for at, timeline in enumerate(timelines):
            top = LANES_APART * at
            ticks += [top, top + 1]
            _lanes(axes, timeline, top, f"t{at}")
            name = shortened(timeline.strategy or timeline.model)
            note = f"  ({timeline.source})" if timeline.source in UNMEASURED else ""
            axes.text(0, top - 0.58, f"{name}{note}", va="bottom", weight="bold")
        axes.set_yticks(ticks, ["CPU", "GPU"] * len(timelines))
        axes.set_ylim(LANES_APART * len(timelines) - 1, -1.35)
        axes.set_xlim(0, 1.01 * max((t.end_ms for t in timelines), default=0) or 1)
        axes.set_xlabel("time since the start of the inference (ms)")
        present = {span.kind for timeline in timelines for span in timeline.spans}
        kinds = [kind for kind in SPAN_KINDS if kind in present]
        if kinds:
            patches = [Patch(color=KIND_COLOURS[kind], label=kind) for kind in kinds]
            figure.legend(
                handles=patches,
                loc="outside upper left",
                ncols=len(kinds),
                frameon=False,
                columnspacing=1,
                handlelength=1,
            )
        _grid(axes)
        words = _timeline_words(timelines)
        tips = _lane_tips(timelines)
        return to_svg(figure, key=key, title=title, description=words, tips=tips)


def _lane_tips(timelines: Sequence[InferenceProfile]) -> dict[str, str]:
    """What each kind of work comes to on each lane."""
    return {
        f"t{at}-{processor}-{kind}": f"{timeline.strategy or timeline.model}, "
        f"{processor.upper()} {kind}: {digits(timeline.ms([kind], processor))} ms in all"
        for at, timeline in enumerate(timelines)
        for processor in PROCESSORS
        for kind in SPAN_KINDS
    }


def _lanes(axes: Any, timeline: InferenceProfile, top: float, name: str) -> None:
    """All spans of one kind on one lane become one path: a picture of a few kilobytes."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for lane, processor in enumerate(("cpu", "gpu")):
        for kind, colour in KIND_COLOURS.items():
            half = 0.45 if kind in COMPUTING else 0.33 if kind in SHARING else 0.1
            low, high = top + lane - half, top + lane + half
            boxes = [
                [(s.start_ms, low), (s.end_ms, low), (s.end_ms, high), (s.start_ms, high)]
                for s in timeline.spans
                if s.processor == processor and s.kind == kind
            ]
            if boxes:
                path = Path.make_compound_path(*(Path([*b, b[0]], closed=True) for b in boxes))
                look = {"facecolor": colour, "edgecolor": colour, "linewidth": 0.3}
                axes.add_patch(PathPatch(path, gid=f"{name}-{processor}-{kind}", **look))


def _timeline_words(timelines: Sequence[InferenceProfile]) -> str:
    return "; ".join(
        f"{timeline.strategy or timeline.model}: CPU computing "
        f"{digits(timeline.ms(COMPUTING, 'cpu'))} ms, GPU computing "
        f"{digits(timeline.ms(COMPUTING, 'gpu'))} ms, data sharing "
        f"{digits(timeline.ms(SHARING))} ms, end at {digits(timeline.end_ms)} ms "
        f"({timeline.source})"
        for timeline in timelines
    )


def plan_svg(result: SearchResult, *, key: str, title: str) -> str:
    """The plan as a strip: ops from left to right, chains apart, the GPU's share filled."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    with style():
        figure = Figure(figsize=(WIDTH, 1.75), layout="constrained")
        axes = figure.add_subplot()
        start = 0
        few = len(result.chains) <= LABELLED_OPS
        tips: dict[str, str] = {}
        for at, chain in enumerate(result.chains):
            end = start + len(chain.ops)
            left, width = start + 0.06, end - start - 0.12
            axes.bar(left, 1, width, align="edge", color=CPU, gid=f"cpu{at}")
            axes.bar(left, chain.gpu_ratio, width, align="edge", color=GPU, gid=f"gpu{at}")
            words = f"{chain.label}: {chain.dim} at a GPU ratio of {digits(chain.gpu_ratio)}"
            tips |= {f"cpu{at}": words, f"gpu{at}": words}
            if few and 0 < chain.gpu_ratio < 1:
                axes.text((start + end) / 2, 1.03, chain.dim, ha="center", fontsize=7)
            start = end
        axes.set_xlim(0, max(start, 1))
        axes.set_ylim(0, 1.2)
        axes.set_yticks([0, 0.5, 1])
        axes.set_ylabel("GPU ratio")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("ops, in order; a gap ends a chain")
        handles = [Patch(color=GPU, label="GPU's share"), Patch(color=CPU, label="CPU's share")]
        figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
        words = _plan_words(result)
        return to_svg(figure, key=key, title=title, description=words, tips=tips)


def _plan_words(result: SearchResult) -> str:
    ratios = listed([f"{chain.dim} at {digits(chain.gpu_ratio)}" for chain in result.chains])
    ops = sum(len(chain.ops) for chain in result.chains)
    return (
        f"{ops} ops in {len(result.chains)} chains; dimensions and GPU ratios: {ratios or 'none'}"
    )


def _grid(axes: Any) -> None:
    axes.grid(axis="x", color=INK, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def shortened(name: str) -> str:
    """A name that fits beside a picture."""
    name = " ".join(name.split())
    return (
        name
        if len(name) <= LONGEST_LABEL
        else name[: LONGEST_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )
