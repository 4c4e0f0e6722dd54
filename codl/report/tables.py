"""Tables of result files, for the terminal, for pages and for documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from codl.ir.plan import Chain
from codl.ir.records.results import EvalRow, PredictorRow
from codl.ir.records.waterfall import ChainTerms
from codl.report.results import (
    COMPUTING,
    IDEAL,
    NOT_RECORDED,
    SHARING,
    WAITING,
    BenchResult,
    CollectResult,
    EvalResult,
    ExplainResult,
    InferenceProfile,
    PackageResult,
    PlanSummary,
    ProcessorSummary,
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
    Column,
    TextRow,
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
TIMES = "\N{MULTIPLICATION SIGN}"
#: The definition of a latency; see `codl.ir.records.statistic`.
LATENCY = "A latency is the 20th percentile of the runs."
#: The definition of a first run.
TURNS = "the first of a turn, with caches that others filled; latencies are of the later runs."


def eval_notes(result: EvalResult) -> list[str]:
    """Notes on an early end, on equal executables, peers, and the machine's pace."""
    same = [f"{stem(r.model)}: {r.strategy} is {r.same_as}" for r in result.rows if r.same_as]
    peers = {
        row.strategy: f"{row.strategy} {peer.version} ({peer.threads} threads, "
        f"{digits(peer.busy_cores)} cores busy)"
        for row in result.rows
        if (peer := row.peer)
    }
    held, pace = dict[str, str](), dict[str, list[float]]()
    slower = {stem(row.model): row.slowdown for row in result.rows if row.slowdown}
    slower = {
        model: factors
        for model, factors in slower.items()
        if any(abs(factor - 1) > NOTABLE for factor in factors.values())
    }
    for side, factor in (each for factors in slower.values() for each in factors.items()):
        pace.setdefault(side, []).append(factor)
    for row in result.rows:
        if row.conditions and row.conditions.throttled:
            held[stem(row.model)] = " and the ".join(row.conditions.throttled).upper()
    notes = [result.incomplete] if result.incomplete else []
    if same:
        notes.append(f"Plans with the same executable were timed once. {'; '.join(same)}.")
    if peers:
        each = "; ".join(peers.values())
        notes.append(f"Peers have the cores of both sides, in their own processes: {each}.")
    notes += [f"{of}: the clock of the {who} was held down meanwhile." for of, who in held.items()]
    if pace:
        ends = {side: (f"{min(of):.2f}", f"{max(of):.2f}") for side, of in pace.items()}
        factors = (f"{side} {' to '.join(dict.fromkeys(of))}" for side, of in ends.items())
        notes.append(
            f"{', '.join(slower)}: anchor ops took {', '.join(factors)} of what they did when the "
            "dataset was measured."
        )
    return notes


def doubt_notes(result: EvalResult) -> list[str]:
    """A note on latencies from a machine that may have been disturbed."""
    rows = [row for row in result.rows if row.doubts and not row.same_as]
    each = [f"{stem(row.model)} by {row.strategy}: {', '.join(row.doubts)}" for row in rows]
    again = "Measure again, or for longer by --time."
    return [f"Doubtful, as where other programs run: {'; '.join(each)}. {again}"] if each else []


#: Sizes of tensors and weights on both sides.
SIZES = ("cpu_bytes", "cpu_weight_bytes", "gpu_bytes", "gpu_weight_bytes")


def eval_content(result: EvalResult) -> TextTable:
    rows = {
        stem(model): [_eval_row(result, row) for row in result.of(model)] for model in result.models
    }
    notes = [LATENCY, "speedup: over the better of cpu and gpu in the same run."]
    if any(row.cold_ms for row in result.rows):
        notes.append(f"first run: {TURNS}")
    if any(row.predicted_over_measured is not None for row in result.rows):
        notes.append("over measured: predicted latency over that, the machine's drift divided out.")
    if any(row.strategy == IDEAL for row in result.rows):
        notes.append(
            "ideal: the best measured ratio of every op alone, data sharing left out; computed, "
            "not run. The paper's bound; plans that fuse ops, or find them warm, may be faster."
        )
    caption = (
        *soc_lines(result.soc),
        *notes,
        *eval_notes(result),
        *doubt_notes(result),
        *warnings([row.source for row in result.rows]),
    )
    heads = ("strategy", "latency (ms)", Column(f"median{NONE}p80 (ms)", spare=8), "first run (ms)",
             "predicted (ms)", "over measured", f"speedup ({TIMES})", "of ideal (%)",
             Column("cosine", spare=6), "max rel err", "memory (MB)", "energy (mJ)",
             "source")  # fmt: skip
    spare = ("source", "memory (MB)", "energy (mJ)", "first run (ms)", "over measured", "",
             "of ideal (%)", "", "predicted (ms)")  # fmt: skip
    title = f"Latency on {result.soc.name}"
    return TextTable.plain(title, heads, rows, caption, spare=spare, filled=True)


def _eval_row(result: EvalResult, row: EvalRow) -> tuple[Value, ...] | TextRow:
    latency, of_ideal = row.latency_ms, result.of_ideal(row)
    if latency is None:
        return TextRow((row.strategy,), failure=row.reason or "no reason recorded")
    return (
        row.strategy,
        latency.level,
        spread(latency.median, latency.p80) if row.source != "computed" else NONE,
        row.cold_ms.level if row.cold_ms else None,
        row.predicted_ms,
        row.predicted_over_measured,
        result.speedup(row),
        of_ideal and 100 * of_ideal,
        nearness(row.cosine),
        row.max_rel_err,
        sum((row.memory_bytes or {}).get(size, 0) for size in SIZES) / 1e6 or None,
        row.energy_mj,
        row.source,
    )


def train_content(result: TrainResult) -> TextTable:
    """A row per predictor and split, by target."""
    source = listed(result.sources) or NOT_RECORDED
    by_target: dict[str, list[tuple[Value, ...]]] = {}
    for row in result.predictors:
        split = "shapes" if row.split == "shape" else "rows"
        rows = f"{count(row.n_train)}/{count(row.n_test)}"
        cells = (row.name, split, rows, row.acc10, row.acc5, row.mape, row.bytes)
        by_target.setdefault(_target(row), []).append((*cells, row.us_per_prediction, source))
    caption = (
        *soc_lines(result.soc),
        "Within 10 % and 5 %: the share of held-out rows predicted within that error. MAPE: mean "
        "absolute percentage error. Only shapes held out, all rows of an op shape at once, tell "
        "how an unseen op is predicted.",
        *_training_lines(result),
    )
    speed = "\N{MICRO SIGN}s per prediction"
    heads = ("predictor", "held out", Column("fit/test rows"), Column("within 10 % (%)"),
             Column("within 5 % (%)"), Column("MAPE (%)"), Column("bytes", spare=2),
             Column(speed, spare=4), words("source", spare=1))  # fmt: skip
    title = f"Held-out accuracy of the predictors for {result.soc.name}"
    return TextTable.plain(title, heads, by_target, caption)


def _training_lines(result: TrainResult) -> tuple[str, ...]:
    took = f"Training took {digits(result.train_s)} s."
    return (took, *result.notes, *warnings(result.sources))


def _target(row: PredictorRow) -> str:
    return f"{row.target} ({row.processor})" if row.processor else row.target


def best_content(result: TrainResult) -> TextTable:
    """A row per target, with the predictor of least error on held-out shapes."""
    rows: list[tuple[Value, ...]] = []
    for target in dict.fromkeys(map(_target, result.predictors)):
        shapes = [r for r in result.predictors if _target(r) == target and r.split == "shape"]
        tried = [row for row in shapes if row.mape is not None]
        best = min(tried, key=lambda row: row.mape or 0, default=None)
        figures = (best.name, best.acc10, best.mape) if best else (None, None, None)
        rows.append((target, max((row.n_train for row in shapes), default=None), *figures))
    is_tried = any(row[2] for row in rows)
    held_out = [
        "Best: by the mean absolute percentage error (MAPE) on op shapes held out.",
        "Every predictor is stored; --every lists them all, in both splits.",
    ]
    caption = (
        *soc_lines(result.soc),
        *(held_out if is_tried else ["None was tried on rows held out."]),
        *_training_lines(result),
    )
    heads = ("target", "rows trained on", "best predictor", "within 10 % (%)", "MAPE (%)")
    title = f"{'Best predictors' if is_tried else 'Predictors'} for {result.soc.name}"
    return TextTable.plain(title, heads, rows, caption, filled=True)


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
    texts = [f"{n} {TIMES} {name}" if n > 1 else name for name, n in variants.most_common()]
    return ", ".join(texts)


def timeline_content(timelines: Sequence[InferenceProfile]) -> TextTable:
    """The time of one profiled inference by kind of span."""
    rows = [
        (p.strategy or p.model, p.ms(COMPUTING, "cpu"), p.ms(COMPUTING, "gpu"), p.ms(SHARING),
         p.ms(WAITING), p.end_ms, p.source)
        for p in timelines
    ]  # fmt: skip
    heads = ("strategy", "CPU computing (ms)", "GPU computing (ms)", "data sharing (ms)",
             "waiting (ms)", "end (ms)", "source")  # fmt: skip
    caption = (
        "One inference each, profiled, which slows it: compare shares, not latencies.",
        *warnings([timeline.source for timeline in timelines]),
    )
    return TextTable.plain("Where the time goes", heads, rows, caption)


def run_content(result: RunResult) -> TextTable:
    latency = result.latency_ms
    row = (result.model, result.strategy, latency.level, spread(latency.median, latency.p80),
           latency.runs, result.predicted_ms, result.data_sharing_ms, result.source)  # fmt: skip
    heads = ("model", "strategy", "latency (ms)", Column(f"median{NONE}p80 (ms)"), "runs",
             Column("predicted (ms)"), Column("data sharing (ms)"), "source")  # fmt: skip
    caption = (LATENCY, *soc_lines(result.soc), *warnings([result.source]))
    return TextTable.plain(f"Run of {result.model}", heads, [row], caption)


#: Why a collection ended.
STOPPED = {
    "done": "all is measured",
    "budget": "the budget is over",
    "samples": "as many as wanted",
    "battery": "the battery is low",
}


def collect_content(result: CollectResult) -> TextTable:
    """What was written, and why the collection ended."""
    why = f" ({STOPPED.get(result.stopped, result.stopped)})" if result.stopped else ""
    caption = [
        *soc_lines(result.soc),
        f"{count(result.rows)} rows written in {digits(result.seconds)} s{why}, "
        f"{count(result.failed)} failed, {count(result.skipped)} there before, "
        f"{count(result.left)} measurements left, {count(result.again)} measured twice.",
    ]
    if result.paused_s:
        caption.append(f"{digits(result.paused_s)} s of pauses to cool down.")
    if result.files:
        caption.append(f"Files: {', '.join(result.files)}.")
    soc = result.soc.name if result.soc else NOT_RECORDED
    row = (soc, result.rows, result.failed)
    heads = ("SoC", "rows", "failed")
    return TextTable.plain("Collected", heads, [row], [*caption, *warnings([result.source])])


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


def warnings(sources: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for source, text in WARNINGS.items() if source in sources)


def plans_content(result: SearchesResult) -> TextTable:
    rows: list[tuple[Value, ...] | TextRow] = [
        (plan.model, plan.strategy, len(plan.chains),
         sum(0 < chain.gpu_ratio < 1 for chain in plan.chains), plan.predicted_ms, plan.search_ms)
        for plan in result.plans
    ]  # fmt: skip
    rows += [TextRow((failed.model,), failure=failed.reason) for failed in result.failed]
    heads = ("model", "strategy", "chains", "on both", "predicted (ms)", "search (ms)")
    caption = (*soc_lines(result.soc), "Latencies are predicted; nothing was run.")
    return TextTable.plain(f"Plans on {result.soc.name}", heads, rows, caption)


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
    by_op: dict[str, list[tuple[Value, ...] | TextRow]] = {}
    for kernel in result.ops:
        cells = (kernel.variant, kernel.processor, kernel.latency_ms, kernel.p80_ms)
        by_op.setdefault(kernel.op, []).append((*cells, kernel.gflops))
    for refused in result.refused:
        failed = TextRow((refused.variant,), failure=refused.reason)
        by_op.setdefault(refused.op, []).append(failed)
    caption = (*soc_lines(result.soc), *warnings([result.source]))
    if result.elsewhere:
        caption += (f"{result.elsewhere} more are for other SoCs: --every lists them.",)
    heads = ("variant", "processor", "latency (ms)", "p80 (ms)", "GFLOP/s")
    return TextTable.plain("Kernels", heads, by_op, caption, spare=["p80 (ms)"])


def validation_content(result: ValidateResult) -> TextTable:
    """Every part of the ops of one plan."""
    rows = [
        (op.op, op.processor, op.variant, f"{op.layout} {op.precision.get('stored', '')}".strip(),
         f"{op.verdict}: {op.reason}" if op.reason else op.verdict, nearness(op.cosine),
         op.max_rel_err, op.accumulated_max_rel_err, op.placed)
        for op in result.ops
    ]  # fmt: skip
    heads = ("op", "processor", "variant", "stored", "verdict", "cosine", "error", "so far",
             "why there")  # fmt: skip
    caption = (
        "Error: the largest difference over the largest value, of the op alone on the reference's "
        "inputs; so far: the same in the whole plan up to there.",
        *soc_lines(result.soc),
    )
    title = f"Ops of {result.model} by {result.strategy or NONE}"
    spare = ("why there", "stored", "so far", "error")
    return TextTable.plain(title, heads, rows, caption, spare=spare)


def validation_findings(result: ValidateResult) -> tuple[str, ...]:
    """The closeness of the outputs, the diagnosis, and the fallbacks."""
    outputs = (
        f"Outputs beside those of {result.reference}: cosine {nearness(result.cosine)}, "
        f"max_rel_err {digits(result.max_rel_err)}. {result.diagnosis}"
    )
    return (outputs, *(f"Fallback: {fallback}" for fallback in result.fallback))
