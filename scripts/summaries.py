"""Tables of the docs that sum up what a result file has in many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

from codl.ir.records.results import Amount, Count, EvalRow, PredictorRow
from codl.ir.types import Processor
from codl.registry import RESULTS
from codl.report.results import IDEAL, SINGLES, EvalResult, PluginResult, SocSummary, TrainResult
from codl.report.tables import LATENCY, eval_notes, origin_lines, soc_lines, warnings
from codl.report.text_table import (
    NONE,
    Column,
    TextRow,
    TextSection,
    TextTable,
    Value,
    count,
    digits,
    nearness,
    stem,
    words,
)

#: The predictor whose further figures are shown.
DETAILED = "codl"
#: What a target is of, by the beginning of its name; of the others its processor decides.
GROUPS = {
    "data_sharing": "data sharing",
    "dispatch": "launches and waits",
    "first_launch": "launches and waits",
    "event_wait": "launches and waits",
    "flag_wait": "launches and waits",
}
#: Targets of muLayer's, of whole kinds of op; and of datasets that are no longer measured.
LEFT_OUT = ("batch_", "mulayer_", "cold_", "contention_")


def comparison_content(result: EvalResult) -> TextTable:
    """Latencies of an evaluation: a row per model, a column per strategy or peer, then speedups."""
    names = list(dict.fromkeys(row.strategy for row in result.rows))
    peers = {row.strategy for row in result.rows if row.peer}
    planned = [name for name in names if name not in (*SINGLES, IDEAL, *peers)]
    heads = ("model", *(Column(f"`{name}`") for name in names))
    heads += tuple(Column(f"speedup of `{name}`") for name in planned)
    rows: list[tuple[Value, ...]] = []
    failed = [row for row in result.rows if row.latency_ms is None]
    for model in result.models:
        of = {row.strategy: row for row in result.of(model)}
        levels = {name: row.latency_ms.level for name, row in of.items() if row.latency_ms}
        cells = [levels.get(name, "failed" if name in of else None) for name in names]
        speedups = [result.speedup(of[name]) if name in of else None for name in planned]
        rows.append((stem(model), *cells, *speedups))
    ideal = "`ideal` is computed: the best measured split of every op, without data sharing."
    caption = (
        f"Milliseconds, all of a model in one run, in turns. {LATENCY} Speedups are over the "
        "faster of `cpu` and `gpu`.",
        *([ideal] if IDEAL in names else []),
        *_accuracy_note(result.rows),
        *eval_notes(result),
        *(f"{row.strategy} on {row.model} failed: {row.reason.rstrip('.')}." for row in failed),
        *soc_lines(result.soc),
        *warnings([row.source for row in result.rows]),
        *origin_lines(result),
    )
    return TextTable.plain(f"Latency on {result.soc.name}", heads, rows, caption)


def _accuracy_note(rows: Sequence[EvalRow]) -> tuple[str, ...]:
    """The worst output of all rows, against ONNX Runtime."""
    cosines = [row.cosine for row in rows if row.cosine is not None]
    errors = [row.max_rel_err for row in rows if row.max_rel_err is not None]
    if not cosines or not errors:
        return ()
    return (
        f"Against ONNX Runtime the least cosine of an output is {min(cosines):.9f}, the largest "
        f"max_rel_err {digits(max(errors))}.",
    )


def accuracy_content(result: TrainResult) -> TextTable:
    """Held-out accuracy by shape: a row for each group of targets, weighted by their rows."""
    rows = [
        row
        for row in result.predictors
        if row.split == "shape" and row.acc10 is not None and not row.target.startswith(LEFT_OUT)
    ]
    names = list(dict.fromkeys(row.name for row in rows))
    columns = [words("targets"), Column("number"), Column("rows held out")]
    columns += [Column(f"`{name}`") for name in names]
    columns += [Column(f"`{DETAILED}` 5 %"), Column("MAPE")]
    lines = []
    ordered = sorted(rows, key=_group)
    for name, of_group in groupby(ordered, _group):
        lines.append(_accuracy(name, list(of_group), names))
    lines.append(_accuracy("all", rows, names))
    caption = (
        "Percentage of held-out rows predicted within 10 %, whole op shapes held out; the last "
        f"columns are of `{DETAILED}`. Training took {digits(result.train_s)} s.",
        *soc_lines(result.soc),
        *origin_lines(result),
    )
    return TextTable("Accuracy", tuple(columns), (TextSection("", tuple(lines)),), caption)


def _group(row: PredictorRow) -> str:
    prefix = next((name for start, name in GROUPS.items() if row.target.startswith(start)), "")
    return prefix or f"operators on the {str(row.processor).upper()}"


def _accuracy(group: str, rows: Sequence[PredictorRow], names: Sequence[str]) -> TextRow:
    def mean(name: str, figure: Callable[[PredictorRow], float | None]) -> str:
        known = [(row.n_test, figure(row)) for row in rows if row.name == name]
        weighed = [(n, value) for n, value in known if value is not None]
        total = sum(n for n, _ in weighed)
        return digits(sum(n * value for n, value in weighed) / total) if total else NONE

    tests = {row.target: row.n_test for row in rows}
    shown = [mean(name, lambda row: row.acc10) for name in names]
    details = (lambda row: row.acc5, lambda row: row.mape)
    shown += [mean(DETAILED, figure) for figure in details]
    return TextRow((group, count(len(tests)), count(sum(tests.values())), *shown))


@dataclass(frozen=True, kw_only=True)
class ValidatedModel:
    """A summary of a model's ops on one processor of a SoC, and of its outputs.

    `parts` and `variants` count checks; `wrong` are bad checks, `left` parts that were not reached.
    `op_cosine` is the lowest cosine of a part. `op_err` is the largest error relative to the
    rounding of the part's variant. `reason` says why all else is missing.
    """

    model: str
    processor: Processor
    stored: str
    parts: Count = 0
    variants: Count = 0
    wrong: tuple[str, ...] = ()
    left: Count = 0
    op_cosine: float | None = None
    op_err: Amount | None = None
    cosine: float | None = None
    max_rel_err: Amount | None = None
    ok: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidationsResult(PluginResult):
    """Result of `scripts/validate_models.py`: many models on one device."""

    command: ClassVar[str] = "validations"
    soc: SocSummary
    gpu: str
    driver: str
    rows: tuple[ValidatedModel, ...]


RESULTS.add("validations", ValidationsResult)


def devices_content(results: Sequence[ValidationsResult]) -> TextTable:
    """Many models on several devices: a line for each device and way to run."""
    columns = (
        words("device"),
        words("on"),
        Column("models"),
        Column("parts of ops"),
        Column("not ok"),
        Column("largest error of its limit"),
        Column("lowest cosine"),
        Column("largest error"),
    )
    lines, caption = [], []
    for result in results:
        platform = result.environment.platform if result.environment else ""
        device = f"{result.gpu}, {' '.join(platform.split()[:3])}".rstrip(", ")
        for way, rows in groupby(sorted(result.rows, key=_way), _way):
            lines.append(_device(device, way, list(rows)))
        failed = [f"{row.model} ({row.reason})" for row in result.rows if row.reason]
        wrong = [f"{row.model} ({', '.join(row.wrong)})" for row in result.rows if row.wrong]
        caption += [f"Not checked on {device}: {', '.join(failed)}."] if failed else []
        caption += [f"Not ok on {device}: {', '.join(wrong)}."] if wrong else []
        caption += origin_lines(result)
    head = (
        "Error of its limit: the largest error of an op over what is rounding in its variant, "
        "below 1 where all are ok; then the outputs of whole models."
    )
    return TextTable("Devices", columns, (TextSection("", tuple(lines)),), (head, *caption))


def _way(row: ValidatedModel) -> str:
    return "CPU" if row.processor == "cpu" else f"GPU, {row.stored}"


def _device(device: str, way: str, rows: Sequence[ValidatedModel]) -> TextRow:
    ran = [row for row in rows if not row.reason]
    cells = (
        device,
        way,
        count(len(ran)),
        count(sum(row.parts for row in ran)),
        count(sum(len(row.wrong) + row.left for row in ran)),
        digits(_most(row.op_err for row in ran)),
        nearness(min((row.cosine for row in ran if row.cosine is not None), default=None)),
        digits(_most(row.max_rel_err for row in ran)),
    )
    return TextRow(cells)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class ConformanceResult(PluginResult):
    """What `scripts/conformance.py` wrote: counts of cases, and reasons of refusals."""

    command: ClassVar[str] = "conformance"
    gpu: str
    driver: str
    onnx: str
    cases: int
    passed: int
    failed: int
    refused: int
    converted: int
    renamings: int
    refusals: Mapping[str, int] = field(default_factory=dict)


RESULTS.add("conformance", ConformanceResult)


def conformance_content(results: Sequence[ConformanceResult]) -> TextTable:
    """What became of ONNX's test cases: a row per device."""
    suites = sorted({result.onnx for result in results})
    caption = [
        f"Cases of ONNX {', '.join(suites)}. Converted: passed with tensors of other types than "
        "float32. Only rename: passed, with nothing to compute."
    ]
    caption += [line for result in results for line in origin_lines(result)]
    rows = [
        (f"{own.gpu} ({own.driver})", own.cases, own.passed, own.failed, own.refused,
         own.converted, own.renamings)
        for own in results
    ]  # fmt: skip
    heads = ("device", "cases", "passed", "failed", "refused", "converted", "only rename")
    return TextTable.plain("Conformance", heads, rows, caption)


def refusals_content(results: Sequence[ConformanceResult]) -> TextTable:
    """Why cases were refused, of the first device."""
    rows = [(count, why) for why, count in results[0].refusals.items()]
    return TextTable.plain("Refused cases", ("refused", "why"), rows)
