"""Comparison of two result files of one command: differences beyond noise.

Latencies of two files come from separate runs, whose spreads are their tolerance. The
tolerance of held-out accuracies follows from the number of rows. Figures of compilers and checks
have no noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Any, Literal

from codl.errors import MismatchError
from codl.ir.environment import NONE as MISSING
from codl.ir.environment import Difference, check_alike, differences
from codl.ir.records.results import Digests, EvalRow, Latency, PredictorRow
from codl.report.results import SINGLES, EvalResult, Result, RunResult, TrainResult, ValidateResult
from codl.report.text_table import NONE, Cell, Column, TextTable, digits, stem, words

FIX = "Report them apart, or say by --apart that nobody will compare them."


def check_results(results: Sequence[Result]) -> None:
    """Raise `MismatchError` for evaluations of one SoC in different environments.

    The error names the difference and both values. Files without an environment pass.
    """
    first: dict[str, EvalResult] = {}
    for evaluation in results:
        if not isinstance(evaluation, EvalResult) or evaluation.environment is None:
            continue
        other = first.setdefault(evaluation.soc.name, evaluation)
        assert other.environment is not None
        different = differences(other.environment, evaluation.environment)
        check_alike(different, other.file, evaluation.file, fix=FIX)


#: Two processes on a quiet machine may differ by this factor, whatever the spread within each.
LEAST_TOLERANCE = 0.03


def latencies_of(result: EvalResult, row: EvalRow) -> list[Latency]:
    """The latencies behind a row's speedup: its own, and the better single processor's."""
    alone = [latency.latency_ms for latency in result.of(row.model) if latency.strategy in SINGLES]
    better = min(
        (latency for latency in alone if latency), key=lambda latency: latency.level, default=None
    )
    return [latency for latency in (row.latency_ms, better) if latency]


def tolerance_of(latencies: Sequence[Latency]) -> float:
    """Noise between latencies of two runs, or between ratios of them, relative to the smaller one.

    Each latency contributes half of its spread from the level (20th percentile) to the median; the
    80th percentile would measure bursts, which do not move the level. Contributions add up like
    independent errors, to at least `LEAST_TOLERANCE`.
    """
    halves = [log(latency.median / latency.level) / 2 for latency in latencies if latency.level > 0]
    return max(LEAST_TOLERANCE, exp(hypot(*halves)) - 1)


Verdict = Literal["alike", "better", "worse", "not compared"]
#: Standard errors of a significant difference: one in 20 equal pairs exceeds it by chance.
ERRORS = 2.0
#: The cost of a nonzero error where the first is zero.
ENDLESS = float("inf")


@dataclass(frozen=True, kw_only=True)
class FigurePair:
    """One figure in both files; None where it is missing, with the `reason`.

    `cost` is the factor by which the second file is worse: above 1 slower, larger or less accurate.
    Costs between `1 / (1 + tolerance)` and `1 + tolerance` are noise.
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
        """True where only the first file has the figure."""
        return self.before is not None and self.now is None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "cost": self.cost, "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The geometric mean of `count` costs of one name, with its tolerance.

    A disturbance of a whole run does not average out, so timed means keep a least tolerance.
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
    """Two result files: pairs of figures, means, and other differences."""

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
        """Pairs worse by more than `limit` and by more than noise, or missing in the second."""
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
    """Compare the figures of two results of one command, in the order of the first.

    Figures of evaluations are latencies, or with `speedups` ratios to the better single processor
    of the same run, which a slower machine does not change. Raises `MismatchError` for results of
    two commands, or of a command without figures.
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
    """Fractions of held-out rows, by op shape, that are predicted within 10 %."""
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
    """The relative statistical error of an accuracy, from its number of rows."""
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


#: Figures by the type of result.
PAIRS: Mapping[type, Callable[[Any, Any], Iterable[FigurePair]]] = {
    EvalResult: _latencies,
    RunResult: _run,
    TrainResult: _accuracies,
    ValidateResult: _checks,
}


def comparison_table(compared: ResultComparison, *, every: bool) -> TextTable:
    """A table of figures that differ beyond noise or were not compared; with `every`, of all."""
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
    for difference in compared.differing:
        yield f"Not alike: {difference.what}: {difference.first} and {difference.second}."
