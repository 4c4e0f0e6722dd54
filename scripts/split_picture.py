"""The README's picture: how a network is split, and what both processors then do when.

scripts/render_docs.py draws it from a file of `codl eval` with timelines: the plan as a strip of
the network's layers, above the timelines of either processor alone and of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from standalone import below

from codl.ir.records.results import TimeSpan, doubts
from codl.ir.types import PROCESSORS
from codl.report.charts import Key, Picture, Track, strip, timelines
from codl.report.results import EvalResult
from codl.report.text_table import TextTable, digits

#: A profiled run that takes so many times a plain one is of a disturbed machine.
MOST_PROFILED = 1.25
BOTH = "codl"
LEGEND = (
    Key("cpu", "CPU"),
    Key("gpu", "GPU"),
    Key("both", "a chain, cut along one dimension"),
    Key("share", "data sharing"),
)


def split(results: Sequence[EvalResult], title: str) -> Picture:
    """The first model of the first file that has a timeline of `codl`."""
    result = results[0]
    model, spans = next(
        (model, profile.spans)
        for model in result.models
        for profile in result.profiles(model)
        if profile.strategy == BOTH
    )
    rows = {row.strategy: row for row in result.of(model) if row.latency_ms}
    ms = {name: row.latency_ms.level for name, row in rows.items() if row.latency_ms}
    chains = result.plans[rows[BOTH].plan].chains
    on_both = sum(0 < chain.gpu_ratio < 1 for chain in chains)
    ops = sum(len(chain.ops) for chain in chains)
    profiled = max(span.end_ms for span in spans)
    is_doubtful = profiled > MOST_PROFILED * ms[BOTH] or any(
        row.latency_ms and doubts(row.latency_ms, row.cold_ms) for row in rows.values()
    )
    how = f"{'doubtful' if is_doubtful else 'measured'}, commit {result.commit[:7]}"
    heads = ("what", "value")
    told: tuple[tuple[str, str | float], ...] = (
        ("model", model),
        ("ops", float(ops)),
        ("chains", float(len(chains))),
        ("chains on both processors", float(on_both)),
        *((f"{name} (ms)", ms[name]) for name in (*PROCESSORS, BOTH)),
    )
    panels = (
        strip(f"{model}: {ops} operators, {on_both} of {len(chains)} chains on both", chains),
        timelines(f"What both processors do ({how})", tuple(_tracks(ms, spans, profiled))),
    )
    return replace(below(title, panels), table=TextTable.plain(title, heads, told), legend=LEGEND)


def _tracks(ms: dict[str, float], spans: Sequence[TimeSpan], profiled: float) -> Iterator[Track]:
    """Either processor alone as one span, both with all that they did."""
    for side in PROCESSORS:
        whole = TimeSpan(side, "net" if side == "cpu" else "kernel", "the network", 0.0, ms[side])
        yield Track(f"{side.upper()} alone: {digits(ms[side])} ms", (whole,))
    # The profiled run is a little longer than plain ones: it is brought to their length.
    fit = ms[BOTH] / profiled
    fitted = tuple(
        replace(span, start_ms=span.start_ms * fit, end_ms=span.end_ms * fit)
        for span in spans
        if span.kind != "layer"
    )
    gain = digits(min(ms[side] for side in PROCESSORS) / ms[BOTH])
    yield Track(f"both: {digits(ms[BOTH])} ms, {gain} times the better one", fitted)
