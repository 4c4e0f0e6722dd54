"""Two result files of one command beside each other: what differs by more than noise.

Latencies of two files are of two runs, which did not take turns: what tells them apart is said once
in `codl.report.comparability`. Accuracies on held-out rows have the error of so few rows. What a
compiler or a check says has no noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Any, Literal

from codl.errors import MismatchError
from codl.ir.environment import NONE as MISSING
from codl.ir.environment import Difference, differences
from codl.records.results import Digests, EvalRow, PredictorRow
from codl.report.comparability import LEAST_TOLERANCE, latencies_of, tolerance_of
from codl.report.results import (
    EvalResult,
    Result,
    RunResult,
    TrainResult,
    ValidateResult,
    ValidationsResult,
)
from codl.report.text_table import NONE, Cell, Column, TextTable, digits, stem, words

Verdict = Literal["alike", "better", "worse", "not compared"]
#: Twice the standard error: of 20 equal pairs one is told apart.
ERRORS = 2.0
#: Of an error over another that is nothing.
ENDLESS = float("inf")


@dataclass(frozen=True, kw_only=True)
class FigurePair:
    """One figure in both files; None where a file has it not, for the `reason`.

    `cost` is how many times worse it is in the second file: above 1 slower, larger or less
    accurate. It is noise up to `1 + tolerance`, and above one over that.
    """

    group: str
    name: str
    what: str
    before: float | None
    now: float | None
    less_is_better: bool = True
    tolerance: float = 0.0
    reason: str = ""

    @property
    def cost(self) -> float | None:
        if self.reason or self.before is None or self.now is None:
            return None
        over, under = self.now, self.before
        if not self.less_is_better:
            over, under = under, over
        if over == under:
            return 1.0
        return over / under if under > 0 else ENDLESS

    @property
    def verdict(self) -> Verdict:
        cost = self.cost
        if cost is None:
            return "not compared"
        if cost <= 0 or cost < 1 / (1 + self.tolerance):
            return "better"
        return "worse" if cost > 1 + self.tolerance else "alike"

    @property
    def is_lost(self) -> bool:
        """Whether the first file has it, and the second not."""
        return self.before is not None and self.now is None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "cost": self.cost, "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The geometric mean of the costs of one name, over `count` figures, and what is noise of it.

    A disturbance that a whole run shares does not become less with more figures.
    """

    name: str
    what: str
    cost: float
    tolerance: float
    count: int

    @property
    def verdict(self) -> Verdict:
        if abs(log(self.cost)) <= log(1 + self.tolerance):
            return "alike"
        return "worse" if self.cost > 1 else "better"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class ResultComparison:
    """Two result files: every figure, means, and in what else they differ."""

    first: Result
    second: Result
    pairs: tuple[FigurePair, ...]
    differing: tuple[Difference, ...]

    @property
    def means(self) -> tuple[Mean, ...]:
        names = dict.fromkeys((pair.name, pair.what) for pair in self.pairs)
        return tuple(mean for name, what in names if (mean := self._mean(name, what)))

    def _mean(self, name: str, what: str) -> Mean | None:
        pairs = [p for p in self.pairs if (p.name, p.what) == (name, what)]
        compared = [(cost, p.tolerance) for p in pairs if (cost := p.cost) and cost != ENDLESS]
        if len(compared) < 2:
            return None
        count = len(compared)
        mean = exp(sum(log(cost) for cost, _ in compared) / count)
        spread = exp(hypot(*(log(1 + tolerance) for _, tolerance in compared)) / count) - 1
        is_timed = any(tolerance for _, tolerance in compared)
        tolerance = max(spread, LEAST_TOLERANCE if is_timed else 0.0)
        return Mean(name=name, what=what, cost=mean, tolerance=tolerance, count=count)

    def beyond(self, limit: float) -> tuple[FigurePair, ...]:
        """The figures that are worse than `limit` times, and by more than noise, or are lost."""
        return tuple(
            p
            for p in self.pairs
            if p.is_lost or (p.verdict == "worse" and p.cost is not None and p.cost > limit)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "of": self.first.command,
            "files": [self.first.path, self.second.path],
            "commits": [self.first.commit, self.second.commit],
            "differing": [vars(difference) for difference in self.differing],
            "figures": [pair.to_json() for pair in self.pairs],
            "means": [mean.to_json() for mean in self.means],
        }


def compare_results(first: Result, second: Result, *, speedups: bool = False) -> ResultComparison:
    """Figures of two results of one command, in the order of the first.

    Of evaluations those are latencies, or `speedups` over the better single processor of the same
    run, which a slower machine does not change. Raises `MismatchError` for results of two commands,
    and of a command that has no figures.
    """
    pairs_of = PAIRS.get(type(first))
    if speedups and pairs_of is _latencies:
        pairs_of = _speedups
    if type(first) is not type(second) or pairs_of is None:
        kinds = ", ".join(sorted(str(vars(kind)["command"]) for kind in PAIRS))
        raise MismatchError(
            f"{first.file} is of `codl {first.command}` and {second.file} of `codl "
            f"{second.command}`: two results of one command are compared, of {kinds}."
        )
    pairs = tuple(pairs_of(first, second))
    if not any(pair.cost is not None for pair in pairs):
        reason = next((f": {pair.reason}" for pair in pairs if pair.reason), "")
        raise MismatchError(f"{first.file} and {second.file} have no figure in common{reason}.")
    return ResultComparison(
        first=first, second=second, pairs=pairs, differing=tuple(_differing(first, second))
    )


def _differing(first: Any, second: Any) -> Iterator[Difference]:
    """All but figures in which results differ: what they were made by, on and from."""
    soc = [getattr(result, "soc", None) for result in (first, second)]
    names = [getattr(each, "name", "") for each in soc]
    of = [getattr(result, "digests", None) or Digests() for result in (first, second)]
    both = {
        "commit": [result.commit for result in (first, second)],
        "SoC": names,
        "dataset": [digests.dataset for digests in of],
        "tuning": [digests.tuning for digests in of],
        "compiler": [getattr(result, "compiler", "") for result in (first, second)],
        "GPU": [getattr(result, "gpu", "") for result in (first, second)],
    }
    for what, (before, now) in both.items():
        if before != now:
            yield Difference(what, before or MISSING, now or MISSING)
    if first.environment is None or second.environment is None:
        if first.environment is not second.environment:
            kept = [MISSING if r.environment is None else "kept" for r in (first, second)]
            yield Difference("environment", *kept)
        return
    yield from differences(first.environment, second.environment)


def _latencies(first: EvalResult, second: EvalResult) -> Iterator[FigurePair]:
    rows = {(stem(row.model), row.strategy): row for row in second.rows}
    changed = _changed_models(first.digests, second.digests)
    for row in first.rows:
        now = rows.pop((stem(row.model), row.strategy), None)
        yield _latency(row, now, "another model" if stem(row.model) in changed else "")
    for (model, strategy), row in rows.items():
        level = row.latency_ms.level if row.latency_ms else None
        yield FigurePair(
            group=model, name=strategy, what="ms", before=None, now=level, reason="not there before"
        )


def _changed_models(first: Digests | None, second: Digests | None) -> set[str]:
    """Models that have one name and are not the same."""
    before = {stem(name): digest for name, digest in (first.models if first else {}).items()}
    now = {stem(name): digest for name, digest in (second.models if second else {}).items()}
    return {name for name in before.keys() & now.keys() if before[name] != now[name]}


def _latency(row: EvalRow, now: EvalRow | None, reason: str) -> FigurePair:
    second = now.latency_ms if now else None
    if not reason and row.latency_ms is None:
        reason = f"failed before: {row.reason}"
    elif not reason and second is None:
        reason = f"fails: {now.reason}" if now else "not measured"
    elif not reason and now and row.source != now.source:
        reason = f"{row.source} and {now.source}"
    elif not reason and now and row.peer and now.peer and row.peer.version != now.peer.version:
        reason = f"version {row.peer.version}, then {now.peer.version}"
    both = [latency for latency in (row.latency_ms, second) if latency]
    return FigurePair(
        group=stem(row.model),
        name=row.strategy,
        what="ms",
        before=row.latency_ms.level if row.latency_ms else None,
        now=second.level if second else None,
        tolerance=tolerance_of(both),
        reason=reason,
    )


def _speedups(first: EvalResult, second: EvalResult) -> Iterator[FigurePair]:
    rows = {(stem(row.model), row.strategy): row for row in second.rows}
    for row, pair in zip(first.rows, _latencies(first, second), strict=False):
        now = rows.get((stem(row.model), row.strategy))
        both = [*latencies_of(first, row), *(latencies_of(second, now) if now else ())]
        yield replace(
            pair,
            what="speedup",
            before=first.speedup(row),
            now=second.speedup(now) if now else None,
            less_is_better=False,
            tolerance=tolerance_of(both),
        )


def _run(first: RunResult, second: RunResult) -> Iterator[FigurePair]:
    same = stem(first.model) == stem(second.model)
    yield FigurePair(
        group=stem(first.model),
        name=first.strategy,
        what="ms",
        before=first.latency_ms.level,
        now=second.latency_ms.level,
        tolerance=tolerance_of([first.latency_ms, second.latency_ms]),
        reason="" if same else f"another model, {stem(second.model)}",
    )


def _accuracies(first: TrainResult, second: TrainResult) -> Iterator[FigurePair]:
    """The part of held-out rows, by op shape, that is predicted within 10 %."""
    rows = {(row.target, row.name): row for row in second.predictors if row.split == "shape"}
    for row in first.predictors:
        if row.split == "shape" and row.acc10 is not None:
            now = rows.get((row.target, row.name))
            yield FigurePair(
                group=row.target,
                name=row.name,
                what="% within 10 %",
                before=row.acc10,
                now=now.acc10 if now else None,
                less_is_better=False,
                tolerance=_chance(row, now) if now else 0.0,
                reason="" if now and now.acc10 is not None else "not trained",
            )


def _chance(row: PredictorRow, now: PredictorRow) -> float:
    """What a part of so few rows may be off by chance, over the part."""
    parts = [(each.acc10 or 0.0) / 100 for each in (row, now)]
    errors = [
        sqrt(part * (1 - part) / max(1, each.n_test))
        for part, each in zip(parts, (row, now), strict=True)
    ]
    least = min(parts)
    return ERRORS * hypot(*errors) / least if least else ENDLESS


def _checks(first: ValidateResult, second: ValidateResult) -> Iterator[FigurePair]:
    group = stem(first.model)
    reason = "" if group == stem(second.model) else f"another model, {stem(second.model)}"
    wrong = [float(sum(op.ok is False for op in each.ops)) for each in (first, second)]
    yield FigurePair(
        group=group, name="ops", what="wrong", before=wrong[0], now=wrong[1], reason=reason
    )


def _validations(first: ValidationsResult, second: ValidationsResult) -> Iterator[FigurePair]:
    rows = {(row.model, row.processor, row.stored): row for row in second.rows}
    for row in first.rows:
        now = rows.get((row.model, row.processor, row.stored))
        yield FigurePair(
            group=stem(row.model),
            name=f"{row.processor}, {row.stored}",
            what="wrong",
            before=float(len(row.wrong) + (not row.ok)),
            now=float(len(now.wrong) + (not now.ok)) if now else None,
            reason="" if now else "not checked",
        )


#: Figures by the type of result.
PAIRS: Mapping[type, Callable[[Any, Any], Iterable[FigurePair]]] = {
    EvalResult: _latencies,
    RunResult: _run,
    TrainResult: _accuracies,
    ValidateResult: _checks,
    ValidationsResult: _validations,
}


def comparison_table(compared: ResultComparison, *, every: bool) -> TextTable:
    """Figures that differ by more than noise, and those not compared; or `every` one."""
    shown = [pair for pair in compared.pairs if every or pair.verdict != "alike"]
    title = f"{compared.second.file} beside {compared.first.file}"
    cells: list[Cell[FigurePair]] = [
        (words("figure"), lambda pair: f"{pair.name}, {pair.what}"),
        (Column("before"), lambda pair: digits(pair.before)),
        (Column("now"), lambda pair: digits(pair.now)),
        (
            Column("times"),
            lambda pair: NONE if pair.cost in (None, ENDLESS) else f"{pair.cost:.3f}",
        ),
        (Column("noise (%)", spare=1), lambda pair: digits(pair.tolerance, percent=True)),
        (words("verdict"), lambda pair: pair.reason or pair.verdict),
    ]
    by_group: dict[str, list[FigurePair]] = {}
    for pair in shown:
        by_group.setdefault(pair.group, []).append(pair)
    return TextTable.of(title, by_group, cells, tuple(_lines(compared, len(shown))))


def _lines(compared: ResultComparison, shown: int) -> Iterator[str]:
    for mean in compared.means:
        yield (
            f"{mean.name}, {mean.what}: {mean.cost:.3f} times in the geometric mean of "
            f"{mean.count}, noise {digits(mean.tolerance, percent=True)} %: {mean.verdict}."
        )
    counts = Counter(pair.verdict for pair in compared.pairs)
    yield ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."
    if left := len(compared.pairs) - shown:
        yield f"{left} within noise are left out: --every and --json have them."
    if any(pair.what in ("ms", "speedup") for pair in compared.pairs):
        yield (
            "Noise is half of each spread (p20 to the median), added up, and "
            f"{100 * LEAST_TOLERANCE:g} % at least: the files are two runs, which did not take "
            "turns."
        )
    yield from alike_lines(compared.differing)


def alike_lines(differing: Sequence[Difference]) -> Iterator[str]:
    """What else differs, as a sentence each."""
    for difference in differing:
        yield f"Not alike: {difference.what}: {difference.first} and {difference.second}."
