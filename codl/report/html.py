"""One self-contained HTML page of several result files, without scripts or external files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from math import inf
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from codl import files
from codl.errors import CodlError
from codl.ir.plan import Chain
from codl.ir.records.results import EvalRow
from codl.ir.records.waterfall import TERMS
from codl.report import charts, tables, waterfalls
from codl.report.charts import Bar, Dot, Key, Part, Picture, Track, colours
from codl.report.compare import check_results
from codl.report.results import (
    IDEAL,
    SINGLES,
    UNMEASURED,
    BenchResult,
    CollectResult,
    EvalResult,
    ExplainResult,
    InferenceProfile,
    PackageResult,
    Result,
    RunResult,
    SearchesResult,
    SearchResult,
    SocSummary,
    TrainResult,
    ValidateResult,
    load_result,
)
from codl.report.tables import timeline_content
from codl.report.text_table import TextTable, digits, stem
from codl.report.verdict import findings
from codl.report.waterfalls import NOTHING, WaterfallLine, signed, steps_of

TIMES = "\N{MULTIPLICATION SIGN}"


def _class(row: EvalRow) -> str:
    """The class of a row's bar, which has the colour of what runs."""
    if row.strategy in SINGLES:
        return row.strategy.partition("-")[0]
    return "library" if row.peer else "both"


def _tip_of(result: EvalResult, row: EvalRow) -> str:
    latency = row.latency_ms
    if latency is None:
        return f"{row.strategy} failed"
    cold = f", first run {digits(row.cold_ms.level)} ms" if row.cold_ms else ""
    doubts = "; ".join(row.doubts)
    doubtful = f", doubtful: {doubts}" if doubts else ""
    return f"{row.strategy} {digits(latency.level)} ms ({row.source}){cold}{doubtful}"


def _sources(rows: Sequence[EvalRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.source for row in rows if row.latency_ms))


def speedups(result: EvalResult) -> Picture | None:
    """Speedups over the better processor, with the spread; None if neither processor ran alone."""
    rows = [
        row
        for model in result.models
        for row in result.of(model)
        if result.speedup(row) is not None and not row.same_as and row.strategy not in SINGLES
    ]
    bars, models = list[Bar](), set[str]()
    for row in rows:
        speedup, latency = result.speedup(row) or 0.0, row.latency_ms
        assert latency is not None
        tip = f"{stem(row.model)}: {digits(speedup)} {TIMES}, {_tip_of(result, row)}"
        class_ = "bound" if row.strategy == IDEAL else _class(row)
        least = speedup * latency.level / latency.p80 if latency.p80 else speedup
        heading = "" if row.model in models else stem(row.model)
        models.add(row.model)
        bars.append(
            Bar(
                row.strategy,
                (Part(0.0, speedup, class_, tip),),
                digits(speedup),
                whisker=(least, speedup),
                heading=heading,
            )
        )
    if not bars:
        return None
    return charts.bars(
        "Speedup over the better processor",
        bars,
        name=f"times as fast as the better of cpu and gpu ({TIMES})",
        at=(1.0, "the better of cpu and gpu"),
        note="A whisker reaches to what the 80th percentile of runs makes of it.",
        sources=_sources(rows),
    )


def latencies(result: EvalResult, model: str) -> Picture:
    """A bar for each strategy: spread, first run and prediction. The ideal is a line."""
    rows = result.of(model)
    ideal = next((row for row in rows if row.strategy == IDEAL and row.latency_ms), None)
    bars = [_latency_bar(result, row) for row in rows if row is not ideal]
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
    return charts.bars(
        f"Latency of {stem(model)}",
        bars,
        name="milliseconds",
        at=at,
        legend=legend,
        note="The 20th percentile of runs; whiskers reach to the 80th."
        + (" ?: doubtful, its tip says why." if any(row.doubts for row in rows) else ""),
        sources=_sources(rows),
    )


def _latency_bar(result: EvalResult, row: EvalRow) -> Bar:
    latency, tip = row.latency_ms, _tip_of(result, row)
    if latency is None:
        return Bar(row.strategy, (), "failed")
    points = [Dot(row.cold_ms.level, "bound hollow", tip)] if row.cold_ms else []
    if row.predicted_ms is not None:
        predicted = f"{row.strategy} predicted {digits(row.predicted_ms)} ms"
        points.append(Dot(row.predicted_ms, "bound hollow", predicted, "diamond"))
    return Bar(
        row.strategy,
        (Part(0.0, latency.level, _class(row), tip),),
        digits(latency.level) + ("?" if row.doubts else ""),
        tuple(points),
        (latency.level, latency.p80) if latency.runs else None,
    )


def plan_strip(result: EvalResult, model: str) -> Picture | None:
    """The layers of the fastest plan on both processors, if the file has the plan."""
    for row in fastest_first(result, model):
        if row.plan in result.plans:
            what = f"{row.strategy}: the layers of {stem(model)} on both processors"
            return charts.strip(what, result.plans[row.plan].chains, sources=(row.source,))
    return None


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
    """A picture of one inference; its table includes the `others`."""
    of = profile.strategy or stem(profile.model)
    tracks = [Track(f"{of}, profiled: {digits(profile.end_ms)} ms", profile.spans)]
    if profile.predicted:
        end = max(span.end_ms for span in profile.predicted)
        tracks.insert(0, Track(f"{of}, predicted: {digits(end)} ms", profile.predicted))
    picture = charts.timelines(
        f"Timeline of {stem(profile.model)} by {of}" if profile.strategy else f"Timeline of {of}",
        tracks,
        note="One inference, profiled, which slows it.",
        sources=(profile.source,),
    )
    return replace(picture, table=timeline_content(others))


def waterfall(result: ExplainResult) -> Picture:
    """A bar for each total and term; the axis begins just below the least total."""
    steps = steps_of(result)
    totals = [step.total_ms for step in steps]
    low = max(0.0, min(totals) - 0.5 * ((max(totals) - min(totals)) or max(totals) or 1.0))
    cut_off = f", from {digits(low)} on" if low else ""
    return charts.bars(
        f"Where the time goes: {result.model} by {result.strategy} on {result.soc.name}",
        [_waterfall_bar(step, low) for step in steps],
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
    chains = [Chain(c.ops, c.dim, c.gpu_ratio, {}) for c in result.chains if c.ops]
    title = f"Plan of {result.strategy} for {result.model}"
    return charts.strip(title, chains, sources=(result.source,))


@dataclass(frozen=True)
class PagePart:
    """The content for a model or a whole result."""

    heading: str = ""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[TextTable, ...] = ()


@dataclass(frozen=True)
class PageSection:
    """A result file on the page, at the anchor `key`."""

    key: str
    origin: Result
    heading: str
    parts: tuple[PagePart, ...]
    findings: tuple[str, ...] = ()

    @property
    def unmeasured(self) -> list[str]:
        """The sources of numbers that codl did not measure."""
        of: Any = self.origin
        rows = [row.source for row in of.rows] if isinstance(of, EvalResult) else []
        sources = (*rows, *getattr(of, "sources", ()), getattr(of, "source", ""))
        return [source for source in UNMEASURED if source in sources]

    @property
    def is_one_cpu(self) -> bool:
        soc: SocSummary | None = getattr(self.origin, "soc", None)
        return soc is not None and soc.is_one_cpu


def write_report(paths: Sequence[Path], out: Path, *, apart: bool = False) -> Path:
    """Write one page of result files, and return its path.

    Raises `InvalidFileError` for an invalid result file, and `CodlError` where there is nothing to
    report or the page cannot be written. Unless `apart`, raises `MismatchError` for evaluations of
    one SoC in different environments. A crash leaves no partial page.
    """
    if not paths:
        raise CodlError("There is nothing to report: name at least one result file.")
    if out.resolve() in [path.resolve() for path in paths]:
        raise CodlError(f"{out} is a result file: name another file for the report.")
    results = [load_result(path) for path in paths]
    if not apart:
        check_results(results)
    page = render(results)
    return files.write(out, page)


def render(results: Sequence[Result]) -> str:
    """The page of results in their order; evaluations come first."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("codl.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    # A name may wrap after its underscores.
    environment.filters["broken"] = lambda name: Markup("_<wbr>").join(name.split("_"))
    results = sorted(results, key=lambda result: not isinstance(result, EvalResult))
    sections = [
        PageSection(f"r{at}", result, *_content(result))
        for at, result in enumerate(results, start=1)
    ]
    page = environment.from_string(source).render(
        sections=sections, style=Markup(colours()), title=_title(results)
    )
    return page + "\n"


def _title(results: Sequence[Result]) -> str:
    evaluations = [result for result in results if isinstance(result, EvalResult)]
    if len(evaluations) != 1:
        return "codl report"
    (result,) = evaluations
    models = stem(result.models[0]) if len(result.models) == 1 else f"{len(result.models)} models"
    return f"codl: {models} on {result.soc.name}"


#: Headings and tables of results that have a single table.
TABLES: Mapping[type, tuple[str, Callable[[Any], TextTable]]] = {
    TrainResult: ("Predictors for {0.soc.name}", tables.train_content),
    CollectResult: ("Collection", tables.collect_content),
    PackageResult: ("Bundle of {0.model}", lambda result: tables.bundles_content([result])),
    BenchResult: ("Kernels on {0.soc.name}", tables.bench_content),
}


def _content(result: Any) -> tuple[str, tuple[PagePart, ...], tuple[str, ...]]:
    """The heading, the parts and the findings of a result."""
    shown: tuple[TextTable, ...]
    drawn: tuple[Picture, ...] = ()
    found: tuple[str, ...] = ()
    match result:
        case EvalResult():
            return f"Evaluation on {result.soc.name}", _evaluation(result), findings(result)
        case SearchResult():
            return f"Plan for {result.model}", (_plan(result),), ()
        case SearchesResult():
            plans = (replace(_plan(plan), heading=plan.model) for plan in result.results)
            part = PagePart(tables=(tables.plans_content(result),))
            return f"Plans on {result.soc.name}", (part, *plans), ()
        case RunResult():
            heading, shown = f"Run of {result.model}", (tables.run_content(result),)
            profile = result.profile
            drawn = (timeline_of(profile, [profile]),) if result.spans else ()
        case ExplainResult():
            heading, found = f"Waterfall of {result.model}", waterfalls.findings(result)
            shown = waterfalls.contents(result)
            drawn = (waterfall(result), explained_plan(result))
        case ValidateResult():
            heading = f"Validation of {result.model} on {result.soc.name}"
            shown, found = (tables.validation_content(result),), tables.validation_findings(result)
        case TrainResult() | CollectResult() | PackageResult() | BenchResult():
            title, content = TABLES[type(result)]
            heading, shown = title.format(result), (content(result),)
        case _:  # of a plugin
            heading, shown = result.heading, result.tables()
    return heading, (PagePart(pictures=drawn, tables=shown),), found


def _evaluation(result: EvalResult) -> tuple[PagePart, ...]:
    first = PagePart("", _there(speedups(result)))
    models = (
        PagePart(
            stem(model),
            _there(plan_strip(result, model), timeline(result, model), latencies(result, model)),
        )
        for model in result.models
    )
    return (first, *models, PagePart("All models", tables=(tables.eval_content(result),)))


def _there(*drawn: Picture | None) -> tuple[Picture, ...]:
    return tuple(picture for picture in drawn if picture is not None)


def _plan(result: SearchResult) -> PagePart:
    title = f"Plan of {result.strategy} for {result.model} on {result.soc.name}"
    picture = charts.strip(title, result.chains, sources=("predicted",))
    return PagePart(pictures=(picture,), tables=(tables.plan_content(result),))
