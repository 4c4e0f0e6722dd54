"""The README's picture: how a network is split, and what both processors then do when.

scripts/render_docs.py draws it from a file of `codl eval` with timelines: a strip of the network's
ops, each divided at its ratio, above the timelines of either processor alone and of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from xml.sax.saxutils import escape

from codl.ir.types import Processor
from codl.records.results import TimeSpan, doubts
from codl.report.results import COMPUTING, EvalResult
from codl.report.text_table import digits

WIDTH, LEFT, RIGHT = 760, 96, 18
STRIP, LANE, GAP = 64, 20, 6
#: A profiled run that takes so many times a plain one is of a disturbed machine.
MOST_PROFILED = 1.25
#: Of a line of the smaller font.
LETTERS = 108
BOTH = "codl"
STYLE = """<style>
  .panel { fill: #ffffff; stroke: #d0d0d0; }
  text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #222222; }
  .small { font-size: 11px; fill: #555555; }
  .head { font-weight: bold; }
  .cpu { fill: #0072b2; } .gpu { fill: #d55e00; } .share { fill: #8c8c8c; }
  .tick { stroke: #888888; stroke-width: 0.6; }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #16181c; stroke: #3a3f46; }
    text { fill: #e6e6e6; } .small { fill: #b0b0b0; }
  }
</style>"""


def split_svg(results: Sequence[EvalResult], *, key: str, title: str) -> str:
    """The first model of the first file that has timelines of `cpu`, `gpu` and `codl`."""
    result = results[0]
    model = next(m for m in result.models if {p.strategy for p in result.profiles(m)} >= {BOTH})
    rows = {row.strategy: row for row in result.of(model) if row.latency_ms}
    ms = {name: row.latency_ms.level for name, row in rows.items() if row.latency_ms}
    spans = next(p.spans for p in result.profiles(model) if p.strategy == BOTH)
    chains = result.plans[rows[BOTH].plan]["chains"]
    split = sum(0 < chain["gpu_ratio"] < 1 for chain in chains)
    ops = sum(len(chain["ops"]) for chain in chains)
    gain = min(ms["cpu"], ms["gpu"]) / ms[BOTH]
    where = result.soc.description or result.soc.name
    told = (
        f"{model} on {where}: {ops} ops in {len(chains)} chains, {split} of them split. CPU alone "
        f"{digits(ms['cpu'])} ms, GPU alone {digits(ms['gpu'])} ms, both {digits(ms[BOTH])} ms, "
        f"{digits(gain)} times the better one. Measured at commit {result.commit}."
    )
    heading = f"{model}: {ops} operators in {len(chains)} chains, {split} of them on both"
    body = [_text(16, 26, heading, "head")]
    body += _strip(chains, 40)
    top = 40 + STRIP + 46
    body += _lanes(ms, spans, top)
    bottom = top + 4 * (LANE + GAP) + 26
    body += _legend(bottom)
    footnote = f"{where}; measured, commit {result.commit}, {result.created[:10]}"
    profiled = max(span.end_ms for span in spans)
    spread = any(row.latency_ms and doubts(row.latency_ms, row.cold_ms) for row in rows.values())
    if spread or profiled > MOST_PROFILED * ms[BOTH]:
        footnote += "; doubtful, the machine was disturbed"
    lines = wrap(footnote, LETTERS)
    for at, line in enumerate(lines):
        body.append(_text(16, bottom + 34 + 15 * at, line, "small"))
    return _svg(bottom + 31 + 15 * len(lines), key, title, told, body)


def _svg(height: int, key: str, title: str, told: str, body: Sequence[str]) -> str:
    panel = (
        f'<rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-labelledby="{key}-t {key}-d">',
            f'<title id="{key}-t">{escape(title)}</title>',
            f'<desc id="{key}-d">{escape(told)}</desc>',
            STYLE,
            panel,
            *body,
            "</svg>",
            "",
        ]
    )


def _strip(chains: Sequence[dict[str, object]], top: int) -> Iterator[str]:
    """The ops in the plan's order, as wide as each other; chains stand apart."""
    ops = sum(len(chain["ops"]) for chain in chains)  # type: ignore[arg-type]
    apart = 3.0
    each = (WIDTH - LEFT - RIGHT - apart * (len(chains) - 1)) / ops
    x = float(LEFT)
    yield _text(16, top + STRIP / 2 - 3, "each op's")
    yield _text(16, top + STRIP / 2 + 13, "output")
    for chain in chains:
        width = each * len(chain["ops"])  # type: ignore[arg-type]
        ratio = float(chain["gpu_ratio"])  # type: ignore[arg-type]
        tip = f"{', '.join(chain['ops'])}: {ratio:.0%} GPU, along {chain['dim']}"  # type: ignore[arg-type]
        yield f"<g><title>{escape(tip)}</title>"
        yield _rect("gpu", x, top, width, STRIP * ratio)
        yield _rect("cpu", x, top + STRIP * ratio, width, STRIP * (1 - ratio))
        yield "</g>"
        if 0 < ratio < 1 and width > 9:
            yield _text(x + width / 2, top + STRIP + 14, str(chain["dim"]), "small", "middle")
        x += width + apart
    note = "cut along H: rows, OC: output channels; a gap is where data is shared"
    yield _text(LEFT, top + STRIP + 30, note, "small")


def _lanes(ms: dict[str, float], spans: Sequence[TimeSpan], top: int) -> Iterator[str]:
    """Either processor alone as one bar, both with all that they did."""
    longest = max(ms.values())
    scale = (WIDTH - LEFT - RIGHT - 66) / longest
    # The profiled run is a little longer than plain ones: it is brought to their length.
    profiled = max(span.end_ms for span in spans)
    fit = ms[BOTH] / profiled
    lanes: tuple[tuple[str, Processor, bool], ...] = (
        ("CPU alone", "cpu", True),
        ("GPU alone", "gpu", True),
        ("both: CPU", "cpu", False),
        ("GPU", "gpu", False),
    )
    for at, (name, processor, alone) in enumerate(lanes):
        y = top + at * (LANE + GAP) + (8 if at > 1 else 0)
        yield _text(LEFT - 8, y + 14, name, "small", "end")
        if alone:
            yield _rect(processor, LEFT, y, ms[processor] * scale, LANE)
            yield _text(LEFT + ms[processor] * scale + 6, y + 14, f"{digits(ms[processor])} ms")
            continue
        for span in spans:
            if span.processor == processor and span.kind not in ("sync", "layer"):
                kind = processor if span.kind in COMPUTING else "share"
                x, width = LEFT + span.start_ms * fit * scale, span.ms * fit * scale
                if width >= 0.15:
                    yield _rect(kind, x, y, width, LANE)
        if processor == "cpu":
            told = f"{digits(ms[BOTH])} ms"
            yield _text(LEFT + ms[BOTH] * scale + 6, y + LANE + GAP / 2 + 5, told, "head")


def _legend(top: int) -> Iterator[str]:
    x = LEFT
    for kind, name in (("cpu", "CPU"), ("gpu", "GPU"), ("share", "data sharing")):
        yield _rect(kind, x, top, 12, 12)
        yield _text(x + 18, top + 11, name)
        x += 34 + 8 * len(name)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    sizes = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {sizes}/>'


def _text(x: float, y: float, told: str, kind: str = "", anchor: str = "start") -> str:
    look = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{look} text-anchor="{anchor}">{escape(told)}</text>'
