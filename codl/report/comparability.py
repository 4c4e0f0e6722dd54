"""Whether evaluations may be compared, and whether one that was run again agrees with the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from codl.ir.environment import check_alike, differences
from codl.records.results import EvalRow, Latency
from codl.report.results import SINGLES, EvalResult, Result
from codl.report.text_table import Cell, Column, TextTable, digits, words

FIX = "Report them apart, or say by --apart that nobody will compare them."


def check_results(results: Sequence[Result]) -> None:
    """Raise `MismatchError` where evaluations of one SoC are not of one environment.

    It names what differs and both values. Files from before environments were kept pass.
    """
    first: dict[str, EvalResult] = {}
    for evaluation in results:
        if not isinstance(evaluation, EvalResult) or evaluation.environment is None:
            continue
        other = first.setdefault(evaluation.soc.name, evaluation)
        assert other.environment is not None
        different = differences(other.environment, evaluation.environment)
        check_alike(different, other.file, evaluation.file, fix=FIX)


#: Two processes on a quiet machine differ by this part at times, whatever each of them has seen.
LEAST_TOLERANCE = 0.03


@dataclass(frozen=True)
class SpeedupComparison:
    """A ratio over the better single processor, in both runs; `reason` says why there is none.

    They agree where the larger is at most `1 + tolerance` times the smaller.
    """

    model: str
    strategy: str
    before: float | None
    now: float | None
    tolerance: float
    agrees: bool
    reason: str = ""


def compare(before: EvalResult, now: EvalResult) -> tuple[SpeedupComparison, ...]:
    """Every figure of the first evaluation that was measured beside that of the second."""
    again = {(row.model, row.strategy): row for row in now.rows}
    measured = [row for row in before.rows if row.source != "computed"]
    return tuple(
        _figure(before, row, now, again.get((row.model, row.strategy))) for row in measured
    )


def _figure(
    before: EvalResult, row: EvalRow, now: EvalResult, again: EvalRow | None
) -> SpeedupComparison:
    of = (row.model, row.strategy)
    if again is None:
        return SpeedupComparison(*of, before.speedup(row), None, 0.0, False, "not measured again")
    if row.latency_ms is None or again.latency_ms is None:
        reason = row.reason if again.latency_ms else again.reason
        is_same = row.latency_ms is again.latency_ms
        ratios = before.speedup(row), now.speedup(again)
        return SpeedupComparison(*of, *ratios, 0.0, is_same, f"failed: {reason}")
    if row.peer and again.peer and row.peer.version != again.peer.version:
        versions = f"version {row.peer.version} then, {again.peer.version} now"
        return SpeedupComparison(*of, before.speedup(row), now.speedup(again), 0.0, False, versions)
    first, second = before.speedup(row), now.speedup(again)
    tolerance = tolerance_of([*latencies_of(before, row), *latencies_of(now, again)])
    if not first or not second:
        return SpeedupComparison(
            *of, first, second, tolerance, False, "no processor alone to compare with"
        )
    agrees = abs(log(second / first)) <= log(1 + tolerance)
    return SpeedupComparison(*of, first, second, tolerance, agrees)


def latencies_of(result: EvalResult, row: EvalRow) -> list[Latency]:
    """That of a row, and of the better processor alone, which its ratio is made of."""
    alone = [latency.latency_ms for latency in result.of(row.model) if latency.strategy in SINGLES]
    better = min(
        (latency for latency in alone if latency), key=lambda latency: latency.level, default=None
    )
    return [latency for latency in (row.latency_ms, better) if latency]


def tolerance_of(latencies: Sequence[Latency]) -> float:
    """What is noise between latencies of two runs, or ratios made of them, over the smaller one.

    It is half of the spread of each, which add up as independent errors do, and
    `LEAST_TOLERANCE` at least.

    That is from the level, the 20th percentile, to the median. The 80th percentile is that of
    bursts, which the level does not move with.
    """
    halves = [log(latency.median / latency.level) / 2 for latency in latencies if latency.level > 0]
    return max(LEAST_TOLERANCE, exp(hypot(*halves)) - 1)


def agreement_content(figures: Sequence[SpeedupComparison], first: str) -> TextTable:
    """A line for every figure; `first` is the file of the evaluation that was run again."""
    cells: list[Cell[SpeedupComparison]] = [
        (words("strategy"), lambda figure: figure.strategy),
        (Column(f"speedup in {first}"), lambda figure: digits(figure.before)),
        (Column("now"), lambda figure: digits(figure.now)),
        (Column("tolerance (%)"), lambda figure: digits(figure.tolerance, percent=True)),
        (words("agrees"), _verdict),
    ]
    by_model: dict[str, list[SpeedupComparison]] = {}
    for figure in figures:
        by_model.setdefault(figure.model, []).append(figure)
    caption = (
        "Speedups over the better of cpu and gpu in the same run. The tolerance is made of the "
        "spreads (p20 to the median) of the latencies in both runs.",
    )
    return TextTable.of("Once more", by_model, cells, caption)


def _verdict(figure: SpeedupComparison) -> str:
    verdict = "yes" if figure.agrees else "no"
    return f"{verdict}: {figure.reason}" if figure.reason else verdict
