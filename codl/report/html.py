"""One self-contained HTML page of several result files: no script, nothing to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from codl import files
from codl.errors import CodlError
from codl.report import (
    charts,
    pictures,
    tables,
    waterfalls,
)
from codl.report.caveats import findings
from codl.report.comparability import check_results
from codl.report.drawing import Picture, colours
from codl.report.load import load_result
from codl.report.results import (
    UNMEASURED,
    BenchResult,
    CollectResult,
    EvalResult,
    ExplainResult,
    PackageResult,
    PluginResult,
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
from codl.report.verdict import Verdict


@dataclass(frozen=True)
class PagePart:
    """What belongs to one model of an evaluation, or to a whole result.

    `sources` are those of the numbers in its tables; pictures have their own.
    """

    heading: str = ""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[TextTable, ...] = ()
    sources: tuple[str, ...] = ()


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
    verdict: Verdict | None = None

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
    """The page of some results, in their order; evaluations, which have verdicts, come first."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("codl.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment.filters["broken"] = _broken
    results = sorted(results, key=lambda result: not isinstance(result, EvalResult))
    sections = [_section(f"r{at}", result) for at, result in enumerate(results, start=1)]
    page = environment.from_string(source).render(
        sections=sections, style=Markup(colours()), title=_title(results)
    )
    return page + "\n"


def _broken(name: str) -> Markup:
    """A name that may be broken behind its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


def _title(results: Sequence[Result]) -> str:
    evaluations = [result for result in results if isinstance(result, EvalResult)]
    if len(evaluations) != 1:
        return "codl report"
    (result,) = evaluations
    models = stem(result.models[0]) if len(result.models) == 1 else f"{len(result.models)} models"
    return f"codl: {models} on {result.soc.name}"


def _section(key: str, result: Result) -> PageSection:
    """A section with its file and where it is on the page."""
    section = SECTIONS.get(type(result), _of_plugin)(result)
    return replace(
        section,
        key=key,
        origin=result,
        is_one_cpu=section.is_one_cpu or _is_one_cpu(result),
    )


def _is_one_cpu(result: Any) -> bool:
    soc = getattr(result, "soc", None)
    return soc is not None and bool(soc.is_one_cpu)


def _of(
    heading: str,
    *tables: TextTable,
    pictures: Iterable[Picture | None] = (),
    sources: Sequence[str] = (),
) -> PageSection:
    shown = tuple(picture for picture in pictures if picture is not None)
    part = PagePart(pictures=shown, tables=tables, sources=tuple(dict.fromkeys(sources)))
    return PageSection(heading, (part,), sources=tuple(sources))


def _eval(result: EvalResult) -> PageSection:
    sources = tuple(dict.fromkeys(row.source for row in result.rows if row.latency_ms))
    verdict = Verdict.of(result)
    first = PagePart(pictures=_there(pictures.speedups(result)) if verdict else ())
    rest = (pictures.predictions, pictures.sharing, pictures.memory, pictures.energy)
    last = PagePart(
        "All models",
        _there(*(draw(result) for draw in rest)),
        (tables.eval_content(result),),
        sources,
    )
    parts = (first, *(_model(result, model) for model in result.models), last)
    heading = f"Evaluation on {result.soc.name}"
    return PageSection(heading, parts, findings(result), sources, verdict=verdict)


def _there(*drawn: Picture | None) -> tuple[Picture, ...]:
    return tuple(picture for picture in drawn if picture is not None)


def _model(result: EvalResult, model: str) -> PagePart:
    drawn = (
        pictures.plan(result, model),
        pictures.timeline(result, model),
        pictures.latencies(result, model),
    )
    return PagePart(stem(model), _there(*drawn))


def _train(result: TrainResult) -> PageSection:
    drawn = [pictures.accuracy(result)]
    content = tables.train_content(result)
    heading = f"Predictors for {result.soc.name}"
    return _of(heading, content, pictures=drawn, sources=result.sources)


def _search(result: SearchResult) -> PageSection:
    return PageSection(f"Plan for {result.model}", (_plan(result),))


def _searches(result: SearchesResult) -> PageSection:
    parts = [PagePart(tables=(tables.plans_content(result),), sources=PREDICTED)]
    parts += [replace(_plan(plan), heading=plan.model) for plan in result.results]
    return PageSection(f"Plans on {result.soc.name}", tuple(parts))


#: What plans are; their latencies rest on others.
PREDICTED = ("predicted",)


def _plan(result: SearchResult) -> PagePart:
    title = f"Plan of {result.strategy} for {result.model} on {result.soc.name}"
    picture = charts.strip(title, result.chains, sources=PREDICTED)
    return PagePart(pictures=(picture,), tables=(tables.plan_content(result),), sources=PREDICTED)


def _collect(result: CollectResult) -> PageSection:
    return _of("Collection", tables.collect_content(result), sources=[result.source])


def _run(result: RunResult) -> PageSection:
    drawn = [pictures.timeline_of(result.profile, [result.profile])] if result.spans else []
    content = tables.run_content(result)
    return _of(f"Run of {result.model}", content, pictures=drawn, sources=[result.source])


def _package(result: PackageResult) -> PageSection:
    return _of(f"Bundle of {result.model}", tables.bundles_content([result]))


def _explain(result: ExplainResult) -> PageSection:
    shown = [waterfalls.waterfall_content(result), waterfalls.chains_content(result)]
    if result.whole:
        shown.append(waterfalls.whole_content(result))
    section = _of(
        f"Waterfall of {result.model}",
        *shown,
        pictures=[pictures.waterfall(result), pictures.explained_plan(result)],
        sources=[result.source],
    )
    return replace(section, findings=waterfalls.findings(result))


def _validate(result: ValidateResult) -> PageSection:
    heading = f"Validation of {result.model} on {result.soc.name}"
    section = _of(heading, tables.validation_content(result))
    return replace(section, findings=tables.validation_findings(result))


def _validations(result: ValidationsResult) -> PageSection:
    heading = f"Validations on {result.soc.name}"
    return _of(heading, tables.validations_content([result]))


def _bench(result: BenchResult) -> PageSection:
    drawn = [pictures.kernel_bars(result)]
    return _of(f"Kernels on {result.soc.name}", pictures=drawn, sources=[result.source])


def _of_plugin(result: PluginResult) -> PageSection:
    return _of(result.heading, *result.tables())


SECTIONS: Mapping[type, Callable[[Any], PageSection]] = {
    EvalResult: _eval,
    TrainResult: _train,
    SearchResult: _search,
    SearchesResult: _searches,
    CollectResult: _collect,
    RunResult: _run,
    PackageResult: _package,
    ExplainResult: _explain,
    ValidateResult: _validate,
    ValidationsResult: _validations,
    BenchResult: _bench,
}
