"""Tables of several: models by strategies, targets by predictors, plans, conformance, bundles."""

from __future__ import annotations

from collections.abc import Sequence

from codl.records.results import EvalRow, PredictorRow
from codl.report.content import NONE, Column, TextRow, TextSection, TextTable, count, digits
from codl.report.notes import LATENCY, cold_notes, machine_notes, peer_notes, same_notes
from codl.report.results import (
    IDEAL,
    SINGLES,
    ConformanceResult,
    EvalResult,
    PackageResult,
    ResultFile,
    SearchesResult,
    TrainResult,
)
from codl.report.tables import soc_lines, warnings

#: Whose 5 % accuracy, error and interval are shown as well.
DETAILED = "codl"


def comparison_content(result: EvalResult) -> TextTable:
    """Latencies of an evaluation: a row per model, a column per strategy or peer, then speedups."""
    names = list(dict.fromkeys(row.strategy for row in result.rows))
    peers = {row.strategy for row in result.rows if row.peer}
    planned = [name for name in names if name not in (*SINGLES, IDEAL, *peers)]
    columns = (
        Column("model", numeric=False),
        *(Column(f"`{name}`") for name in names),
        *(Column(f"speedup of `{name}`") for name in planned),
    )
    rows = tuple(
        TextRow(_comparison_cells(result, model, names, planned)) for model in result.models
    )
    caption = (
        f"Milliseconds, all of a model in one run, in turns. {LATENCY} Speedups are over the "
        "faster of `cpu` and `gpu`.",
        *_ideal_note(names),
        *_accuracy_note(result.rows),
        *same_notes(result),
        *peer_notes(result),
        *cold_notes(result),
        *machine_notes(result),
        *_failures(result.rows),
        *soc_lines(result.soc),
        *warnings([row.source for row in result.rows]),
        *origin_lines(result),
    )
    return TextTable(f"Latency on {result.soc.name}", columns, (TextSection("", rows),), caption)


def plans_content(result: SearchesResult) -> TextTable:
    """A row per model that was searched."""
    columns = (
        Column("model", numeric=False),
        Column("strategy", numeric=False),
        Column("chains"),
        Column("on both"),
        Column("predicted (ms)"),
        Column("search (ms)"),
    )
    rows = [
        TextRow(
            (
                plan.model,
                plan.strategy,
                count(len(plan.chains)),
                count(sum(0 < chain.gpu_ratio < 1 for chain in plan.chains)),
                digits(plan.predicted_ms),
                digits(plan.search_ms),
            )
        )
        for plan in result.plans
    ]
    rows += [TextRow((own.model,), failure=own.reason) for own in result.failed]
    caption = (*soc_lines(result.soc), "Latencies are predicted; nothing was run.")
    return TextTable(
        f"Plans on {result.soc.name}", columns, (TextSection("", tuple(rows)),), caption
    )


def _comparison_cells(
    result: EvalResult, model: str, names: Sequence[str], planned: Sequence[str]
) -> tuple[str, ...]:
    rows = {row.strategy: row for row in result.of(model)}
    return (
        model,
        *(_latency(rows.get(name)) for name in names),
        *(digits(result.speedup(rows[name]) if name in rows else None) for name in planned),
    )


def _latency(row: EvalRow | None) -> str:
    if row is None:
        return NONE
    return digits(row.latency_ms.level) if row.latency_ms else "failed"


def _ideal_note(names: Sequence[str]) -> tuple[str, ...]:
    if IDEAL not in names:
        return ()
    return ("`ideal` is computed: the best measured split of every op, without data sharing.",)


def _accuracy_note(rows: Sequence[EvalRow]) -> tuple[str, ...]:
    """The worst output of all, against ONNX Runtime."""
    cosines = [row.cosine for row in rows if row.cosine is not None]
    errors = [row.max_rel_err for row in rows if row.max_rel_err is not None]
    if not cosines or not errors:
        return ()
    return (
        f"Against ONNX Runtime the least cosine of an output is {min(cosines):.9f}, the largest "
        f"max_rel_err {digits(max(errors))}.",
    )


def _failures(rows: Sequence[EvalRow]) -> list[str]:
    failed = [row for row in rows if row.latency_ms is None]
    return [f"{row.strategy} on {row.model} failed: {row.reason.rstrip('.')}." for row in failed]


def accuracy_content(result: TrainResult) -> TextTable:
    """Held-out accuracy by shape: a row per target, a column per predictor."""
    rows = [row for row in result.predictors if row.split == "shape"]
    names = list(dict.fromkeys(row.name for row in rows))
    targets = {row.target: {r.name: r for r in rows if r.target == row.target} for row in rows}
    details = (f"`{DETAILED}` 5 %", "MAPE", "in the 90 % interval") if DETAILED in names else ()
    columns = (
        Column("target", numeric=False),
        Column("rows"),
        *(Column(f"`{name}`") for name in names),
        *map(Column, details),
    )
    cells = (_accuracy_cells(target, by_name, names) for target, by_name in targets.items())
    caption = (
        "Percentage of rows predicted within 10 %, whole op shapes held out; the last columns are "
        f"of `{DETAILED}`. Rows are those that a fold is trained on.",
        f"Training took {digits(result.train_s)} s.",
        *soc_lines(result.soc),
        *warnings(result.sources),
        *origin_lines(result),
    )
    title = f"Held-out accuracy on {result.soc.name}"
    return TextTable(
        title, columns, (TextSection("", tuple(TextRow(each) for each in cells)),), caption
    )


def _accuracy_cells(
    target: str, by_name: dict[str, PredictorRow], names: Sequence[str]
) -> tuple[str, ...]:
    detailed = by_name.get(DETAILED)
    trained = max(row.n_train for row in by_name.values())
    accuracies = (by_name[name].acc10 if name in by_name else None for name in names)
    extra: tuple[str, ...] = ()
    if DETAILED in names:
        values = (detailed.acc5, detailed.mape, detailed.coverage90) if detailed else (None,) * 3
        extra = tuple(map(digits, values))
    return (f"`{target}`", count(trained), *map(digits, accuracies), *extra)


def conformance_content(results: Sequence[ConformanceResult]) -> TextTable:
    """What became of ONNX's test cases: a row per device."""
    headers = ("cases", "passed", "failed", "refused", "converted", "only rename")
    columns = (Column("device", numeric=False), *map(Column, headers))
    rows = tuple(
        TextRow(
            (
                f"{result.gpu} ({result.driver})",
                *map(count, (result.cases, result.passed, result.failed, result.refused)),
                *map(count, (result.converted, result.renamings)),
            )
        )
        for result in results
    )
    suites = sorted({result.onnx for result in results})
    caption = [
        f"Cases of ONNX {', '.join(suites)}. Converted: passed with tensors of other types than "
        "float32. Only rename: passed, with nothing to compute."
    ]
    caption += [line for result in results for line in origin_lines(result)]
    return TextTable("Conformance", columns, (TextSection("", rows),), tuple(caption))


def refusals_content(results: Sequence[ConformanceResult]) -> TextTable:
    """Why cases were refused, of the first device."""
    columns = (Column("refused", numeric=True), Column("why", numeric=False))
    reasons = results[0].refusals
    rows = tuple(TextRow((count(number), reason)) for reason, number in reasons.items())
    return TextTable("Refused cases", columns, (TextSection("", rows),))


def bundles_content(results: Sequence[PackageResult]) -> TextTable:
    """Bundles: their size, and the start of a new process from them."""
    headers = ("bundle (MB)", "start (ms)", "imports", "loading", "first inference")
    columns = (
        Column("model", numeric=False),
        Column("SoC", numeric=False),
        *map(Column, headers),
    )
    rows = tuple(
        TextRow(
            (
                result.model,
                result.soc.name,
                digits(result.bytes / 1e6),
                *map(digits, (result.cold_start_ms, result.import_ms)),
                *map(digits, (result.load_ms, result.first_run_ms)),
            )
        )
        for result in results
    )
    caption = ["Milliseconds from the start of a process to its first output, and its parts."]
    caption += [line for result in results for line in origin_lines(result)]
    return TextTable("Bundles", columns, (TextSection("", rows),), tuple(caption))


def origin_lines(origin: ResultFile) -> tuple[str, ...]:
    """Which file a table is of, and which codl made that when."""
    known = (origin.codl, origin.commit and f"commit {origin.commit}", origin.created)
    return (f"`{origin.file}`: codl {', '.join(filter(None, known))}.",)
