"""Pictures of `codl explain`: a waterfall, and the plan that it is of.

Apart from the tables, which the command prints without what pages need.
"""

from __future__ import annotations

from codl.ir.plan import Chain
from codl.records.waterfall import TERMS
from codl.report import charts
from codl.report.charts import Bar, Part
from codl.report.drawing import Data, Key, Picture
from codl.report.results import ExplainResult
from codl.report.text_table import digits
from codl.report.waterfalls import NOTHING, WaterfallLine, signed, steps_of, what_of


def waterfall(result: ExplainResult) -> Picture:
    """A bar for every total and term, the axis cut off where nothing is lost."""
    steps = steps_of(result)
    totals = [step.total_ms for step in steps]
    low = max(0.0, min(totals) - 0.5 * ((max(totals) - min(totals)) or max(totals) or 1.0))
    cut_off = f", from {digits(low)} on" if low else ""
    rows = tuple((s.name, s.ms, s.total_ms, what_of(s.name, result)) for s in steps)
    return charts.bars(
        f"Where the time goes: {result.model} by {result.strategy} on {result.soc.name}",
        [_bar(step, low) for step in steps],
        Data(("term", "ms", "total (ms)", "what it is"), rows),
        name=f"milliseconds{cut_off}",
        low=low,
        legend=(
            Key("bound", "a latency"), Key("wait", "what a term adds"),
            Key("both", "what one takes away"),
        ),
        sources=(result.source,),
    )  # fmt: skip


def _bar(step: WaterfallLine, low: float) -> Bar:
    if step.ms is None:
        told = f"{step.name}: {digits(step.total_ms)} ms"
        part = Part(low, step.total_ms, "bound", told)
        return Bar(step.name, (part,), digits(step.total_ms))
    told = f"{step.name}: {signed(step.ms)} ms, {TERMS.get(step.name, '')}"
    ends = sorted((step.total_ms - step.ms, step.total_ms))
    part = Part(ends[0], ends[1], "wait" if step.ms >= 0 else "both", told)
    return Bar(step.name, (part,) if abs(step.ms) > NOTHING else (), signed(step.ms))


def plan(result: ExplainResult) -> Picture:
    """The layers of the plan on both processors."""
    chains = [Chain(c.ops, c.dim, c.gpu_ratio, {}) for c in result.chains if c.ops]
    title = f"Plan of {result.strategy} for {result.model}"
    return charts.strip(title, chains, sources=(result.source,))
