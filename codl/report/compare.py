"""Comparison of two result files of one command: differences beyond noise.

One rule holds for all figures: the noise of both files adds up as independent errors do. The noise
of a latency is half of its spread, because two files come from separate runs. The noise of an
accuracy follows from its number of rows. Checks have no noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, hypot, inf, log, sqrt
from typing import Any, Literal, TypeAlias

from codl.errors import MismatchError
from codl.ir.environment import NONE as MISSING
from codl.ir.environment import Difference, check_alike, differences
from codl.ir.records.results import Digests, EvalRow, Latency
from codl.report.results import SINGLES, EvalResult, Result, RunResult, TrainResult, ValidateResult
from codl.report.text_table import NONE, Column, TextTable, Value, digits, stem

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
#: Standard errors of a significant difference: one in 20 equal pairs exceeds it by chance.
ERRORS = 2.0

Verdict = Literal["alike", "better", "worse", "not compared"]
#: A figure's model or target, its strategy or predictor, and its unit.
FigureName: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True)
class Figure:
    """A figure of one file; the value is None where it failed, with the `reason`.

    `noise` is the logarithm of the factor by which chance moves it. Figures whose `basis` differs
    are not compared.
    """

    value: float | None
    noise: float = 0.0
    reason: str = ""
    basis: Mapping[str, str] = field(default_factory=dict)


def verdict_of(cost: float | None, tolerance: float) -> Verdict:
    """Costs between `1 / (1 + tolerance)` and `1 + tolerance` are noise."""
    if cost is None:
        return "not compared"
    if cost <= 0 or cost < 1 / (1 + tolerance):
        return "better"
    return "worse" if cost > 1 + tolerance else "alike"


@dataclass(frozen=True, kw_only=True)
class FigurePair:
    """One figure in both files; None where it is missing, with the `reason`.

    `cost` is the factor by which the second file is worse: above 1 slower, larger or less accurate.
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
        return over / under if under > 0 else inf

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.cost, self.tolerance)

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
        return verdict_of(self.cost, self.tolerance)

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
        compared = [(cost, p.tolerance) for p in pairs if (cost := p.cost) and cost != inf]
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


#: Units of figures: latencies, speedups, accuracies, and counts of wrong ops.
MS, SPEEDUP, WITHIN, WRONG = "ms", "speedup", "% within 10 %", "wrong"


def compare_results(first: Result, second: Result, *, speedups: bool = False) -> ResultComparison:
    """Compare the figures of two results of one command, in the order of the first.

    Figures of evaluations are latencies, or with `speedups` ratios to the better single processor
    of the same run, which a slower machine does not change. Raises `MismatchError` for results of
    two commands, or of a command without figures.
    """
    before, now = (figures_of(result, speedups=speedups) for result in (first, second))
    if type(first) is not type(second) or before is None or now is None:
        raise MismatchError(
            f"{first.file} is of `codl {first.command}` and {second.file} of `codl "
            f"{second.command}`: two results of one command are compared, of eval, run, train, "
            "validate."
        )
    pairs = tuple(_pair(name, before.get(name), now.get(name)) for name in {**before, **now})
    if not any(pair.cost is not None for pair in pairs):
        reason = next((f": {pair.reason}" for pair in pairs if pair.reason), "")
        raise MismatchError(f"{first.file} and {second.file} have no figure in common{reason}.")
    return ResultComparison(
        first=first, second=second, pairs=pairs, differing=tuple(_differing(first, second))
    )


def _pair(name: FigureName, before: Figure | None, now: Figure | None) -> FigurePair:
    group, of, what = name
    is_timed = what in (MS, SPEEDUP)
    noise = hypot(*(figure.noise for figure in (before, now) if figure))
    return FigurePair(
        group=group,
        name=of,
        what=what,
        before=before.value if before else None,
        now=now.value if now else None,
        less_is_better=what in (MS, WRONG),
        tolerance=max(LEAST_TOLERANCE if is_timed else 0.0, exp(noise) - 1),
        reason=_not_compared(before, now),
    )


def _not_compared(before: Figure | None, now: Figure | None) -> str:
    """Why two figures cannot be compared; empty where they can."""
    if before is None or now is None:
        return "not measured" if before else "not there before"
    for what, value in before.basis.items():
        if value and (other := now.basis.get(what)) and other != value:
            return "another model" if what == "model" else f"{what} {value}, then {other}"
    return (before.reason and f"before: {before.reason}") or now.reason


def figures_of(result: Result, *, speedups: bool = False) -> dict[FigureName, Figure] | None:
    """The figures of a result by name; None for a command without figures."""
    if isinstance(result, EvalResult):
        figure, what = (_speedup, SPEEDUP) if speedups else (_latency, MS)
        return {(stem(row.model), row.strategy, what): figure(result, row) for row in result.rows}
    if isinstance(result, RunResult):
        latency = result.latency_ms
        return {(stem(result.model), "run", MS): Figure(latency.level, noise_of([latency]))}
    if isinstance(result, TrainResult):
        return {
            (row.target, row.name, WITHIN): Figure(row.acc10, _chance(row.acc10, row.n_test))
            for row in result.predictors
            if row.split == "shape" and row.acc10 is not None
        }
    if isinstance(result, ValidateResult):
        return {(stem(result.model), "ops", WRONG): Figure(sum(x.ok is False for x in result.ops))}
    return None


def noise_of(latencies: Sequence[Latency | None]) -> float:
    """Noise of a latency, or of a ratio of latencies.

    Each latency contributes half of its spread from the level (20th percentile) to the median; the
    80th percentile would measure bursts, which do not move the level.
    """
    known = [latency for latency in latencies if latency and latency.level > 0]
    return hypot(*(log(latency.median / latency.level) / 2 for latency in known))


def _latency(result: EvalResult, row: EvalRow) -> Figure:
    latency, digests = row.latency_ms, result.digests or Digests()
    models = {stem(name): digest for name, digest in digests.models.items()}
    basis = {
        "model": models.get(stem(row.model), ""),
        "source": row.source,
        "version": row.peer.version if row.peer else "",
    }
    reason = "" if latency else f"failed: {row.reason}"
    level = latency.level if latency else None
    return Figure(level, noise_of([latency]), reason, basis)


def _speedup(result: EvalResult, row: EvalRow) -> Figure:
    alone = [one.latency_ms for one in result.of(row.model) if one.strategy in SINGLES]
    better = min((one for one in alone if one), key=lambda one: one.level, default=None)
    figure = _latency(result, row)
    noise = noise_of([row.latency_ms, better])
    return Figure(result.speedup(row), noise, figure.reason, figure.basis)


def _chance(percent: float, rows: int) -> float:
    """The relative statistical error of an accuracy, from its number of rows."""
    part = percent / 100
    return ERRORS * sqrt((1 - part) / (part * max(1, rows))) if part else inf


def _differing(first: Any, second: Any) -> Iterator[Difference]:
    results = (first, second)
    of = [getattr(result, "digests", None) or Digests() for result in results]
    both = {
        "commit": [result.commit for result in results],
        "SoC": [getattr(getattr(result, "soc", None), "name", "") for result in results],
        "dataset": [digests.dataset for digests in of],
        "tuning": [digests.tuning for digests in of],
        "environment": ["" if result.environment is None else "kept" for result in results],
    }
    for what, (before, now) in both.items():
        if before != now:
            yield Difference(what, before or MISSING, now or MISSING)
    if first.environment is not None and second.environment is not None:
        yield from differences(first.environment, second.environment)


def comparison_table(compared: ResultComparison, *, every: bool) -> TextTable:
    """A table of figures that differ beyond noise or were not compared; with `every`, of all."""
    shown = [pair for pair in compared.pairs if every or pair.verdict != "alike"]
    by_group: dict[str, list[tuple[Value, ...]]] = {}
    for pair in shown:
        cost = NONE if pair.cost in (None, inf) else f"{pair.cost:.3f}"
        noise = None if pair.tolerance == inf else 100 * pair.tolerance
        cells = (f"{pair.name}, {pair.what}", pair.before, pair.now, cost, noise)
        by_group.setdefault(pair.group, []).append((*cells, pair.reason or pair.verdict))
    title = f"{compared.second.file} beside {compared.first.file}"
    heads = ("figure", "before", "now", Column("times"), Column("noise (%)", spare=1), "verdict")
    return TextTable.plain(title, heads, by_group, _lines(compared, len(shown)))


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
    if any(pair.what in (MS, SPEEDUP) for pair in compared.pairs):
        yield (
            "Noise is half of each spread (p20 to the median), added up, and "
            f"{100 * LEAST_TOLERANCE:g} % at least: the files are two runs, which did not take "
            "turns."
        )
    for difference in compared.differing:
        yield f"Not alike: {difference.what}: {difference.first} and {difference.second}."
