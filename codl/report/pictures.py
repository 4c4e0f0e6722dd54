"""Pictures of evaluations, predictors, kernels and waterfalls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from codl.ir.plan import Chain
from codl.ir.types import PROCESSORS
from codl.records.results import EvalRow, Latency
from codl.records.waterfall import TERMS
from codl.report import charts
from codl.report.charts import Bar, Dot, Part, Track
from codl.report.drawing import Data, Key, Picture, Value
from codl.report.load import chains_of
from codl.report.results import (
    IDEAL,
    SHARING,
    SINGLES,
    UNMEASURED,
    BenchResult,
    EvalResult,
    ExplainResult,
    InferenceProfile,
    TrainResult,
)
from codl.report.tables import timeline_content
from codl.report.text_table import digits, stem
from codl.report.waterfalls import NOTHING, WaterfallLine, signed, steps_of, what_of

#: Shapes of strategies that run on both processors, and of others in their order.
KNOWN = {"codl": "circle", "codl-paper": "up", "mulayer": "down"}
OTHERS = ("square", "cross", "diamond")
#: What counts as near a prediction.
NEAR = (0.9, 1.1)
TIMES = "\N{MULTIPLICATION SIGN}"


def looks(result: EvalResult) -> Mapping[str, Key]:
    """How each strategy is drawn, in the order of the file."""
    names = list(dict.fromkeys(row.strategy for row in result.rows))
    peers = {row.strategy for row in result.rows if row.peer}
    keys, others = {}, 0
    for name in names:
        if name in SINGLES:
            class_, shape = name.partition("-")[0], "circle" if name in ("cpu", "gpu") else "square"
        elif name == IDEAL:
            class_, shape = "bound", "bar"
        else:
            class_ = "library" if name in peers else "both"
            shape = "" if name in peers else KNOWN.get(name, "")
            if not shape:
                shape, others = OTHERS[others % len(OTHERS)], others + 1
        keys[name] = Key(class_, name, shape)
    return keys


def _told(result: EvalResult, row: EvalRow) -> str:
    """The tip of a row's mark."""
    latency = row.latency_ms
    if latency is None:
        return f"{row.strategy} failed"
    cold = f", first run {digits(row.cold_ms.level)} ms" if row.cold_ms else ""
    doubts = "; ".join(result.doubts(row))
    doubtful = f", doubtful: {doubts}" if doubts else ""
    return f"{row.strategy} {digits(latency.level)} ms ({row.source}){cold}{doubtful}"


def _sources(rows: Sequence[EvalRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.source for row in rows if row.latency_ms))


def _legend(result: EvalResult, rows: Sequence[EvalRow]) -> tuple[Key, ...]:
    shown = {row.strategy for row in rows}
    return tuple(key for name, key in looks(result).items() if name in shown)


def speedups(result: EvalResult) -> Picture | None:
    """Speedups over the better processor, with the spread; None if neither processor ran alone."""
    rows = [row for row in result.rows if result.speedup(row) is not None and not row.same_as]
    if not rows:
        return None
    keys = looks(result)

    def dot(row: EvalRow) -> Dot:
        speedup, latency = result.speedup(row) or 0.0, row.latency_ms
        assert latency is not None
        least = speedup * latency.level / latency.p80 if latency.p80 and latency.runs else None
        key = keys[row.strategy]
        tip = f"{stem(row.model)}: {digits(speedup)} {TIMES}, {_told(result, row)}"
        return Dot(speedup, key.class_, tip, key.shape, least, speedup)

    by_model = [
        (stem(model), [dot(row) for row in rows if row.model == model])
        for model in result.models
        if any(row.model == model for row in rows)
    ]
    heads = ("model", "strategy", "speedup", "latency (ms)", "median (ms)", "p80 (ms)", "source")
    table = tuple(
        (stem(row.model), row.strategy, result.speedup(row), *_spread(row.latency_ms), row.source)
        for row in rows
    )
    return charts.dots(
        "Speedup over the better processor",
        by_model,
        Data(heads, table),
        name=f"times as fast as the better of cpu and gpu ({TIMES})",
        at=1.0,
        legend=_legend(result, rows),
        note="A whisker reaches to what the 80th percentile of runs makes of it.",
        sources=_sources(rows),
    )


def _spread(latency: Latency | None) -> tuple[float | None, ...]:
    return (latency.level, latency.median, latency.p80) if latency else (None, None, None)


def latencies(result: EvalResult, model: str) -> Picture:
    """A bar for each strategy: spread, first run and prediction. The ideal is a line."""
    rows, keys = result.of(model), looks(result)
    ideal = next((row for row in rows if row.strategy == IDEAL and row.latency_ms), None)
    bars = [_latency_bar(result, row, keys) for row in rows if row is not ideal]
    at = None
    if ideal and ideal.latency_ms:
        level = digits(ideal.latency_ms.level)
        at = (ideal.latency_ms.level, f"ideal {level} ms ({ideal.source})")
    points = {dot.shape for bar in bars for dot in bar.points}
    legend = [
        *([Key("bound hollow", "first run", "circle")] if "circle" in points else []),
        *([Key("bound hollow", "predicted", "diamond")] if "diamond" in points else []),
        *([Key("bound dashed", at[1], "line")] if at else []),
    ]
    heads = ("strategy", "latency (ms)", "median (ms)", "p80 (ms)", "first run (ms)",
             "predicted (ms)", "source", "doubts")  # fmt: skip
    table = tuple(
        (
            row.strategy,
            *_spread(row.latency_ms),
            row.cold_ms.level if row.cold_ms else None,
            row.predicted_ms if row.latency_ms else None,
            row.source if row.latency_ms else f"failed: {row.reason}",
            "; ".join(result.doubts(row)),
        )
        for row in rows
    )
    return charts.bars(
        f"Latency of {stem(model)}",
        bars,
        Data.filled(heads, table),
        name="milliseconds",
        at=at,
        legend=legend,
        note="The 20th percentile of runs; whiskers reach to the 80th."
        + (" ?: doubtful, its tip says why." if any(map(result.doubts, rows)) else ""),
        sources=_sources(rows),
    )


def _latency_bar(result: EvalResult, row: EvalRow, keys: Mapping[str, Key]) -> Bar:
    name = f"{row.strategy} ({row.source})" if row.source in UNMEASURED else row.strategy
    if row.latency_ms is None:
        return Bar(row.strategy, (), "failed")
    class_, latency = keys[row.strategy].class_, row.latency_ms
    marked = f"{class_} faint" if row.source in UNMEASURED else class_
    points = [Dot(row.cold_ms.level, "bound hollow", _told(result, row))] if row.cold_ms else []
    if row.predicted_ms is not None:
        tip = f"{row.strategy} predicted {digits(row.predicted_ms)} ms"
        points.append(Dot(row.predicted_ms, "bound hollow", tip, "diamond"))
    doubtful = "?" if result.doubts(row) else ""
    return Bar(
        name,
        (Part(0.0, latency.level, marked, _told(result, row)),),
        digits(latency.level) + doubtful,
        tuple(points),
        (latency.level, latency.p80) if latency.runs else None,
    )


def predictions(result: EvalResult) -> Picture | None:
    """Predicted over measured latency of every plan."""

    def ratio(row: EvalRow) -> float | None:
        if not row.predicted_ms or not row.latency_ms or not row.latency_ms.level:
            return None
        return row.predicted_over_measured or row.predicted_ms / row.latency_ms.level

    rows = [row for row in result.rows if ratio(row) is not None and not row.same_as]
    if not rows:
        return None
    keys = looks(result)

    def dot(row: EvalRow) -> Dot:
        key, over = keys[row.strategy], ratio(row) or 0.0
        tip = (
            f"{stem(row.model)}, {row.strategy}: predicted {digits(row.predicted_ms)} ms, "
            f"{digits(over)} of what was {row.source}"
        )
        return Dot(over, key.class_, tip, key.shape)

    by_model = [
        (stem(model), [dot(row) for row in rows if row.model == model])
        for model in dict.fromkeys(row.model for row in rows)
    ]
    heads = ("model", "strategy", "predicted (ms)", "measured (ms)", "predicted over measured")
    table = tuple(
        (stem(row.model), row.strategy, row.predicted_ms,
         row.latency_ms.level if row.latency_ms else None, ratio(row))
        for row in rows
    )  # fmt: skip
    drift = any(row.predicted_over_measured for row in rows)
    return charts.dots(
        "Predicted against measured",
        by_model,
        Data(heads, table),
        name="predicted latency over the measured one",
        log=True,
        at=1.0,
        band=NEAR,
        legend=_legend(result, rows),
        note="The band is within 10 %."
        + (" The machine's drift since its dataset is divided out." if drift else ""),
        sources=_sources(rows),
    )


def plan(result: EvalResult, model: str) -> Picture | None:
    """The layers of the fastest plan on both processors, if the file has the plan."""
    for row in fastest_first(result, model):
        if chains := plan_chains(result, row):
            what = f"{row.strategy}: the layers of {stem(model)} on both processors"
            return charts.strip(what, chains, sources=(row.source,))
    return None


def plan_chains(result: EvalResult, row: EvalRow) -> tuple[Chain, ...]:
    """The chains of a row's plan; empty if the file does not hold it."""
    content = result.plans.get(row.plan, {}).get("chains", ())
    return chains_of(content, result.path) if content else ()


def fastest_first(result: EvalResult, model: str) -> list[EvalRow]:
    """The rows of strategies that may use both processors, the fastest first."""
    ran = [
        row
        for row in result.of(model)
        if row.latency_ms and not row.peer and row.strategy not in (*SINGLES, IDEAL)
    ]
    return sorted(ran, key=lambda row: row.latency_ms.level if row.latency_ms else inf)


def timeline(result: EvalResult, model: str) -> Picture | None:
    """Predicted above profiled timeline of the fastest strategy with a profile."""
    profiles = {profile.strategy: profile for profile in result.profiles(model)}
    names = [row.strategy for row in fastest_first(result, model) if row.strategy in profiles]
    names += list(profiles)
    return timeline_of(profiles[names[0]], tuple(profiles.values())) if names else None


def timeline_of(profile: InferenceProfile, others: Sequence[InferenceProfile]) -> Picture:
    """One inference; its table is of the `others` too."""
    of = profile.strategy or stem(profile.model)
    source = f", {profile.source}" if profile.source in UNMEASURED else ""
    tracks = [Track(f"{of}, profiled{source}: {digits(profile.end_ms)} ms", profile.spans)]
    if profile.predicted:
        end = max(span.end_ms for span in profile.predicted)
        tracks.insert(0, Track(f"{of}, predicted: {digits(end)} ms", profile.predicted))
    picture = charts.timelines(
        f"Timeline of {stem(profile.model)} by {of}" if profile.strategy else f"Timeline of {of}",
        tracks,
        note="One inference, profiled, which slows it.",
        sources=(profile.source,),
    )
    return replace(picture, shown=timeline_content(others))


def sharing(result: EvalResult) -> Picture | None:
    """Data sharing of plans on both processors."""
    bars, rows, keys = [], [], looks(result)
    for model in result.models:
        heading = stem(model)
        for profile in result.profiles(model):
            key = keys.get(profile.strategy)
            if key is None or key.class_ != "both":
                continue
            total = profile.ms(SHARING)
            kinds = {kind: profile.ms([kind]) for kind in SHARING}
            each = ", ".join(f"{kind} {digits(ms)}" for kind, ms in kinds.items() if ms)
            tip = f"{profile.strategy}: {digits(total)} ms ({each or 'nothing'})"
            part = Part(0.0, total, "share", tip)
            bars.append(Bar(profile.strategy, (part,), digits(total), heading=heading))
            chains = _chain_count(result, model, profile.strategy)
            rows.append((stem(model), profile.strategy, chains, total, *kinds.values()))
            heading = ""
    if not bars:
        return None
    heads = ("model", "strategy", "chains", "data sharing (ms)", *(f"{k} (ms)" for k in SHARING))
    return charts.bars(
        "Data sharing, with chains and without",
        bars,
        Data(heads, tuple(rows)),
        name="milliseconds of one profiled inference",
        note="Strategies that chain layers share less often; mulayer has no chains.",
        sources=tuple(dict.fromkeys(p.source for m in result.models for p in result.profiles(m))),
    )


def _chain_count(result: EvalResult, model: str, strategy: str) -> float | None:
    row = next((row for row in result.of(model) if row.strategy == strategy), None)
    return float(len(plan_chains(result, row))) or None if row else None


def memory(result: EvalResult) -> Picture | None:
    """Tensors and weights on either side, in MB."""
    names = {
        "cpu_bytes": ("cpu", "tensors on the CPU"),
        "cpu_weight_bytes": ("cpu faint", "weights on the CPU"),
        "gpu_bytes": ("gpu", "tensors on the GPU"),
        "gpu_weight_bytes": ("gpu faint", "weights on the GPU"),
    }

    def parts(row: EvalRow) -> Iterator[Part]:
        start = 0.0
        for name, (class_, what) in names.items():
            size = (row.memory_bytes or {}).get(name, 0) / 1e6
            if size:
                tip = f"{stem(row.model)}, {row.strategy}: {what} {digits(size)} MB"
                yield Part(start, start + size, class_, tip)
            start += size

    def values(row: EvalRow) -> tuple[float, ...]:
        return tuple((row.memory_bytes or {}).get(name, 0) / 1e6 for name in names)

    return _by_model(
        result,
        "Memory",
        [row for row in result.rows if row.memory_bytes and not row.same_as],
        parts,
        values,
        tuple(f"{what} (MB)" for _, what in names.values()),
        "MB",
        tuple(Key(class_, what) for class_, what in names.values()),
    )


def energy(result: EvalResult) -> Picture | None:
    """Energy of one inference, if a sensor measured it."""
    keys = looks(result)

    def parts(row: EvalRow) -> Iterator[Part]:
        tip = f"{stem(row.model)}, {row.strategy}: {digits(row.energy_mj)} mJ ({row.source})"
        yield Part(0.0, row.energy_mj or 0.0, keys[row.strategy].class_, tip)

    return _by_model(
        result,
        "Energy of one inference",
        [row for row in result.rows if row.energy_mj is not None and not row.same_as],
        parts,
        lambda row: (row.energy_mj or 0.0,),
        ("energy (mJ)",),
        "mJ",
    )


def _by_model(
    result: EvalResult,
    title: str,
    rows: Sequence[EvalRow],
    parts: Callable[[EvalRow], Iterator[Part]],
    values: Callable[[EvalRow], tuple[float, ...]],
    heads: tuple[str, ...],
    unit: str,
    legend: tuple[Key, ...] = (),
) -> Picture | None:
    """Bars of rows under a heading for each model; None without rows."""
    if not rows:
        return None
    bars, before = [], ""
    for row in rows:
        heading = "" if row.model == before else stem(row.model)
        total = sum(values(row))
        bars.append(Bar(row.strategy, tuple(parts(row)), digits(total), heading=heading))
        before = row.model
    table: tuple[tuple[Value, ...], ...] = tuple(
        (stem(row.model), row.strategy, *values(row)) for row in rows
    )
    return charts.bars(
        title,
        bars,
        Data(("model", "strategy", *heads), table),
        name=unit,
        legend=legend,
        sources=_sources(rows),
    )


#: The predictor that plans by default, and shapes of the others in their order.
USUAL_PREDICTOR = "codl"
PREDICTOR_SHAPES = ("up", "down", "diamond", "cross", "star", "square", "bar")


def accuracy(result: TrainResult) -> Picture | None:
    """Rows within 10 % of what was measured, whole op shapes held out, by target.

    Of targets that several predictors know.
    """
    rows = [row for row in result.predictors if row.split == "shape" and row.acc10 is not None]
    counts = Counter(row.target for row in rows)
    rows = [row for row in rows if counts[row.target] > 1]  # others stand in the table
    if not rows:
        return None
    names = list(dict.fromkeys(row.name for row in rows))
    others = [name for name in names if name != USUAL_PREDICTOR]
    keys = (
        {USUAL_PREDICTOR: Key("both", USUAL_PREDICTOR, "circle")}
        if USUAL_PREDICTOR in names
        else {}
    )
    keys |= {
        name: Key("library", name, PREDICTOR_SHAPES[at % len(PREDICTOR_SHAPES)])
        for at, name in enumerate(others)
    }

    def dot(name: str, acc10: float, target: str) -> Dot:
        key = keys[name]
        tip = f"{target}: {name} predicts {digits(acc10)} % within 10 %"
        return Dot(acc10, key.class_, tip, key.shape)

    targets = dict.fromkeys(row.target for row in rows)
    by_target = [
        (
            target,
            [dot(r.name, r.acc10 or 0.0, target) for r in rows if r.target == target],
        )
        for target in targets
    ]
    table = tuple((row.target, row.processor, row.name, row.acc10, row.mape) for row in rows)
    return charts.dots(
        "Accuracy of the predictors",
        by_target,
        Data(("target", "processor", "predictor", "within 10 % (%)", "MAPE (%)"), table),
        name="percent of held-out rows within 10 %",
        pitch=0,
        legend=keys.values(),
        note="All rows of an op's shape are held out together.",
        sources=result.sources,
    )


def kernel_bars(result: BenchResult) -> Picture | None:
    """Every variant of every op, the fastest first."""
    if not result.ops:
        return None
    bars, before = [], ""
    for row in result.ops:
        tip = f"{row.variant}: {digits(row.latency_ms)} ms, {digits(row.gflops)} GFLOP/s"
        ends = (row.p20_ms, row.p80_ms) if row.p80_ms else None
        part = Part(0.0, row.latency_ms, row.processor, tip)
        heading = "" if row.op == before else row.op
        bars.append(Bar(row.variant, (part,), digits(row.latency_ms), (), ends, heading))
        before = row.op
    heads = ("op", "variant", "processor", "latency (ms)", "p80 (ms)", "GFLOP/s")
    rows = tuple(
        (r.op, r.variant, r.processor, r.latency_ms, r.p80_ms or None, r.gflops) for r in result.ops
    )
    return charts.bars(
        "Kernels beside each other",
        bars,
        Data.filled(heads, rows),
        name="milliseconds",
        legend=[Key(side, f"on the {side.upper()}") for side in PROCESSORS],
        note="Whiskers reach to the 80th percentile.",
        sources=(result.source,),
    )


def waterfall(result: ExplainResult) -> Picture:
    """A bar for every total and term, the axis cut off where nothing is lost."""
    steps = steps_of(result)
    totals = [step.total_ms for step in steps]
    low = max(0.0, min(totals) - 0.5 * ((max(totals) - min(totals)) or max(totals) or 1.0))
    cut_off = f", from {digits(low)} on" if low else ""
    rows = tuple((s.name, s.ms, s.total_ms, what_of(s.name, result)) for s in steps)
    return charts.bars(
        f"Where the time goes: {result.model} by {result.strategy} on {result.soc.name}",
        [_waterfall_bar(step, low) for step in steps],
        Data(("term", "ms", "total (ms)", "what it is"), rows),
        name=f"milliseconds{cut_off}",
        low=low,
        legend=(
            Key("bound", "a latency"), Key("wait", "what a term adds"),
            Key("both", "what one takes away"),
        ),
        sources=(result.source,),
    )  # fmt: skip


def _waterfall_bar(step: WaterfallLine, low: float) -> Bar:
    if step.ms is None:
        told = f"{step.name}: {digits(step.total_ms)} ms"
        part = Part(low, step.total_ms, "bound", told)
        return Bar(step.name, (part,), digits(step.total_ms))
    told = f"{step.name}: {signed(step.ms)} ms, {TERMS.get(step.name, '')}"
    ends = sorted((step.total_ms - step.ms, step.total_ms))
    part = Part(ends[0], ends[1], "wait" if step.ms >= 0 else "both", told)
    return Bar(step.name, (part,) if abs(step.ms) > NOTHING else (), signed(step.ms))


def explained_plan(result: ExplainResult) -> Picture:
    """The layers of the plan on both processors."""
    chains = [Chain(c.ops, c.dim, c.gpu_ratio, {}) for c in result.chains if c.ops]
    title = f"Plan of {result.strategy} for {result.model}"
    return charts.strip(title, chains, sources=(result.source,))
