"""Tables of the waterfalls of `codl explain`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from codl.ir.records.results import WIDE
from codl.ir.records.waterfall import BOUND, MEASURED_TERMS, TERMS, ChainTerms, WholeOp
from codl.ir.types import PROCESSORS, Processor
from codl.report.results import ExplainResult
from codl.report.tables import coverage_notes, first_to_last, ratio_text, soc_lines, warnings
from codl.report.text_table import (
    NONE,
    Column,
    TextTable,
    Value,
    digits,
)

PREDICTED, MEASURED = "predicted", "measured"
#: Milliseconds below this are rounding errors of sums.
NOTHING = 1e-9
#: Label of the transfer of results to the CPU.
RESULTS = "(results)"


@dataclass(frozen=True)
class WaterfallLine:
    """A line of a waterfall: a term and the total after it, or a total alone (`ms` is None)."""

    name: str
    ms: float | None
    total_ms: float


def steps_of(result: ExplainResult) -> list[WaterfallLine]:
    """The bound and all terms; predicted and measured latency follow their last terms."""
    totals = accumulate((term.ms for term in result.terms), initial=result.bound_ms)
    steps = [WaterfallLine(BOUND, None, next(totals))]
    ends = [at for at, term in enumerate(result.terms) if term.name not in MEASURED_TERMS][-1:]
    for at, (term, total_ms) in enumerate(zip(result.terms, totals, strict=True)):
        steps.append(WaterfallLine(term.name, term.ms, total_ms))
        if at in ends:
            steps.append(WaterfallLine(PREDICTED, None, result.predicted_ms))
    if result.measured_ms is not None:
        steps.append(WaterfallLine(MEASURED, None, result.measured_ms))
    return steps


def contents(result: ExplainResult, *, ops: int | None = None) -> tuple[TextTable, ...]:
    """The waterfall, its chains, and the `ops` left whole that save most."""
    whole = (whole_content(result, most=ops),) if result.whole else ()
    return (waterfall_content(result), chains_content(result), *whole)


def waterfall_content(result: ExplainResult) -> TextTable:
    """A line for every term of the model."""
    rows = [
        (step.name, NONE if step.ms is None else signed(step.ms), step.total_ms,
         100 * step.total_ms / result.bound_ms if result.bound_ms else None,
         what_of(step.name, result))
        for step in steps_of(result)
    ]  # fmt: skip
    caption = (
        *soc_lines(result.soc),
        f"Both processors side by side without loss, all ops cut at one ratio: "
        f"{digits(result.side_by_side_ms)} ms.",
        *_machine_notes(result),
        *coverage_notes(result),
        *warnings([result.source]),
    )
    title = f"Where the time goes: {result.model} by {result.strategy} on {result.soc.name}"
    heads = ("term", Column("ms"), "total (ms)", "of the bound (%)", "what it is")
    return TextTable.plain(title, heads, rows, caption)


def what_of(name: str, result: ExplainResult) -> str:
    others = {
        BOUND: "every op on both processors without loss: 1 / (1 / CPU + 1 / GPU)",
        PREDICTED: f"the plan's latency by {result.predictor or 'predictors'}",
        MEASURED: "the latency of plain runs, their 20th percentile",
    }
    return others.get(name) or TERMS.get(name, "")


def _machine_notes(result: ExplainResult) -> list[str]:
    latency = result.latency_ms
    if latency is None:
        return ["Nothing was run: what a run adds is not known."]
    notes = [
        f"Plain runs: median {digits(latency.median)} ms, p80 {digits(latency.p80)} ms, "
        f"{latency.runs} runs."
    ]
    if latency.p80 > WIDE * latency.p20:
        notes.append("Something disturbed them: measured terms are of that, too.")
    if result.slowdown:
        each = ", ".join(f"{side} {digits(factor)}" for side, factor in result.slowdown.items())
        notes.append(f"Anchor ops took {each} of what they did when the dataset was measured.")
    else:
        notes.append("There are no anchors to tell the pace of the machine: it is in cpu and gpu.")
    return notes


def chains_content(result: ExplainResult) -> TextTable:
    """A line per chain with its nonzero terms; a narrow terminal drops the smallest."""
    sizes = {
        term.name: max((abs(chain.terms[at].ms) for chain in result.chains), default=0.0)
        for at, term in enumerate(result.terms)
    }
    smallest = [name for name in sorted(sizes, key=sizes.__getitem__) if sizes[name] > NOTHING]
    is_run = result.measured_ms is not None
    columns: tuple[str | Column, ...] = (
        *("chain", "cut", Column("CPU"), Column("GPU"), BOUND),
        *(Column(name, spare=1 + smallest.index(name)) for name in sizes if name in smallest),
        MEASURED if is_run else PREDICTED,
    )
    rows: list[tuple[Value, ...]] = [
        (
            _label(chain),
            _cut(chain),
            *(_work(chain, side) for side in PROCESSORS),
            chain.bound_ms,
            *(signed(term.ms) for term in chain.terms if term.name in smallest),
            _last(chain),
        )
        for chain in result.chains
    ]
    caption = (
        "Milliseconds. CPU and GPU: what nets and kernels take, predicted"
        + (" / profiled." if is_run else "."),
        *warnings([result.source]),
    )
    title = f"By chain: {result.model} by {result.strategy} on {result.soc.name}"
    return TextTable.plain(title, columns, rows, caption)


def _work(chain: ChainTerms, side: Processor) -> str:
    predicted = digits(chain.work_ms.get(side, 0.0))
    if chain.measured_work_ms is None:
        return predicted
    return f"{predicted} / {digits(chain.measured_work_ms.get(side, 0.0))}"


def whole_content(result: ExplainResult, *, most: int | None = None) -> TextTable:
    """A line per op that the plan does not split, or only for the `most` largest savings."""
    shown = result.whole[:most]
    more = len(result.whole) - len(shown)
    caption = (
        "Each op split alone. Plan: what the plan's predicted latency changes by.",
        *([f"{more} ops more would save less: --json has them."] if more else []),
        *warnings([result.source]),
    )
    title = f"Ops left whole: {result.model} by {result.strategy} on {result.soc.name}"
    figures = ("saves (ms)", "sharing", "cuts", "variants", "plan (ms)")
    heads: tuple[str | Column, ...] = ("op", *map(Column, figures), "what stands against it")
    rows = [
        (row.op, *map(signed, (row.saves_ms, row.sharing_ms, row.cuts_ms, row.variants_ms)),
         signed(row.net_ms), _reason_whole(row))
        for row in shown
    ]  # fmt: skip
    return TextTable.plain(title, heads, rows, caption)


def _reason_whole(row: WholeOp) -> str:
    whole = f"{digits(row.whole_ms)} ms on the {row.processor.upper()}"
    if row.dim is None or row.gpu_ratio is None:
        return f"{whole}; it cannot be split."
    cut = f"split by {row.dim} at {row.gpu_ratio:.2f}"
    split = f"{whole}; {cut} it computes in {digits(row.best_ms)} ms"
    if row.saves_ms <= NOTHING:
        return f"{split}: nothing is saved."
    if row.net_ms < -NOTHING:
        return f"{split}; the plan would be faster."
    if row.sharing_ms <= NOTHING:
        return f"{split}; launches, calls of nets and waits stand against it."
    return f"{split}; sharing {digits(row.sharing_ms)} ms stands against it."


def _last(part: ExplainResult | ChainTerms) -> float:
    """The last total: measured if possible, else predicted."""
    return part.predicted_ms if part.measured_ms is None else part.measured_ms


def _label(chain: ChainTerms) -> str:
    count = f" ({len(chain.ops)})" if len(chain.ops) > 1 else ""
    return first_to_last(chain.ops or (RESULTS,)) + count


def _cut(chain: ChainTerms) -> str:
    whole = "GPU" if chain.gpu_ratio else "CPU"
    return ratio_text(chain) or (whole if chain.ops else NONE)


def signed(ms: float) -> str:
    return f"+{digits(ms)}" if ms >= NOTHING else digits(0.0 if ms > -NOTHING else ms)


def findings(result: ExplainResult) -> tuple[str, ...]:
    """Sentences on the total loss, and on the largest terms."""
    last = _last(result)
    if not result.bound_ms:
        return ()
    largest = sorted(result.terms, key=lambda term: -term.ms)[:3]
    named = ", ".join(
        f"{term.name} ({signed(term.ms)} ms)" for term in largest if term.ms > NOTHING
    )
    return (
        f"{result.model} by {result.strategy}: {digits(last)} ms is "
        f"{digits(last / result.bound_ms)} times the lossless bound of {digits(result.bound_ms)} "
        f"ms{'; most is lost to ' + named if named else ''}.",
    )
