"""One self-contained HTML page of several result files: no script, nothing to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from codl import files
from codl.errors import CodlError
from codl.report import curves, plots, tables, validations, waterfalls
from codl.report.caveats import findings
from codl.report.comparability import check_results
from codl.report.load import load_result
from codl.report.results import (
    UNMEASURED,
    CollectResult,
    ConformanceResult,
    CurveResult,
    EvalResult,
    ExplainResult,
    PackageResult,
    Result,
    ResultFile,
    RunResult,
    SearchesResult,
    SearchResult,
    TrainResult,
    ValidateResult,
    ValidationsResult,
)
from codl.report.text_table import TextTable, stem


@dataclass(frozen=True)
class Figure:
    """A drawing, and the sentence that must be read with it."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class PagePart:
    """What belongs to one model of an evaluation, or to a whole result."""

    heading: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[TextTable, ...] = ()


@dataclass(frozen=True)
class PageSection:
    """One result file on the page; `sources` are those of its numbers."""

    heading: str
    parts: tuple[PagePart, ...]
    findings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    is_one_cpu: bool = False
    origin: ResultFile = field(default_factory=ResultFile)
    key: str = ""

    @property
    def unmeasured(self) -> tuple[str, ...]:
        return tuple(source for source in UNMEASURED if source in self.sources)


def write_report(paths: Sequence[Path], out: Path, *, apart: bool = False) -> Path:
    """Write one page of some result files and return its path.

    Raises `InvalidFileError` for a file that is no result, and `CodlError` where there is nothing
    to report or the page cannot be written; unless each is to be read `apart`, `MismatchError`
    where evaluations of a SoC were not measured alike. A crash leaves no half of a page.
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
    """The page of some results, in their order."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("codl.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    sections = [_section(f"r{at}", result) for at, result in enumerate(results, start=1)]
    return environment.from_string(source).render(sections=sections) + "\n"


def _section(key: str, result: Result) -> PageSection:
    """A section whose heading says which file it is of."""
    section = SECTIONS[type(result)](key, result)
    return replace(
        section,
        key=key,
        heading=f"{section.heading} ({result.file})",
        origin=result,
        is_one_cpu=section.is_one_cpu or _is_one_cpu(result),
    )


def _tables(heading: str, *shown: TextTable, sources: Sequence[str] = ()) -> PageSection:
    return PageSection(heading, (PagePart(tables=shown),), sources=tuple(sources))


def _eval(key: str, result: EvalResult) -> PageSection:
    parts = [PagePart(tables=(tables.eval_content(result),))]
    parts += [_model(f"{key}-m{i}", result, m) for i, m in enumerate(result.models, start=1)]
    sources = tuple(row.source for row in result.rows if row.latency_ms)
    heading = f"Evaluation on {result.soc.name}"
    return PageSection(heading, tuple(parts), findings(result), sources)


def _model(key: str, result: EvalResult, model: str) -> PagePart:
    soc, timelines = result.soc.name, result.profiles(model)
    rows, model = result.of(model), stem(model)
    bars = plots.latency_svg(rows, key=f"{key}-bars", title=f"Latency of {model} on {soc}")
    what = f"Latency of {model} on {soc}, the 20th percentile of runs; whiskers reach to the 80th."
    figures = [_figure(bars, what, result, [row.source for row in rows])]
    if not timelines:
        return PagePart(model, tuple(figures))
    lanes = plots.timeline_svg(timelines, key=f"{key}-lanes", title=f"Timelines of {model}")
    what = f"One profiled inference of {model} per strategy on {soc}. {LANES}"
    figures.append(_figure(lanes, what, result, [timeline.source for timeline in timelines]))
    return PagePart(model, tuple(figures), (tables.timeline_content(timelines),))


LANES = "Full height: computing; lower: data sharing; thin: waiting."


def _figure(svg: str, what: str, result: Any, sources: Sequence[str]) -> Figure:
    """A picture with everything that its table's caption would warn of."""
    halves = ("Both sides are two halves of one CPU.",) if _is_one_cpu(result) else ()
    return Figure(Markup(svg), " ".join((what, *halves, *tables.warnings(sources))))


def _is_one_cpu(result: Any) -> bool:
    soc = getattr(result, "soc", None)
    return soc is not None and bool(soc.is_one_cpu)


def _train(key: str, result: TrainResult) -> PageSection:
    heading = f"Predictors for {result.soc.name}"
    return _tables(heading, tables.train_content(result), sources=result.sources)


def _search(key: str, result: SearchResult) -> PageSection:
    return PageSection(f"Plan for {result.model}", (_plan(f"{key}-plan", result),))


def _searches(key: str, result: SearchesResult) -> PageSection:
    parts = [PagePart(tables=(tables.plans_content(result),))]
    parts += [
        replace(_plan(f"{key}-m{i}", plan), heading=plan.model)
        for i, plan in enumerate(result.results, start=1)
    ]
    return PageSection(f"Plans on {result.soc.name}", tuple(parts))


def _plan(key: str, result: SearchResult) -> PagePart:
    title = f"Plan of {result.strategy} for {result.model} on {result.soc.name}"
    svg = plots.plan_svg(result, key=key, title=title)
    what = f"{title}: every op's share of the GPU. Letters: the partition dimension."
    figure = _figure(svg, what, result, ())
    return PagePart(figures=(figure,), tables=(tables.plan_content(result),))


def _collect(key: str, result: CollectResult) -> PageSection:
    return _tables("Collection", tables.collect_content(result), sources=[result.source])


def _run(key: str, result: RunResult) -> PageSection:
    figures: tuple[Figure, ...] = ()
    shown: tuple[TextTable, ...] = (tables.run_content(result),)
    if result.spans:
        profiles = (result.profile,)
        svg = plots.timeline_svg(profiles, key=f"{key}-lanes", title=f"Timeline of {result.model}")
        what = f"One profiled inference of {result.model}. {LANES}"
        figures = (_figure(svg, what, result, [result.source]),)
        shown += (tables.timeline_content(profiles),)
    part = PagePart(figures=figures, tables=shown)
    return PageSection(f"Run of {result.model}", (part,), sources=(result.source,))


def _conformance(key: str, result: ConformanceResult) -> PageSection:
    shown = tables.conformance_content([result]), tables.refusals_content([result])
    return _tables("Conformance", *shown)


def _package(key: str, result: PackageResult) -> PageSection:
    return _tables(f"Bundle of {result.model}", tables.bundles_content([result]))


def _explain(key: str, result: ExplainResult) -> PageSection:
    title = f"Where the time goes: {result.model} by {result.strategy} on {result.soc.name}"
    svg = waterfalls.waterfall_svg(result, key=f"{key}-waterfall", title=title)
    figure = _figure(svg, f"{title}, from the lossless bound on.", result, [result.source])
    shown = (waterfalls.waterfall_content(result), waterfalls.chains_content(result))
    return PageSection(
        f"Waterfall of {result.model}",
        (PagePart(figures=(figure,), tables=shown),),
        waterfalls.findings(result),
        (result.source,),
    )


def _curve(key: str, result: CurveResult) -> PageSection:
    title, families = "Gain against the ratio of speeds", curves.families([result])
    sources = tuple(point.source for family in families for point in family.points)
    what = "Gain of co-execution over the better processor, against the ratio of their speeds."
    svg = curves.curve_svg([result], key=f"{key}-curve", title=title)
    figure = Figure(Markup(svg), " ".join((what, *tables.warnings(sources))))
    shown = (curves.closest_content([result]), curves.curve_content([result]))
    return PageSection(
        title,
        (PagePart(figures=(figure,) if families else (), tables=shown),),
        curves.findings([result]),
        sources,
        is_one_cpu=all(evaluation.soc.is_one_cpu for evaluation in result.evaluations),
    )


def _validate(key: str, result: ValidateResult) -> PageSection:
    section = _tables(
        f"Validation of {result.model} on {result.soc.name}", validations.validation_content(result)
    )
    return replace(section, findings=validations.findings(result))


def _validations(key: str, result: ValidationsResult) -> PageSection:
    heading = f"Validations on {result.soc.name}"
    return _tables(heading, validations.validations_content([result]))


SECTIONS: Mapping[type, Callable[[str, Any], PageSection]] = {
    EvalResult: _eval,
    TrainResult: _train,
    SearchResult: _search,
    SearchesResult: _searches,
    CollectResult: _collect,
    RunResult: _run,
    ConformanceResult: _conformance,
    PackageResult: _package,
    ExplainResult: _explain,
    CurveResult: _curve,
    ValidateResult: _validate,
    ValidationsResult: _validations,
}
