"""Tables of result files, for the terminal, for pages and for documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from codl.ir.plan import Chain
from codl.records.results import EvalRow, PredictorRow
from codl.report.caveats import (
    LATENCY,
    TURNS,
    cold_notes,
    doubt_notes,
    machine_notes,
    peer_notes,
    same_notes,
)
from codl.report.results import (
    COMPUTING,
    IDEAL,
    NOT_RECORDED,
    SHARING,
    SINGLES,
    UNMEASURED,
    WAITING,
    CheckedOp,
    CollectResult,
    EvalResult,
    FailedSearch,
    InferenceProfile,
    PackageResult,
    ProcessorSummary,
    ResultFile,
    RunResult,
    SearchesResult,
    SearchResult,
    SocSummary,
    TrainResult,
    ValidatedModel,
    ValidateResult,
    ValidationsResult,
)
from codl.report.text_table import (
    NONE,
    Cell,
    Column,
    Table,
    TextRow,
    TextSection,
    TextTable,
    count,
    digits,
    listed,
    listed_in_short,
    nearness,
    spread,
    stem,
    words,
)

WARNINGS = {
    "simulated": "simulated: from a model of a SoC, not from a device.",
    "replayed": "replayed: from somebody's earlier measurements, not from this run.",
}


def eval_table(result: EvalResult) -> Table:
    """What `codl eval` prints: one section per model, one row per strategy."""
    return eval_content(result).to_rich()


def train_table(result: TrainResult, *, every: bool) -> Table:
    """What `codl train` prints: a line per target, or every predictor in both splits."""
    return (train_content(result) if every else _best_content(result)).to_rich()


def eval_content(result: EvalResult) -> TextTable:
    has_cold = any(row.cold_ms for row in result.rows)
    has_ratio = any(row.predicted_over_measured is not None for row in result.rows)
    columns = (
        words("strategy"),
        Column("latency (ms)"),
        Column(f"median{NONE}p80 (ms)", spare=6),
        *([Column("first run (ms)", spare=2)] if has_cold else []),
        Column("predicted (ms)", spare=7),
        *([Column("over measured", spare=3)] if has_ratio else []),
        Column("speedup (\N{MULTIPLICATION SIGN})"),
        Column("of ideal (%)", spare=5),
        Column("cosine", spare=4),
        Column("max rel err"),
        Column("source", numeric=False, spare=1),
    )
    sections = (
        TextSection(
            stem(model),
            tuple(
                _eval_row(result, row, has_cold=has_cold, has_ratio=has_ratio)
                for row in result.of(model)
            ),
        )
        for model in result.models
    )
    notes = [LATENCY, "speedup: over the better of cpu and gpu in the same run."]
    if has_cold:
        notes.append(f"first run: {TURNS}")
    if has_ratio:
        notes.append("over measured: predicted latency over that, the machine's drift divided out.")
    if any(row.strategy == IDEAL for row in result.rows):
        notes.append(
            "ideal: the best measured ratio of every op alone, data sharing left out; computed, "
            "not run. The paper's bound; plans that fuse ops, or find them warm, may be faster."
        )
    notes += same_notes(result)
    notes += peer_notes(result)
    notes += machine_notes(result)
    notes += doubt_notes(result)
    caption = (*soc_lines(result.soc), *notes, *warnings([row.source for row in result.rows]))
    return TextTable(f"Latency on {result.soc.name}", columns, tuple(sections), caption, "model")


def _eval_row(result: EvalResult, row: EvalRow, *, has_cold: bool, has_ratio: bool) -> TextRow:
    latency = row.latency_ms
    if latency is None:
        return TextRow((row.strategy,), failure=row.reason or "no reason recorded")
    cells = (
        row.strategy,
        digits(latency.level),
        spread(latency.median, latency.p80) if row.source != "computed" else NONE,
        *([digits(row.cold_ms.level if row.cold_ms else None)] if has_cold else []),
        digits(row.predicted_ms),
        *([digits(row.predicted_over_measured)] if has_ratio else []),
        digits(result.speedup(row)),
        digits(result.of_ideal(row), percent=True),
        nearness(row.cosine),
        digits(row.max_rel_err),
        row.source,
    )
    return TextRow(cells, mark=mark([row.source]))


def train_content(result: TrainResult) -> TextTable:
    splits = {"row": "row split", "shape": "shape split"}
    accuracy = ("fit/test rows", "10 % (%)", "5 % (%)", "MAPE (%)")
    columns = (
        words("predictor"),
        *(
            Column(header, group, spare=5 + at if split == "row" else 0)
            for split, group in splits.items()
            for at, header in enumerate(accuracy)
        ),
        Column("bytes", spare=2),
        Column("\N{MICRO SIGN}s per prediction", spare=4),
        Column("in 90 % interval (%)", spare=3),
        Column("source", numeric=False, spare=1),
    )
    source = listed(result.sources) or NOT_RECORDED
    sections = tuple(
        TextSection(
            target,
            tuple(
                TextRow(_train_cells(by_split, tuple(splits), source), mark=mark(result.sources))
                for by_split in by_name.values()
            ),
        )
        for target, by_name in _by_target(result).items()
    )
    caption = (
        *soc_lines(result.soc),
        "10 % and 5 %: the share of held-out rows predicted within that error. MAPE: mean absolute "
        "percentage error. Only the shape split, which holds out all rows of "
        "an op shape, tells how an unseen op is predicted.",
        f"Training took {digits(result.train_s)} s.",
        *result.notes,
        *warnings(result.sources),
    )
    title = f"Held-out accuracy of the predictors for {result.soc.name}"
    return TextTable(title, columns, sections, caption, "target")


def _best_content(result: TrainResult) -> TextTable:
    """A line per target, of the predictor with the least error on shapes held out."""
    shapes = {
        target: [splits["shape"] for splits in by_name.values() if "shape" in splits]
        for target, by_name in _by_target(result).items()
    }
    best = {
        target: min(
            (r for r in rows if r.mape is not None), key=lambda r: r.mape or 0, default=None
        )
        for target, rows in shapes.items()
    }

    def of_best(figure: str, text: Callable[[Any], str]) -> Callable[[str], str]:
        return lambda target: text(getattr(best[target], figure)) if best[target] else NONE

    cells: list[Cell[str]] = [
        (words("target"), str),
        (
            Column("rows trained on"),
            lambda t: count(max((r.n_train for r in shapes[t]), default=None)),
        ),
    ]
    title, held_out = f"Predictors for {result.soc.name}", ["None was tried on rows held out."]
    if any(best.values()):
        title = f"Best predictors for {result.soc.name}"
        cells += [
            (words("best predictor"), of_best("name", str)),
            (Column("within 10 % (%)"), of_best("acc10", digits)),
            (Column("MAPE (%)"), of_best("mape", digits)),
        ]
        held_out = [
            "Best: by the mean absolute percentage error (MAPE) on op shapes held out.",
            "Every predictor is stored; --every lists them all, in both splits.",
        ]
    caption = (
        *soc_lines(result.soc),
        *held_out,
        f"Training took {digits(result.train_s)} s.",
        *result.notes,
        *warnings(result.sources),
    )
    return TextTable.of(title, list(shapes), cells, caption)


def _error(row: PredictorRow) -> float:
    return row.mape or 0.0


def _by_target(result: TrainResult) -> dict[str, dict[str, dict[str, PredictorRow]]]:
    """Rows by target, predictor and split."""
    targets: dict[str, dict[str, dict[str, PredictorRow]]] = {}
    for row in result.predictors:
        target = f"{row.target} ({row.processor})" if row.processor else row.target
        targets.setdefault(target, {}).setdefault(row.name, {})[row.split] = row
    return targets


def _train_cells(
    by_split: dict[str, PredictorRow], splits: Sequence[str], source: str
) -> tuple[str, ...]:
    cells: list[str] = []
    for split in splits:
        row = by_split.get(split)
        if row is None:
            cells += [NONE] * 4
            continue
        cells.append(f"{count(row.n_train)}/{count(row.n_test)}")
        cells += [digits(value) for value in (row.acc10, row.acc5, row.mape)]
    row = next(iter(by_split.values()))
    size, us = count(row.bytes), digits(row.us_per_prediction)
    shape = by_split.get("shape")
    covered = digits(shape.coverage90) if shape else NONE
    return (row.name, *cells, size, us, covered, source)


def plan_content(result: SearchResult) -> TextTable:
    predictor = f" by {result.predictor}" if result.predictor else ""
    source = f" from {result.source} latencies" if result.source else ""
    caption = [*soc_lines(result.soc)]
    if result.predicted_ms is not None:
        caption.append(
            f"Predicted latency: {digits(result.predicted_ms)} ms{predictor}{source}; "
            "nothing was run."
        )
    if result.not_counted:
        caption.append(
            f"Not counted, for want of latencies: {listed_in_short(result.not_counted)}."
        )
    if result.search_ms is not None:
        caption.append(f"The search took {digits(result.search_ms)} ms.")
    caption.append("GPU ratio: the GPU's share, 0 = CPU only, 1 = GPU only.")
    numbers = {id(chain): str(at) for at, chain in enumerate(result.chains, start=1)}
    cells: list[Cell[Chain]] = [
        (words("chain"), lambda chain: numbers[id(chain)]),
        (words("ops"), _first_to_last),
        (Column("number of ops"), lambda chain: count(len(chain.ops))),
        (words("dimension"), lambda chain: chain.dim if 0 < chain.gpu_ratio < 1 else NONE),
        (Column("GPU ratio"), lambda chain: digits(chain.gpu_ratio)),
        (words("CPU variants"), lambda chain: _variants(chain, "cpu")),
        (words("GPU variants"), lambda chain: _variants(chain, "gpu")),
    ]
    title = f"Plan of {result.strategy} for {result.model} on {result.soc.name}"
    return TextTable.of(title, result.chains, cells, caption)


def _first_to_last(chain: Chain) -> str:
    first, *others = chain.ops
    return f"{first} \N{HORIZONTAL ELLIPSIS} {others[-1]}" if others else first


def _variants(chain: Chain, processor: str) -> str:
    """The kernel variants of a chain on one processor, most frequent first."""
    variants = Counter(chain.variants.get(op, {}).get(processor, "") for op in chain.ops)
    del variants[""]
    times = "\N{MULTIPLICATION SIGN}"
    texts = [f"{n} {times} {name}" if n > 1 else name for name, n in variants.most_common()]
    return ", ".join(texts) or NONE


def timeline_content(timelines: Sequence[InferenceProfile]) -> TextTable:
    """Where the time of one profiled inference went."""
    cells: list[Cell[InferenceProfile]] = [
        (words("strategy"), lambda profile: profile.strategy or profile.model),
        (Column("CPU computing (ms)"), lambda profile: digits(profile.ms(COMPUTING, "cpu"))),
        (Column("GPU computing (ms)"), lambda profile: digits(profile.ms(COMPUTING, "gpu"))),
        (Column("data sharing (ms)"), lambda profile: digits(profile.ms(SHARING))),
        (Column("waiting (ms)"), lambda profile: digits(profile.ms(WAITING))),
        (Column("end (ms)"), lambda profile: digits(profile.end_ms)),
        (words("source"), lambda profile: profile.source),
    ]
    caption = (
        "One inference each, profiled, which slows it: compare shares, not latencies.",
        *warnings([timeline.source for timeline in timelines]),
    )
    return TextTable.of("Where the time goes", timelines, cells, caption, mark=mark_of)


def run_content(result: RunResult) -> TextTable:
    latency = result.latency_ms
    cells: list[Cell[RunResult]] = [
        (words("model"), lambda run: run.model),
        (words("strategy"), lambda run: run.strategy or NONE),
        (Column("latency (ms)"), lambda _: digits(latency.level)),
        (Column(f"median{NONE}p80 (ms)"), lambda _: spread(latency.median, latency.p80)),
        (Column("runs"), lambda _: count(latency.runs)),
        (Column("data sharing (ms)"), lambda run: digits(run.data_sharing_ms)),
        (words("source"), lambda run: run.source),
    ]
    caption = (LATENCY, *soc_lines(result.soc), *warnings([result.source]))
    return TextTable.of(f"Run of {result.model}", [result], cells, caption, mark=mark_of)


def collect_content(result: CollectResult) -> TextTable:
    cells: list[Cell[CollectResult]] = [
        (words("SoC"), lambda collected: collected.soc.name if collected.soc else NOT_RECORDED),
        (Column("rows"), lambda collected: count(collected.rows)),
        (Column("failed"), lambda collected: count(collected.failed)),
        (Column("time (s)"), lambda collected: digits(collected.seconds)),
        (words("source"), lambda collected: collected.source),
    ]
    files = (f"Files: {', '.join(result.files)}.",) if result.files else ()
    caption = (*soc_lines(result.soc), *files, *warnings([result.source]))
    return TextTable.of("Collected", [result], cells, caption, mark=mark_of)


def soc_lines(soc: SocSummary | None) -> tuple[str, ...]:
    """What a table was made on; on one CPU, what the table can not tell."""
    if soc is None:
        return (f"SoC: {NOT_RECORDED}.",)
    about = soc.description.strip().rstrip(".")
    lines = [f"SoC {soc.name}: {about}." if about else f"SoC {soc.name}."]
    lines += [_side(kind, side) for kind, side in (("cpu", soc.cpu), ("gpu", soc.gpu)) if side]
    if soc.is_one_cpu:
        lines.append("Both sides are one CPU, divided: this says nothing about a CPU beside a GPU.")
    return tuple(lines)


def _side(kind: str, side: ProcessorSummary) -> str:
    driver = listed([part for part in (side.platform, side.driver) if part])
    cores = f"host cores {', '.join(map(str, side.cores))}" if side.cores else ""
    details = "; ".join(part for part in (driver, cores) if part)
    return f"{kind}: {side.name} ({details})." if details else f"{kind}: {side.name}."


def mark(sources: Sequence[str]) -> str:
    """Those of some sources that stand for numbers not measured for this report."""
    return listed([source for source in sources if source in UNMEASURED])


def mark_of(measured: Any) -> str:
    """The same of what has one source."""
    return mark([measured.source])


def warnings(sources: Sequence[str]) -> tuple[str, ...]:
    """What a reader must know of sources that are no measurement of this run."""
    return tuple(text for source, text in WARNINGS.items() if source in sources)


def comparison_content(result: EvalResult) -> TextTable:
    """Latencies of an evaluation: a row per model, a column per strategy or peer, then speedups."""
    names = list(dict.fromkeys(row.strategy for row in result.rows))
    peers = {row.strategy for row in result.rows if row.peer}
    planned = [name for name in names if name not in (*SINGLES, IDEAL, *peers)]
    columns = (
        words("model"),
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
    cells: list[Cell[Any]] = [
        (words("model"), lambda plan: plan.model),
        (words("strategy"), lambda plan: plan.strategy),
        (Column("chains"), lambda plan: count(len(plan.chains))),
        (Column("on both"), lambda plan: count(sum(0 < c.gpu_ratio < 1 for c in plan.chains))),
        (Column("predicted (ms)"), lambda plan: digits(plan.predicted_ms)),
        (Column("search (ms)"), lambda plan: digits(plan.search_ms)),
    ]
    caption = (*soc_lines(result.soc), "Latencies are predicted; nothing was run.")
    return TextTable.of(
        f"Plans on {result.soc.name}",
        [*result.plans, *result.failed],
        cells,
        caption,
        failure=lambda plan: plan.reason if isinstance(plan, FailedSearch) else "",
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


def bundles_content(results: Sequence[PackageResult]) -> TextTable:
    """Bundles: their size, and the start of a new process from them."""
    cells: list[Cell[PackageResult]] = [
        (words("model"), lambda result: result.model),
        (words("SoC"), lambda result: result.soc.name),
        (Column("bundle (MB)"), lambda result: digits(result.bytes / 1e6)),
        (Column("start (ms)"), lambda result: digits(result.cold_start_ms)),
        (Column("imports"), lambda result: digits(result.import_ms)),
        (Column("loading"), lambda result: digits(result.load_ms)),
        (Column("first inference"), lambda result: digits(result.first_run_ms)),
    ]
    caption = ["Milliseconds from the start of a process to its first output, and its parts."]
    caption += [line for result in results for line in origin_lines(result)]
    return TextTable.of("Bundles", results, cells, caption)


def origin_lines(origin: ResultFile) -> tuple[str, ...]:
    """Which file a table is of, and which codl made that when."""
    parts = (origin.codl, origin.commit and f"commit {origin.commit}", origin.created)
    return (f"`{origin.file}`: codl {', '.join(filter(None, parts))}.",)


def validation_content(result: ValidateResult) -> TextTable:
    """Every part of the ops of one plan."""
    cells: list[Cell[CheckedOp]] = [
        (words("op"), lambda op: op.op),
        (words("processor"), lambda op: op.processor),
        (words("variant"), lambda op: op.variant),
        (
            words("stored"),
            lambda op: f"{op.layout} {op.precision.get('stored', '')}".strip() or NONE,
        ),
        (words("verdict"), lambda op: f"{op.verdict}: {op.reason}" if op.reason else op.verdict),
        (Column("cosine"), lambda op: nearness(op.cosine)),
        (Column("error"), lambda op: digits(op.max_rel_err)),
        (Column("so far"), lambda op: digits(op.accumulated_max_rel_err)),
        (words("why there"), lambda op: op.placed or NONE),
    ]
    caption = (
        "Error: the largest difference over the largest value, of the op alone on the reference's "
        "inputs; so far: the same in the whole plan up to there.",
        *soc_lines(result.soc),
    )
    return TextTable.of(
        f"Ops of {result.model} by {result.strategy or NONE}", result.ops, cells, caption
    )


def validation_findings(result: ValidateResult) -> tuple[str, ...]:
    """What it came to, and what runs instead."""
    return (result.diagnosis, *(f"Fallback: {fallback}" for fallback in result.fallback))


def validations_content(results: Sequence[ValidationsResult]) -> TextTable:
    """Many models on several devices: a line for each model on each."""
    cells: list[Cell[ValidatedModel]] = [
        (words("model"), lambda row: row.model),
        (
            words("on"),
            lambda row: "cpu" if row.processor == "cpu" else f"{row.processor}, {row.stored}",
        ),
        (Column("parts of ops"), lambda row: count(row.parts)),
        (Column("variants"), lambda row: count(row.variants)),
        (Column("not ok"), lambda row: count(len(row.wrong) + row.left)),
        (Column("lowest cosine", group="of one op"), lambda row: nearness(row.op_cosine)),
        (Column("error of its limit", group="of one op"), lambda row: digits(row.op_err)),
        (Column("cosine", group="outputs"), lambda row: nearness(row.cosine)),
        (Column("error", group="outputs"), lambda row: digits(row.max_rel_err)),
    ]
    rows = {_device(result): result.rows for result in results}
    caption = (
        "Error of its limit: the largest error of an op over what is rounding in its variant, so "
        "below 1 where all are ok.",
        *(line for result in results for line in _wrong(result)),
        *(line for result in results for line in origin_lines(result)),
    )
    return TextTable.of("Validated models", rows, cells, caption, failure=lambda row: row.reason)


def _device(result: ValidationsResult) -> str:
    """By its platform, where that is known: a CPU has several."""
    platform = result.environment.platform if result.environment else ""
    return f"{platform or result.gpu}, {result.driver}"


def _wrong(result: ValidationsResult) -> list[str]:
    return [
        f"Not ok in {row.model} on {_device(result)}: {', '.join(row.wrong)}."
        for row in result.rows
        if row.wrong
    ]
