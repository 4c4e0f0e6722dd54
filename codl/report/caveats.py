"""Caveats of an evaluation: what must be read with its latencies, and who was fastest."""

from __future__ import annotations

from collections.abc import Sequence

from codl.records.results import EvalRow, Latency
from codl.report.results import IDEAL, EvalResult
from codl.report.text_table import digits, stem


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
    near = [row.strategy for row in others if _latency(first).p80 >= _latency(row).p20]
    return (
        f"{text}; not told apart from {', '.join(near)} (spreads overlap)." if near else f"{text}."
    )


def _latency(row: EvalRow) -> Latency:
    if row.latency_ms is None:
        raise ValueError("a failed row has no latency")
    return row.latency_ms


#: Processors that are slower or faster than usual by less than this are as usual.
NOTABLE = 0.05
#: What a latency is; see `codl.records.statistic`.
LATENCY = "A latency is the 20th percentile of the runs."
#: What a first run is.
TURNS = "the first of a turn, with caches that others filled; latencies are of the later runs."


def same_notes(result: EvalResult) -> list[str]:
    """Which strategies led to the same executable as one before them."""
    rows = [row for row in result.rows if row.same_as]
    same = [f"{stem(row.model)}: {row.strategy} is {row.same_as}" for row in rows]
    if not same:
        return []
    return [f"Plans with the same executable were timed once. {'; '.join(same)}."]


def peer_notes(result: EvalResult) -> list[str]:
    """What libraries were run beside the strategies, and on how many cores they were seen."""
    peers = {row.strategy: row.peer for row in result.rows if row.peer is not None}
    if not peers:
        return []
    each = [
        f"{name} {peer.version} ({peer.threads} threads, seen on cores "
        f"{', '.join(map(str, peer.observed_cores))}, {digits(peer.busy_cores)} of them busy)"
        for name, peer in peers.items()
    ]
    return [f"Peers have the cores of both sides, in their own processes: {'; '.join(each)}."]


def doubt_notes(result: EvalResult) -> list[str]:
    """Which latencies may be those of a disturbed machine."""
    each = [
        f"{stem(row.model)} by {row.strategy}: {', '.join(row.doubts)}"
        for row in result.rows
        if row.doubts and not row.same_as
    ]
    if not each:
        return []
    return [
        f"Doubtful, as where other programs run: {'; '.join(each)}. Measure again, or for longer "
        "by --time."
    ]


def cold_notes(result: EvalResult) -> list[str]:
    """How much longer first runs took; nothing of files from before they were kept apart."""
    ratios = [
        (row.cold_ms.level / row.latency_ms.level, f"{stem(row.model)}, {row.strategy}")
        for row in result.rows
        if row.cold_ms and row.latency_ms and row.latency_ms.level and not row.same_as
    ]
    if not ratios:
        return []
    ends = dict.fromkeys(f"{ratio:.2f} ({of})" for ratio, of in (min(ratios), max(ratios)))
    return [f"First runs took {' to '.join(ends)} of the others. A first run is {TURNS}"]


def machine_notes(result: EvalResult) -> list[str]:
    """Notes on an evaluation that is incomplete, on throttled processors, and on slower ones."""
    notes, slower = [result.incomplete] if result.incomplete else [], {}
    for model in result.models:
        held = {s for row in result.of(model) if row.conditions for s in row.conditions.throttled}
        if held:
            clocks = " and the ".join(side.upper() for side in sorted(held))
            notes.append(f"{stem(model)}: the clock of the {clocks} was held down meanwhile.")
        slowdown = next((row.slowdown for row in result.of(model) if row.slowdown), None) or {}
        if any(abs(factor - 1) > NOTABLE for factor in slowdown.values()):
            slower[stem(model)] = slowdown
    if slower:
        sides = dict.fromkeys(side for of in slower.values() for side in of)
        each = (
            f"{side} {_range([of[side] for of in slower.values() if side in of])}" for side in sides
        )
        notes.append(
            f"{', '.join(slower)}: anchor ops took {', '.join(each)} of what they did when the "
            "dataset was measured."
        )
    return notes


def _range(factors: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(factors), max(factors))))
