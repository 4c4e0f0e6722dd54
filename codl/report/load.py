"""Reads the files that commands write with `-o FILE`, and checks them.

Keys that a report does not need may be there; those that it needs must be right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from codl.errors import InvalidFileError
from codl.report.fields import Field
from codl.report.results import (
    NOT_RECORDED,
    PROCESSORS,
    SOURCES,
    SPAN_KINDS,
    Chain,
    CollectResult,
    ConformanceResult,
    EvalResult,
    EvalRow,
    Latency,
    Origin,
    PackageResult,
    PeerRun,
    PredictorRow,
    Processor,
    Result,
    RunResult,
    SearchResult,
    Soc,
    Span,
    Timeline,
    TrainResult,
)

VERSION = 1
HOW = "A result file is what a command writes with `-o FILE`."


def load_result(path: Path) -> Result:
    """Read a result file; raises `InvalidFileError` with the key and value that are wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidFileError(path, "there is no such file.", fix=HOW) from error
    except OSError as error:
        raise InvalidFileError(path, f"cannot be read: {error.strerror}.", fix=HOW) from error
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(path, f"not JSON: {error}.", fix=HOW) from error
    return parse_result(content, path)


def parse_result(content: Any, path: str | Path = "result") -> Result:
    """Check a result's content; `path` is what errors call it."""
    top = Field(str(path), "", content)
    if not isinstance(content, dict):
        raise InvalidFileError(path, f"must hold a mapping, got {content!r:.60}.", fix=HOW)
    if "command" not in content and {"digest", "chains"} <= set(content):
        return _search(top)  # a plan file
    return COMMANDS[top.key("command").one_of("command", COMMANDS)](top)


def eval_result(content: Mapping[str, Any]) -> EvalResult:
    """What `codl eval` has in hand before it is written: the keys of its `--json`."""
    return _eval(Field("result", "", dict(content)))


def train_result(content: Mapping[str, Any]) -> TrainResult:
    """What `codl train` has in hand before it is written: the keys of its `--json`."""
    return _train(Field("result", "", dict(content)))


def _eval(top: Field) -> EvalResult:
    rows = tuple(_eval_row(row) for row in top.key("rows").items())
    sources = {(row.model, row.strategy): row.source for row in rows}
    return EvalResult(
        origin=_origin(top),
        soc=_soc(top.key("soc")),
        rows=rows,
        timelines=tuple(_timeline(t, sources) for t in _items(top, "timelines")),
    )


def _eval_row(row: Field) -> EvalRow:
    """One row; a failed one must have no latency, any other must have one."""
    status = row.get("status")
    failed = status is not None and status.one_of("status", ("ok", "failed")) == "failed"
    latency = row.key("latency_ms")
    if failed and latency.value is not None:
        raise latency.wrong("null where the status is 'failed'")
    if not failed and latency.value is None:
        raise latency.wrong("a mapping with 'median' unless the status is 'failed'")
    slowdown, peer = row.get("slowdown"), row.get("peer")
    return EvalRow(
        model=row.key("model").text(),
        strategy=row.key("strategy").text(),
        latency_ms=None if failed else _latency(latency),
        predicted_ms=_number(row, "predicted_ms"),
        source=row.key("source").one_of("source", SOURCES),
        cosine=_number(row, "cosine", signed=True),
        max_rel_err=_number(row, "max_rel_err"),
        speedup=_number(row, "speedup"),
        of_ideal=_number(row, "of_ideal"),
        reason=(_text(row, "reason") or "no reason recorded") if failed else "",
        slowdown={name: factor.number() for name, factor in slowdown.pairs()} if slowdown else {},
        peer=_peer(peer) if peer else None,
    )


def _peer(peer: Field) -> PeerRun:
    return PeerRun(
        version=peer.key("version").text(),
        threads=peer.key("threads").count(),
        observed_cores=tuple(core.count() for core in peer.key("observed_cores").items()),
        busy_cores=peer.key("busy_cores").number(),
    )


def _latency(latency: Field) -> Latency:
    runs = latency.get("runs")
    p20, p80 = _number(latency, "p20"), _number(latency, "p80")
    found = Latency(latency.key("median").number(), p20, p80, runs.count() if runs else None)
    low = found.median if p20 is None else p20
    high = found.median if p80 is None else p80
    slack = 1e-9 * found.median  # percentiles of equal samples may differ in the last bit
    if not low - slack <= found.median <= high + slack:
        raise latency.wrong("p20 <= median <= p80")
    return found


def _timeline(timeline: Field, sources: Mapping[tuple[str, str], str]) -> Timeline:
    model, strategy = timeline.key("model").text(), timeline.key("strategy").text()
    source = sources.get((model, strategy), NOT_RECORDED)
    return Timeline(model, strategy, source, _spans(timeline.key("spans")))


def _spans(spans: Field) -> tuple[Span, ...]:
    return tuple(_span(span) for span in spans.items())


def _span(span: Field) -> Span:
    start, end = (span.key(name).number(signed=True) for name in ("start_ms", "end_ms"))
    if end < start:
        raise span.key("end_ms").wrong(f"at least start_ms, {start!r}")
    return Span(
        processor=span.key("processor").one_of("processor", PROCESSORS),
        kind=span.key("kind").one_of("span kind", SPAN_KINDS),
        label=span.key("label").text(),
        start_ms=start,
        end_ms=end,
    )


def _train(top: Field) -> TrainResult:
    sources = top.get("sources")
    notes = top.get("notes")
    return TrainResult(
        origin=_origin(top),
        soc=_soc(top.key("soc")),
        predictors=tuple(_predictor(row) for row in top.key("predictors").items()),
        train_s=top.key("train_s").number(),
        sources=tuple(s.one_of("source", SOURCES) for s in sources.items()) if sources else (),
        notes=notes.texts() if notes else (),
    )


def _predictor(row: Field) -> PredictorRow:
    return PredictorRow(
        name=row.key("name").text(),
        target=row.key("target").text(),
        processor=_text(row, "processor") or None,
        n_train=row.key("n_train").count(),
        n_test=row.key("n_test").count(),
        split=row.key("split").one_of("split", ("row", "shape")),
        acc10=_number(row, "acc10"),
        acc5=_number(row, "acc5"),
        mape=_number(row, "mape"),
        bytes=row.key("bytes").count(),
        us_per_prediction=row.key("us_per_prediction").number(),
        coverage90=_number(row, "coverage90"),
    )


def _search(top: Field) -> SearchResult:
    not_counted = top.get("not_counted")
    return SearchResult(
        origin=_origin(top),
        soc=_soc(top.key("soc")),
        model=top.key("model").text(),
        strategy=top.key("strategy").text(),
        predictor=_text(top, "predictor"),
        predicted_ms=_number(top, "predicted_ms"),
        search_ms=_number(top, "search_ms"),
        chains=tuple(_chain(chain) for chain in top.key("chains").items()),
        source=_text(top, "source"),
        not_counted=not_counted.texts() if not_counted else (),
    )


def _chain(chain: Field) -> Chain:
    ops, ratio = chain.key("ops"), chain.key("gpu_ratio")
    if not ops.texts():
        raise ops.wrong("a list of at least one op")
    if not 0 <= ratio.number() <= 1:
        raise ratio.wrong("0 (CPU only) ... 1 (GPU only)")
    variants = {
        op: {processor: variant.text() for processor, variant in by_processor.pairs()}
        for op, by_processor in chain.key("variants").pairs()
    }
    dim = chain.key("dim").one_of("partition dimension", ("H", "OC", "N"))
    return Chain(ops.texts(), dim, ratio.number(), variants)


def _collect(top: Field) -> CollectResult:
    return CollectResult(
        origin=_origin(top),
        soc=_optional_soc(top),
        rows=top.key("rows").count(),
        failed=top.key("failed").count(),
        seconds=top.key("seconds").number(),
        files=top.key("files").texts(),
        source=_source(top),
    )


def _run(top: Field) -> RunResult:
    model, strategy, source = top.key("model").text(), _text(top, "strategy"), _source(top)
    spans = top.get("spans")
    return RunResult(
        origin=_origin(top),
        soc=_optional_soc(top),
        model=model,
        strategy=strategy,
        latency_ms=_latency(top.key("latency_ms")),
        data_sharing_ms=_number(top, "data_sharing_ms"),
        source=source,
        timeline=Timeline(model, strategy, source, _spans(spans)) if spans else None,
    )


def _conformance(top: Field) -> ConformanceResult:
    refusals = top.key("refusals").pairs()
    return ConformanceResult(
        origin=_origin(top),
        gpu=top.key("gpu").text(),
        driver=top.key("driver").text(),
        onnx=top.key("onnx").text(),
        cases=top.key("cases").count(),
        passed=top.key("passed").count(),
        failed=top.key("failed").count(),
        refused=top.key("refused").count(),
        converted=top.key("converted").count(),
        renamings=top.key("renamings").count(),
        seconds=top.key("seconds").number(),
        refusals={reason: number.count() for reason, number in refusals},
    )


def _package(top: Field) -> PackageResult:
    return PackageResult(
        origin=_origin(top),
        model=top.key("model").text(),
        soc=top.key("soc").text(),
        strategy=top.key("strategy").text(),
        bytes=top.key("bytes").count(),
        cold_start_ms=top.key("cold_start_ms").number(),
        import_ms=top.key("import_ms").number(),
        load_ms=top.key("load_ms").number(),
        first_run_ms=top.key("first_run_ms").number(),
    )


#: Every command whose results can be reported, and what reads them.
COMMANDS: Mapping[str, Callable[[Field], Result]] = {
    "eval": _eval,
    "train": _train,
    "search": _search,
    "collect": _collect,
    "run": _run,
    "conformance": _conformance,
    "package": _package,
}


def _origin(top: Field) -> Origin:
    version = top.get("version")
    if version is not None and version.value != VERSION:
        raise version.wrong(f"{VERSION}, the version of result files that this codl reads")
    return Origin(top.path, *(_text(top, name) for name in ("codl", "commit", "created")))


def _soc(soc: Field) -> Soc:
    """A SoC's description, or only its name."""
    if isinstance(soc.value, str):
        return Soc(soc.text())
    return Soc(
        name=soc.key("name").text(),
        description=_text(soc, "description"),
        cpu=_processor(soc.key("cpu")),
        gpu=_processor(soc.key("gpu")),
    )


def _processor(side: Field) -> Processor:
    return Processor(
        side.key("name").text(),
        tuple(core.count() for core in _items(side, "cores")),
        *(_text(side, name) for name in ("platform", "driver", "type")),
    )


def _optional_soc(top: Field) -> Soc | None:
    soc = top.get("soc")
    return _soc(soc) if soc else None


def _source(top: Field) -> str:
    source = top.get("source")
    return source.one_of("source", SOURCES) if source else NOT_RECORDED


def _items(at: Field, name: str) -> list[Field]:
    found = at.get(name)
    return found.items() if found else []


def _text(at: Field, name: str) -> str:
    found = at.get(name)
    return found.text() if found else ""


def _number(at: Field, name: str, *, signed: bool = False) -> float | None:
    found = at.get(name)
    return found.number(signed=signed) if found else None
