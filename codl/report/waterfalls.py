"""Waterfalls of `codl explain`, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import floor, fsum, log10

from codl.ir.types import PROCESSORS, Processor
from codl.records.results import WIDE
from codl.records.waterfall import (
    BOUND,
    MEASURED_TERMS,
    TERMS,
    ChainTerms,
    WholeOp,
)
from codl.report.results import ExplainResult
from codl.report.tables import mark, soc_lines, warnings
from codl.report.text_table import (
    NONE,
    Cell,
    Column,
    TextRow,
    TextSection,
    TextTable,
    digits,
    listed_in_short,
    words,
)

PREDICTED, MEASURED = "predicted", "measured"
#: Less is the rounding of sums, in milliseconds.
NOTHING = 1e-9
#: Processors that end a chain by more than this part of it apart are told, and how many at most.
APART, MOST_WAITS = 0.05, 5
#: The results on their way to the CPU, and the terms that have no column.
RESULTS, OTHERS = "(results)", "others"


@dataclass(frozen=True)
class WaterfallLine:
    """A line of a waterfall: what is added to the total before, and the total; or a total alone."""

    name: str
    ms: float | None
    total_ms: float


def steps_of(result: ExplainResult) -> list[WaterfallLine]:
    """The bound, every term, and behind their last terms the predicted and the measured latency."""
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


def waterfall_content(result: ExplainResult) -> TextTable:
    """A line for every term of the model."""
    bound_ms = result.bound_ms

    def of_bound(step: WaterfallLine) -> str:
        return digits(step.total_ms / bound_ms, percent=True) if bound_ms else NONE

    cells: list[Cell[WaterfallLine]] = [
        (words("term"), lambda step: step.name),
        (Column("ms"), lambda step: NONE if step.ms is None else signed(step.ms)),
        (Column("total (ms)"), lambda step: digits(step.total_ms)),
        (Column("of the bound (%)"), of_bound),
        (words("what it is"), lambda step: what_of(step.name, result)),
    ]
    caption = (
        *soc_lines(result.soc),
        f"Both processors side by side without loss, all ops cut at one ratio: "
        f"{digits(result.side_by_side_ms)} ms.",
        *_machine_notes(result),
        *_coverage_notes(result),
        *warnings([result.source]),
    )
    title = f"Where the time goes: {result.model} by {result.strategy} on {result.soc.name}"
    source = mark([result.source])
    return TextTable.of(title, steps_of(result), cells, caption, mark=lambda _: source)


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


def _coverage_notes(result: ExplainResult) -> list[str]:
    notes = []
    if result.not_counted:
        notes.append(f"Not counted, for want of latencies: {listed_in_short(result.not_counted)}.")
    if result.estimated:
        notes.append(f"Estimated, for want of predictors: {listed_in_short(result.estimated)}.")
    return notes


def chains_content(result: ExplainResult, *, most: int | None = None) -> TextTable:
    """A line for every chain, of the `most` largest terms or of all that are not nothing.

    Those that are left out stand together, so that lines add up.
    """
    sizes = _largest(result)
    named = [name for name, size in sizes.items() if size > NOTHING]
    if most is not None and len(named) > most:
        kept = sorted(named, key=lambda name: -sizes[name])[:most]
        named = [name for name in named if name in kept]
    smallest = sorted(named, key=sizes.__getitem__)
    rest = [] if all(size <= NOTHING or name in named for name, size in sizes.items()) else [OTHERS]
    is_run = result.measured_ms is not None
    columns = (
        Column("chain", numeric=False),
        Column("cut", numeric=False),
        Column("CPU"),
        Column("GPU"),
        Column(BOUND),
        *(Column(name, spare=1 + smallest.index(name)) for name in named),
        *(Column(name) for name in (*rest, MEASURED if is_run else PREDICTED)),
    )
    cells = _ChainCells(tuple(named), bool(rest), _decimals(result))
    rows = tuple(TextRow(cells.of(chain), mark=mark([result.source])) for chain in result.chains)
    caption = (
        "Milliseconds. CPU and GPU: what nets and kernels take, predicted"
        + (" / profiled." if is_run else "."),
        *_apart(result),
        *warnings([result.source]),
    )
    title = f"By chain: {result.model} by {result.strategy} on {result.soc.name}"
    return TextTable(title, columns, (TextSection("", rows),), caption)


def whole_content(result: ExplainResult, *, most: int | None = None) -> TextTable:
    """A line for every op that is left whole, or for the `most` that would save most."""
    cells: list[Cell[WholeOp]] = [
        (words("op"), lambda row: row.op),
        (Column("saves (ms)"), lambda row: signed(row.saves_ms)),
        (Column("sharing"), lambda row: signed(row.sharing_ms)),
        (Column("cuts"), lambda row: signed(row.cuts_ms)),
        (Column("variants"), lambda row: signed(row.variants_ms)),
        (Column("plan (ms)"), lambda row: signed(row.net_ms)),
        (words("what stands against it"), _against),
    ]
    shown = result.whole[:most]
    more = len(result.whole) - len(shown)
    caption = (
        "Each op split alone. Plan: what the plan's predicted latency changes by.",
        *([f"{more} ops more would save less: --json has them."] if more else []),
        *warnings([result.source]),
    )
    title = f"Ops left whole: {result.model} by {result.strategy} on {result.soc.name}"
    source = mark([result.source])
    return TextTable.of(title, shown, cells, caption, mark=lambda _: source)


def _against(row: WholeOp) -> str:
    """One sentence about an op that is left whole."""
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


def _largest(result: ExplainResult) -> dict[str, float]:
    """The most that each term adds or takes in any chain."""
    return {
        term.name: max((abs(chain.terms[at].ms) for chain in result.chains), default=0.0)
        for at, term in enumerate(result.terms)
    }


def _decimals(result: ExplainResult) -> int:
    """The decimals that give the longest chain four digits: all cells of a table stand in line."""
    longest = max((_last(chain) for chain in result.chains), default=0.0)
    return max(0, 3 - floor(log10(longest))) if longest > NOTHING else 3


def _apart(result: ExplainResult) -> list[str]:
    """Which processor is done sooner with its shard of a chain, the longest waits first."""
    waits = []
    for chain in result.chains:
        works = chain.measured_work_ms or {}
        (less_ms, sooner), (most_ms, longer) = sorted((works.get(x, 0.0), x) for x in PROCESSORS)
        if less_ms and most_ms - less_ms > APART * most_ms:
            waits.append((most_ms - less_ms, most_ms, sooner, longer, _label(chain)))
    told = [
        f"{label}: the {sooner.upper()} is done {digits(ms)} ms sooner, {ms / most_ms:.0%} of what "
        f"the {longer.upper()} takes."
        for ms, most_ms, sooner, longer, label in sorted(waits, reverse=True)
    ]
    if len(told) > MOST_WAITS:
        told[MOST_WAITS:] = [f"So it is, by less, in {len(told) - MOST_WAITS} chains more."]
    return told


def _last(part: ExplainResult | ChainTerms) -> float:
    """The last total."""
    return part.predicted_ms if part.measured_ms is None else part.measured_ms


@dataclass(frozen=True)
class _ChainCells:
    """The cells of chains, in which terms without a column of their own may stand together."""

    named: tuple[str, ...]
    with_others: bool
    decimals: int

    def of(self, chain: ChainTerms) -> tuple[str, ...]:
        terms_ms = {term.name: term.ms for term in chain.terms}
        others = fsum(ms for name, ms in terms_ms.items() if name not in self.named)
        added = [*(terms_ms[name] for name in self.named), *([others] if self.with_others else [])]
        return (
            _label(chain),
            _cut(chain),
            *(self._work(chain, side) for side in PROCESSORS),
            self._ms(chain.bound_ms),
            *(self._ms(ms, sign="+") for ms in added),
            self._ms(_last(chain)),
        )

    def _work(self, chain: ChainTerms, side: Processor) -> str:
        predicted = self._ms(chain.work_ms.get(side, 0.0))
        if chain.measured_work_ms is None:
            return predicted
        return f"{predicted} / {self._ms(chain.measured_work_ms.get(side, 0.0))}"

    def _ms(self, ms: float, sign: str = "-") -> str:
        return f"{ms:{sign}.{self.decimals}f}" if round(ms, self.decimals) else "0"


def _label(chain: ChainTerms) -> str:
    first, *others = chain.ops or (RESULTS,)
    return f"{first} \N{HORIZONTAL ELLIPSIS} {others[-1]} ({len(chain.ops)})" if others else first


def _cut(chain: ChainTerms) -> str:
    if 0 < chain.gpu_ratio < 1:
        return f"{chain.dim} {chain.gpu_ratio:.2f}"
    return ("GPU" if chain.gpu_ratio else "CPU") if chain.ops else NONE


def signed(ms: float) -> str:
    """With its sign: it is added."""
    return f"+{digits(ms)}" if ms >= NOTHING else digits(0.0 if ms > -NOTHING else ms)


def findings(result: ExplainResult) -> tuple[str, ...]:
    """What is lost in all, and the largest terms."""
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
