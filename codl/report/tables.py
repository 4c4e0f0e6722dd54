"""Tables of result files, for the terminal, for pages and for documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codl.ir.plan import Chain
from codl.ir.records.results import EvalRow, PredictorRow
from codl.ir.records.waterfall import ChainTerms
from codl.report.results import (
    COMPUTING,
    IDEAL,
    NOT_RECORDED,
    SHARING,
    SINGLES,
    UNMEASURED,
    WAITING,
    BenchedKernel,
    BenchResult,
    CheckedOp,
    CollectResult,
    EvalResult,
    ExplainResult,
    FailedSearch,
    InferenceProfile,
    PackageResult,
    PlanSummary,
    ProcessorSummary,
    RefusedKernel,
    ResultFile,
    RunResult,
    SearchesResult,
    SearchResult,
    SocSummary,
    TrainResult,
    ValidateResult,
)
from codl.report.text_table import (
    NONE,
    Cell,
    Column,
    TextRow,
    TextSection,
    TextTable,
    Value,
    count,
    digits,
    listed,
    listed_in_short,
    nearness,
    spread,
    stem,
    words,
)

if TYPE_CHECKING:
    from codl.plan.op_placement import OpPlacement

WARNINGS = {
    "simulated": "simulated: from a model of a SoC, not from a device.",
    "replayed": "replayed: from somebody's earlier measurements, not from this run.",
}
#: What runs the CPU's variants; the others are ncnn's.
LIBRARY_NAMES = {"cpu_ort": "ONNX Runtime", "cpu_openvino": "OpenVINO"}
#: The kind of ops that codl has no operator for.
ONNX = "onnx"
#: A processor within this factor of its usual pace counts as unchanged.
NOTABLE = 0.05
#: The definition of a latency; see `codl.ir.records.statistic`.
LATENCY = "A latency is the 20th percentile of the runs."
#: The definition of a first run.
TURNS = "the first of a turn, with caches that others filled; latencies are of the later runs."


def same_notes(result: EvalResult) -> list[str]:
    """Notes on strategies with the same executable as an earlier strategy."""
    rows = [row for row in result.rows if row.same_as]
    same = [f"{stem(row.model)}: {row.strategy} is {row.same_as}" for row in rows]
    if not same:
        return []
    return [f"Plans with the same executable were timed once. {'; '.join(same)}."]


def peer_notes(result: EvalResult) -> list[str]:
    """Notes on the peer libraries, and on the number of cores that they used."""
    peers = {row.strategy: row.peer for row in result.rows if row.peer is not None}
    if not peers:
        return []
    each = [
        f"{name} {peer.version} ({peer.threads} threads, {digits(peer.busy_cores)} cores busy)"
        for name, peer in peers.items()
    ]
    return [f"Peers have the cores of both sides, in their own processes: {'; '.join(each)}."]


def doubt_notes(result: EvalResult) -> list[str]:
    """Notes on latencies from a machine that may have been disturbed."""
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
        factors = {side: [of[side] for of in slower.values() if side in of] for side in sides}
        each = (
            f"{side} {' to '.join(dict.fromkeys((f'{min(of):.2f}', f'{max(of):.2f}')))}"
            for side, of in factors.items()
        )
        notes.append(
            f"{', '.join(slower)}: anchor ops took {', '.join(each)} of what they did when the "
            "dataset was measured."
        )
    return notes


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


def used_content(result: EvalResult) -> tuple[TextTable, ...]:
    """Megabytes and millijoules of every row; none where neither is known."""
    sizes = ("cpu_bytes", "cpu_weight_bytes", "gpu_bytes", "gpu_weight_bytes")
    rows = {
        stem(model): [
            (
                row.strategy,
                *((row.memory_bytes or {}).get(size, 0) / 1e6 for size in sizes),
                row.energy_mj,
            )
            for row in result.of(model)
            if row.memory_bytes or row.energy_mj is not None
        ]
        for model in result.models
    }
    if not any(rows.values()):
        return ()
    heads = ("strategy", "CPU tensors (MB)", "CPU weights (MB)", "GPU tensors (MB)",
             "GPU weights (MB)", "one inference (mJ)")  # fmt: skip
    return (TextTable.plain("Memory and energy", heads, rows),)


def train_content(result: TrainResult) -> TextTable:
    """A row per predictor and split, by target."""
    cells: list[Cell[PredictorRow]] = [
        (words("predictor"), lambda row: row.name),
        (words("held out"), lambda row: "shapes" if row.split == "shape" else "rows"),
        (Column("fit/test rows"), lambda row: f"{count(row.n_train)}/{count(row.n_test)}"),
        (Column("within 10 % (%)"), lambda row: digits(row.acc10)),
        (Column("within 5 % (%)"), lambda row: digits(row.acc5)),
        (Column("MAPE (%)"), lambda row: digits(row.mape)),
        (Column("bytes", spare=2), lambda row: count(row.bytes)),
        (
            Column("\N{MICRO SIGN}s per prediction", spare=4),
            lambda row: digits(row.us_per_prediction),
        ),
        (words("source", spare=1), lambda _: listed(result.sources) or NOT_RECORDED),
    ]
    by_target: dict[str, list[PredictorRow]] = {}
    for row in result.predictors:
        by_target.setdefault(_target(row), []).append(row)
    caption = (
        *soc_lines(result.soc),
        "Within 10 % and 5 %: the share of held-out rows predicted within that error. MAPE: mean "
        "absolute percentage error. Only shapes held out, all rows of an op shape at once, tell "
        "how an unseen op is predicted.",
        f"Training took {digits(result.train_s)} s.",
        *result.notes,
        *warnings(result.sources),
    )
    title, source = (
        f"Held-out accuracy of the predictors for {result.soc.name}",
        mark(result.sources),
    )
    return TextTable.of(title, by_target, cells, caption, mark=lambda _: source)


def _target(row: PredictorRow) -> str:
    return f"{row.target} ({row.processor})" if row.processor else row.target


def best_content(result: TrainResult) -> TextTable:
    """A row per target, with the predictor of least error on held-out shapes."""
    rows: list[tuple[Value, ...]] = []
    is_tried = any(row.split == "shape" and row.mape is not None for row in result.predictors)
    for target in dict.fromkeys(map(_target, result.predictors)):
        of_target = [row for row in result.predictors if _target(row) == target]
        shapes = [row for row in of_target if row.split == "shape"]
        tried = [row for row in shapes if row.mape is not None]
        best = min(tried, key=lambda row: row.mape or 0, default=None)
        figures = (best.name, best.acc10, best.mape) if best else ("", None, None)
        trained = max((row.n_train for row in shapes), default=None)
        rows.append((target, trained, *(figures if is_tried else ())))
    heads: tuple[str, ...] = ("target", "rows trained on")
    title, held_out = f"Predictors for {result.soc.name}", ["None was tried on rows held out."]
    if is_tried:
        title = f"Best predictors for {result.soc.name}"
        heads += ("best predictor", "within 10 % (%)", "MAPE (%)")
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
    return TextTable.plain(title, heads, rows, caption)


def plan_content(result: SearchResult) -> TextTable:
    predictor = f" by {result.predictor}" if result.predictor else ""
    source = f" from {result.source} latencies" if result.source else ""
    caption = [*soc_lines(result.soc)]
    if result.predicted_ms is None:
        caption.append("In default variants, of which nothing is predicted.")
    else:
        energy = "" if result.predicted_mj is None else f", {digits(result.predicted_mj)} mJ"
        caption.append(
            f"Predicted latency: {digits(result.predicted_ms)} ms{predictor}{source}{energy}."
        )
    if result.search_ms is not None:
        method = f" by {result.method}" if result.method else ""
        caption.append(f"Found{method} in {digits(result.search_ms)} ms.")
    caption += [f"Fallback: {fallback}." for fallback in result.fallbacks]
    caption += coverage_notes(result)
    caption.append("GPU ratio: the GPU's share, 0 = CPU only, 1 = GPU only.")
    rows = [
        (
            str(number),
            first_to_last(chain.ops),
            len(chain.ops),
            chain.dim if 0 < chain.gpu_ratio < 1 else None,
            float(chain.gpu_ratio),
            _variants(chain, "cpu"),
            _variants(chain, "gpu"),
        )
        for number, chain in enumerate(result.chains, start=1)
    ]
    heads = ("chain", "ops", "number of ops", "dimension", "GPU ratio", "CPU variants",
             "GPU variants")  # fmt: skip
    title = f"Plan of {result.strategy} for {result.model} on {result.soc.name}"
    return TextTable.plain(title, heads, rows, caption)


def coverage_notes(result: PlanSummary | ExplainResult) -> list[str]:
    """Notes on ops of a plan whose latency is unknown or estimated."""
    notes = {
        "Not counted, for want of latencies:": result.not_counted,
        "Estimated, for want of predictors:": result.estimated,
    }
    return [f"{what}: {listed_in_short(ops)}." for what, ops in notes.items() if ops]


def ratio_text(part: OpPlacement | ChainTerms) -> str:
    """The dimension and ratio of what is split; else empty."""
    return f"{part.dim} {part.gpu_ratio:.2f}" if 0 < part.gpu_ratio < 1 else ""


def placement_content(
    placed: Sequence[OpPlacement], source: str, *, every: bool = False
) -> TextTable:
    """Ops by processor and library; `every` op, and ops that codl has no operator for, by name."""
    alone = [op for op in placed if every or op.kind == ONNX]
    groups: dict[tuple[str, str], list[OpPlacement]] = {}
    for op in placed:
        library = LIBRARY_NAMES.get(op.variant, "ncnn")
        engine = library if op.processor == "cpu" else "OpenCL kernels"
        if op not in alone:
            groups.setdefault((op.processor, engine), []).append(op)
    rows: list[tuple[str, ...]] = [
        (op.op, op.kind, op.processor, ratio_text(op), op.variant,
         f"{op.layout} {op.stored}", digits(op.latency_ms), op.reason)
        for op in alone
    ]  # fmt: skip
    rows += [
        (f"{len(ops)} op{'s' * (len(ops) > 1)}", listed([op.kind for op in ops]), processor, "",
         engine, "", digits(sum(op.latency_ms or 0.0 for op in ops)), "")
        for (processor, engine), ops in groups.items()
    ]  # fmt: skip
    heads = ("op", "kind", "processor", "GPU ratio", "variant", "stored", "ms", "why")
    caption = ["Everything is computed and accumulated in float32."]
    if shared := sum(op.together > 1 for op in placed):
        caption.append(
            f"{shared} ops were measured as parts of nets of the CPU or of fused kernels of the "
            "GPU, whose latencies they share as predicted."
        )
    return TextTable.plain(f"Placement, {source} latencies", heads, rows, caption)


def first_to_last(ops: Sequence[str]) -> str:
    """The names of a chain's first and last op."""
    first, *others = ops
    return f"{first} \N{HORIZONTAL ELLIPSIS} {others[-1]}" if others else first


def _variants(chain: Chain, processor: str) -> str:
    """The kernel variants of a chain on one processor, most frequent first."""
    variants = Counter(chain.variants.get(op, {}).get(processor, "") for op in chain.ops)
    del variants[""]
    times = "\N{MULTIPLICATION SIGN}"
    texts = [f"{n} {times} {name}" if n > 1 else name for name, n in variants.most_common()]
    return ", ".join(texts)


def timeline_content(timelines: Sequence[InferenceProfile]) -> TextTable:
    """The time of one profiled inference by kind of span."""
    cells: list[Cell[InferenceProfile]] = [
        (words("strategy"), lambda p: p.strategy or p.model),
        (Column("CPU computing (ms)"), lambda p: digits(p.ms(COMPUTING, "cpu"))),
        (Column("GPU computing (ms)"), lambda p: digits(p.ms(COMPUTING, "gpu"))),
        (Column("data sharing (ms)"), lambda p: digits(p.ms(SHARING))),
        (Column("waiting (ms)"), lambda p: digits(p.ms(WAITING))),
        (Column("end (ms)"), lambda p: digits(p.end_ms)),
        (words("source"), lambda p: p.source),
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
        (Column("predicted (ms)"), lambda run: digits(run.predicted_ms)),
        (Column("data sharing (ms)"), lambda run: digits(run.data_sharing_ms)),
        (words("source"), lambda run: run.source),
    ]
    caption = (LATENCY, *soc_lines(result.soc), *warnings([result.source]))
    return TextTable.of(f"Run of {result.model}", [result], cells, caption, mark=mark_of)


#: Why a collection ended.
STOPPED = {
    "done": "all is measured",
    "budget": "the budget is over",
    "samples": "as many as wanted",
    "battery": "the battery is low",
}


def collect_content(result: CollectResult) -> TextTable:
    """What was written, and the accuracy that is expected of it where it is known."""
    why = f" ({STOPPED.get(result.stopped, result.stopped)})" if result.stopped else ""
    caption = [
        *soc_lines(result.soc),
        f"{count(result.rows)} rows written in {digits(result.seconds)} s{why}, "
        f"{count(result.failed)} failed, {count(result.skipped)} there before, "
        f"{count(result.left)} measurements left, {count(result.again)} measured twice.",
    ]
    if result.paused_s:
        caption.append(f"{digits(result.paused_s)} s of pauses to cool down.")
    expected = result.expected
    if expected:
        caption.append(f"Accuracy: what {expected.predictor} reaches on shapes held out.")
    if result.files:
        caption.append(f"Files: {', '.join(result.files)}.")
    soc = result.soc.name if result.soc else NOT_RECORDED
    rows: list[tuple[Value, ...]] = [(soc, result.rows, result.failed, None, None, None)]
    rows += [
        (target.target, target.rows, None, target.acc10, target.acc5, target.mape)
        for target in (expected.targets if expected else ())
    ]
    heads = ("SoC and targets", "rows", "failed", "within 10 % (%)", "within 5 % (%)", "MAPE (%)")
    return TextTable.plain("Collected", heads, rows, [*caption, *warnings([result.source])])


def soc_lines(soc: SocSummary | None) -> tuple[str, ...]:
    """The SoC of a table, with the caveat of a divided CPU."""
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
    """Names of the unmeasured sources among some, as text."""
    return listed([source for source in sources if source in UNMEASURED])


def mark_of(measured: Any) -> str:
    """The source of a result if codl did not measure it, as text."""
    return mark([measured.source])


def warnings(sources: Sequence[str]) -> tuple[str, ...]:
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
    rows, failed = [], []
    for model in result.models:
        of = {row.strategy: row for row in result.of(model)}
        levels = {n: digits(row.latency_ms.level) for n, row in of.items() if row.latency_ms}
        failed += [row for row in of.values() if row.latency_ms is None]
        cells = [levels.get(name, "failed" if name in of else NONE) for name in names]
        speedups = [digits(result.speedup(of[name]) if name in of else None) for name in planned]
        rows.append(TextRow((stem(model), *cells, *speedups)))
    ideal = "`ideal` is computed: the best measured split of every op, without data sharing."
    caption = (
        f"Milliseconds, all of a model in one run, in turns. {LATENCY} Speedups are over the "
        "faster of `cpu` and `gpu`.",
        *([ideal] if IDEAL in names else []),
        *_accuracy_note(result.rows),
        *same_notes(result),
        *peer_notes(result),
        *machine_notes(result),
        *(f"{row.strategy} on {row.model} failed: {row.reason.rstrip('.')}." for row in failed),
        *soc_lines(result.soc),
        *warnings([row.source for row in result.rows]),
        *origin_lines(result),
    )
    title, section = f"Latency on {result.soc.name}", TextSection("", tuple(rows))
    return TextTable(title, columns, (section,), caption)


def plans_content(result: SearchesResult) -> TextTable:
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


def bundles_content(results: Sequence[PackageResult]) -> TextTable:
    rows = [
        (own.model, own.soc.name, own.bytes / 1e6, own.cold_start_ms, own.import_ms, own.load_ms,
         own.first_run_ms)
        for own in results
    ]  # fmt: skip
    heads = ("model", "SoC", "bundle (MB)", "start (ms)", "imports", "loading", "first inference")
    caption = ["Milliseconds from the start of a process to its first output, and its parts."]
    caption += [line for result in results for line in origin_lines(result)]
    return TextTable.plain("Bundles", heads, rows, caption)


def origin_lines(origin: ResultFile) -> tuple[str, ...]:
    parts = (origin.codl, origin.commit and f"commit {origin.commit}", origin.created)
    known = ", ".join(filter(None, parts))
    return (f"`{origin.file}`: codl {known}.",) if known else ()


def bench_content(result: BenchResult) -> TextTable:
    """A row per kernel variant that ran, or that refuses an op."""
    cells: list[Cell[BenchedKernel | RefusedKernel]] = [
        (words("variant"), lambda kernel: kernel.variant),
        (words("processor"), lambda kernel: kernel.processor),
        (Column("latency (ms)"), lambda kernel: digits(kernel.latency_ms)),
        (Column("p80 (ms)", spare=1), lambda kernel: digits(kernel.p80_ms or None)),
        (Column("GFLOP/s"), lambda kernel: digits(kernel.gflops)),
    ]
    by_op: dict[str, list[BenchedKernel | RefusedKernel]] = {}
    for kernel in (*result.ops, *result.refused):
        by_op.setdefault(kernel.op, []).append(kernel)
    caption = (*soc_lines(result.soc), *warnings([result.source]))
    if result.elsewhere:
        caption += (f"{result.elsewhere} more are for other SoCs: --every lists them.",)
    return TextTable.of("Kernels", by_op, cells, caption, failure=lambda kernel: kernel.reason)


def validation_content(result: ValidateResult) -> TextTable:
    """Every part of the ops of one plan."""
    cells: list[Cell[CheckedOp]] = [
        (words("op"), lambda op: op.op),
        (words("processor"), lambda op: op.processor),
        (words("variant"), lambda op: op.variant),
        (
            words("stored", spare=2),
            lambda op: f"{op.layout} {op.precision.get('stored', '')}".strip() or NONE,
        ),
        (words("verdict"), lambda op: f"{op.verdict}: {op.reason}" if op.reason else op.verdict),
        (Column("cosine"), lambda op: nearness(op.cosine)),
        (Column("error", spare=4), lambda op: digits(op.max_rel_err)),
        (Column("so far", spare=3), lambda op: digits(op.accumulated_max_rel_err)),
        (words("why there", spare=1), lambda op: op.placed or NONE),
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
    """The closeness of the outputs, the diagnosis, and the fallbacks."""
    outputs = (
        f"Outputs beside those of {result.reference}: cosine {nearness(result.cosine)}, "
        f"max_rel_err {digits(result.max_rel_err)}. {result.diagnosis}"
    )
    return (outputs, *(f"Fallback: {fallback}" for fallback in result.fallback))
