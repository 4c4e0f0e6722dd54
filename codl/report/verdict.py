"""The verdict of an evaluation: models by strategies in one table, and one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean

from codl.records.results import EvalRow
from codl.report.results import IDEAL, SINGLES, UNMEASURED, EvalResult
from codl.report.text_table import NONE, digits, stem

TIMES = "\N{MULTIPLICATION SIGN}"
LIBRARY = "best library"


@dataclass(frozen=True)
class VerdictCell:
    """A latency and how many times as fast it is as the better processor; `marks` are why it is to
    be read with care. The fastest of its model `is_best`.
    """

    ms: str = NONE
    speedup: str = ""
    name: str = ""
    is_best: bool = False
    marks: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """A line a model with a cell for each of the `columns`, and geometric means of speedups."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[VerdictCell, ...]], ...]
    means: tuple[str, ...]
    sentence: str

    @classmethod
    def of(cls, result: EvalResult) -> Verdict | None:
        """None where no model has a latency."""
        if not any(row.latency_ms for row in result.rows):
            return None
        names = [name for name in _names(result) if name != LIBRARY]
        peers = any(row.peer for row in result.rows)
        columns = (*names, *([LIBRARY] if peers else []))
        lines = tuple(
            (stem(model), tuple(_cell(result, model, name) for name in columns))
            for model in result.models
        )
        means = tuple(_mean(result, name) for name in columns)
        return cls(columns, lines, means, _sentence(result))


def _names(result: EvalResult) -> list[str]:
    """Strategies in the order of the file, and the libraries as one."""
    return list(dict.fromkeys(_column(result, row) for row in result.rows))


def _column(result: EvalResult, row: EvalRow) -> str:
    """A library that failed on a model says nothing of itself there, but on others."""
    is_peer = any(other.peer for other in result.rows if other.strategy == row.strategy)
    return LIBRARY if is_peer else row.strategy


def row_of(result: EvalResult, model: str, name: str) -> EvalRow | None:
    """What a column of a model is of; of libraries the fastest."""
    rows = [row for row in result.of(model) if _column(result, row) == name]
    ran = [row for row in rows if row.latency_ms]
    return min(ran, key=_level) if ran else next(iter(rows), None)


def _level(row: EvalRow) -> float:
    assert row.latency_ms is not None
    return row.latency_ms.level


def _cell(result: EvalResult, model: str, name: str) -> VerdictCell:
    row = row_of(result, model, name)
    if row is None:
        return VerdictCell()
    if row.latency_ms is None:
        return VerdictCell("failed", why=row.reason or "no reason recorded")
    ran = [other for other in result.of(model) if other.latency_ms and other.strategy != IDEAL]
    same = [other for other in ran if other.source == row.source]
    speedup = result.speedup(row)
    marks = [row.source] if row.source in UNMEASURED else []
    return VerdictCell(
        digits(_level(row)),
        "" if speedup is None else f"{speedup:.2f} {TIMES}",
        row.strategy if name == LIBRARY else "",
        bool(same) and row.strategy != IDEAL and _level(row) == min(map(_level, same)),
        (*marks, *(["doubtful"] if result.doubts(row) else [])),
        "; ".join(result.doubts(row)),
    )


def _speedups(result: EvalResult, name: str) -> list[float]:
    rows = [row_of(result, model, name) for model in result.models]
    speedups = [result.speedup(row) for row in rows if row and row.latency_ms]
    return [speedup for speedup in speedups if speedup]


def _mean(result: EvalResult, name: str) -> str:
    """Geometric; with the number of models where that is not all."""
    speedups = _speedups(result, name)
    if not speedups:
        return NONE
    of = (
        "" if len(speedups) == len(result.models) else f" ({len(speedups)} of {len(result.models)})"
    )
    return f"{geometric_mean(speedups):.2f} {TIMES}{of}"


def _sentence(result: EvalResult) -> str:
    """The conclusion, from the figures alone."""
    planned = [n for n in _names(result) if n not in (*SINGLES, IDEAL, LIBRARY)]
    whole = [n for n in planned if len(_speedups(result, n)) == len(_ran(result))]
    if not whole or not _ran(result):
        nothing = "No strategy ran beside a processor alone: there is nothing to compare with."
        return nothing + _care(result)
    best = max(whole, key=lambda name: geometric_mean(_speedups(result, name)))
    speedups = _speedups(result, best)
    mean = geometric_mean(speedups)
    how = f"{mean:.2f} times as fast as" if mean >= 1 else f"slower ({mean:.2f} {TIMES}) than"
    text = f"{best} is {how} the better processor alone"
    if len(speedups) > 1:
        text += (
            f" in the geometric mean of {len(speedups)} models, from {min(speedups):.2f} to "
            f"{max(speedups):.2f}"
        )
    return f"{text}{_beside_libraries(result, best)}.{_care(result)}"


def _ran(result: EvalResult) -> list[str]:
    """Models of which a processor alone has a latency."""
    return [
        model
        for model in result.models
        if any(row.latency_ms for row in result.of(model) if row.strategy in SINGLES)
    ]


def _beside_libraries(result: EvalResult, best: str) -> str:
    pairs = [(row_of(result, m, LIBRARY), row_of(result, m, best)) for m in result.models]
    ratios = [
        _level(library) / _level(plan)
        for library, plan in pairs
        if library and plan and library.latency_ms and plan.latency_ms
    ]
    if not ratios:
        return ""
    mean = geometric_mean(ratios)
    if mean >= 1:
        return f", and {mean:.2f} times as fast as the best library on all cores"
    return f"; the best library on all cores is {1 / mean:.2f} times as fast as that"


def _care(result: EvalResult) -> str:
    """What the conclusion must be read with."""
    timed = [row for row in result.rows if row.latency_ms and not row.same_as]
    doubtful = sum(bool(result.doubts(row)) for row in timed)
    sources = [source for source in UNMEASURED if any(row.source == source for row in timed)]
    are = "is" if doubtful == 1 else "are"
    text = f" {doubtful} of {len(timed)} latencies {are} doubtful." if doubtful else ""
    return text + (f" Not measured here: {' and '.join(sources)} latencies." if sources else "")
