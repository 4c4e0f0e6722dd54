"""Results that stand beside each other were measured alike, or are not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codl.ir.environment import check_alike, differences
from codl.report.results import CurveResult, EvalResult, Result

FIX = "Report them apart, or say by --apart that nobody will compare them."


def check_results(results: Sequence[Result]) -> None:
    """Raise `MismatchError` where evaluations of one SoC are not of one environment.

    It names what differs and both values. Files from before environments were kept pass.
    """
    first: dict[str, EvalResult] = {}
    for own in _evaluations(results):
        if own.environment is None:
            continue
        other = first.setdefault(own.soc.name, own)
        assert other.environment is not None
        found = differences(other.environment, own.environment)
        check_alike(found, other.file, own.file, fix=FIX)


def _evaluations(results: Sequence[Result]) -> Iterator[EvalResult]:
    for result in results:
        if isinstance(result, EvalResult):
            yield result
        elif isinstance(result, CurveResult):
            yield from result.evaluations
