"""Findings of an evaluation: one sentence per model on which strategy was fastest."""

from __future__ import annotations

from collections.abc import Sequence

from codl.ir.results import EvalRow, Latency
from codl.report.content import digits, stem
from codl.report.results import IDEAL, EvalResult


def findings(result: EvalResult) -> tuple[str, ...]:
    """The fastest strategy of every model; only latencies of one source are compared."""
    return tuple(
        _fastest(result, model, [row for row in ran if row.source == source])
        for model in result.models
        for ran in [[row for row in result.of(model) if row.latency_ms and row.strategy != IDEAL]]
        for source in dict.fromkeys(row.source for row in ran)
    )


def _fastest(result: EvalResult, model: str, rows: Sequence[EvalRow]) -> str:
    first, *others = sorted(rows, key=lambda row: _latency(row).level)
    text = f"{stem(model)}: {first.strategy}"
    text += " is the fastest" if others else " alone"
    text += f", {digits(_latency(first).level)} ms ({first.source})"
    speedup, of_ideal = result.speedup(first), result.of_ideal(first)
    if speedup is not None:
        text += f", {digits(speedup)} times as fast as the better single processor"
    if of_ideal is not None:
        text += f", {digits(of_ideal, percent=True)} % of the ideal"
        text += ", the best split of each op alone: fused ops may beat it" if of_ideal > 1 else ""
    near = [row.strategy for row in others if _overlap(_latency(first), _latency(row))]
    return (
        f"{text}; not told apart from {', '.join(near)} (spreads overlap)." if near else f"{text}."
    )


def _latency(row: EvalRow) -> Latency:
    if row.latency_ms is None:
        raise ValueError("a failed row has no latency")
    return row.latency_ms


def _overlap(faster: Latency, slower: Latency) -> bool:
    return faster.p80 >= slower.p20
