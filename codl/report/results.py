"""Result files as data: the part of each command's `-o FILE` that reports need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

import msgspec

from codl import files
from codl.errors import InvalidFileError, UnknownNameError
from codl.files import printable
from codl.ir.environment import Environment
from codl.ir.plan import Chain, OpFallback
from codl.ir.records.results import SINGLES as SINGLES
from codl.ir.records.results import (
    Amount,
    Count,
    Digests,
    EvalRequest,
    EvalRow,
    Latency,
    PredictorRow,
    Source,
    SpanKind,
    TimeSpan,
    times_faster,
)
from codl.ir.records.waterfall import ChainTerms, WaterfallTerm, WholeOp
from codl.ir.types import Processor
from codl.ir.yaml_file import explained
from codl.registry import RESULTS

if TYPE_CHECKING:
    from codl.report.text_table import TextTable


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """Origin of a result file; empty fields were not recorded.

    `path` is the file that was read, `environment` the machine and method of the measurement.
    """

    #: The command that wrote the file.
    command: ClassVar[str] = ""
    path: str = "result"
    codl: str = ""
    commit: str = ""
    created: str = ""
    environment: Environment | None = None

    @property
    def file(self) -> str:
        """The file name without folders, because pages are shared."""
        return PurePath(self.path).name


@dataclass(frozen=True)
class ProcessorSummary:
    """A side of a SoC; `cores` are host cores, empty for a real GPU."""

    name: str
    cores: tuple[Count, ...] = ()
    platform: str = ""
    driver: str = ""
    type: str = ""


@dataclass(frozen=True)
class SocSummary:
    """The SoC of a result; `cpu` and `gpu` are None if the file has only its name."""

    name: str
    description: str = ""
    cpu: ProcessorSummary | None = None
    gpu: ProcessorSummary | None = None

    @property
    def is_one_cpu(self) -> bool:
        """True where the OpenCL device is a CPU, so that both sides share one CPU."""
        return self.gpu is not None and self.gpu.type == "cpu"


@dataclass(frozen=True, kw_only=True)
class CheckedOp:
    """The check of a part of an op; figures are None where it was not reached."""

    op: str
    processor: Processor
    variant: str
    verdict: str
    ok: bool | None = None
    cosine: float | None = None
    max_rel_err: Amount | None = None
    limit: Amount | None = None
    layout: str = ""
    precision: Mapping[str, str] = field(default_factory=dict)
    placed: str | None = None
    accumulated_max_rel_err: Amount | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidateResult(ResultFile):
    """Result of `codl validate`: the checks of one plan."""

    command: ClassVar[str] = "validate"
    model: str
    soc: SocSummary
    ok: bool
    diagnosis: str
    ops: tuple[CheckedOp, ...]
    strategy: str = ""
    reference: str = "the reference"
    cosine: float | None = None
    max_rel_err: Amount | None = None
    fallback: tuple[OpFallback, ...] = ()


#: Sources of numbers that need a warning: codl did not measure them for this report.
UNMEASURED = ("replayed", "simulated")
#: The source of numbers without a recorded source.
NOT_RECORDED: Literal["not recorded"] = "not recorded"
AnySource: TypeAlias = Source | Literal["not recorded"]

#: Kinds of spans in a timeline, in three classes.
COMPUTING: tuple[SpanKind, ...] = ("net", "kernel")
SHARING: tuple[SpanKind, ...] = ("copy", "map", "unmap", "transform")
WAITING: tuple[SpanKind, ...] = ("sync",)

IDEAL = "ideal"


@dataclass(frozen=True)
class InferenceProfile:
    """Profiled and predicted spans of one inference; `source` is the source of its latency."""

    model: str
    strategy: str
    spans: tuple[TimeSpan, ...]
    source: str = NOT_RECORDED
    predicted: tuple[TimeSpan, ...] = ()

    def ms(self, kinds: Iterable[SpanKind], processor: Processor | None = None) -> float:
        """Milliseconds of all spans of some kinds, on one processor or on both."""
        wanted = tuple(kinds)
        return sum(
            span.ms
            for span in self.spans
            if span.kind in wanted and processor in (None, span.processor)
        )

    @property
    def end_ms(self) -> float:
        return max((span.end_ms for span in self.spans), default=0.0)


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """The plan of one model; its latency is a prediction."""

    model: str
    strategy: str
    chains: tuple[Chain, ...]
    predictor: str = ""
    predicted_ms: Amount | None = None
    search_ms: Amount | None = None
    source: str = ""
    method: str = ""
    predicted_mj: Amount | None = None
    not_counted: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    fallbacks: tuple[OpFallback, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvalResult(ResultFile):
    """Result of `codl eval`: rows, and a profile for each strategy that ran. `plans`
    are by digest.
    """

    command: ClassVar[str] = "eval"
    soc: SocSummary
    rows: tuple[EvalRow, ...]
    timelines: tuple[InferenceProfile, ...] = ()
    serial: str = ""
    asked: EvalRequest | None = None
    digests: Digests | None = None
    plans: Mapping[str, PlanSummary] = field(default_factory=dict)
    #: The parts that were not measured because the evaluation ended early, as text.
    incomplete: str = ""

    def __post_init__(self) -> None:
        for at, row in enumerate(self.rows):
            failed = row.status == "failed"
            if failed != (row.latency_ms is None):
                rule = "null" if failed else "a mapping with 'median'"
                raise ValueError(
                    f"rows[{at}].latency_ms must be {rule} where the status is {row.status!r}, "
                    f"got {row.latency_ms!r}"
                )

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.model for row in self.rows))

    def of(self, model: str) -> tuple[EvalRow, ...]:
        return tuple(row for row in self.rows if row.model == model)

    def speedup(self, row: EvalRow) -> float | None:
        """Speedup over the better single processor in this file, recomputed from levels."""
        singles = [single for single in self.of(row.model) if single.strategy in SINGLES]
        same = [single.latency_ms for single in singles if single.source == row.source]
        return times_faster(same, row.latency_ms)

    def of_ideal(self, row: EvalRow) -> float | None:
        """The ideal latency over the row's latency."""
        ideal = [other.latency_ms for other in self.of(row.model) if other.strategy == IDEAL]
        return None if row.source in UNMEASURED else times_faster(ideal, row.latency_ms)

    def profiles(self, model: str) -> tuple[InferenceProfile, ...]:
        """Profiles of a model, with the sources of their latencies."""
        sources = {row.strategy: row.source for row in self.of(model)}
        profiles = [profile for profile in self.timelines if profile.model == model]
        return tuple(replace(p, source=sources.get(p.strategy, NOT_RECORDED)) for p in profiles)


@dataclass(frozen=True, kw_only=True)
class TrainResult(ResultFile):
    """Result of `codl train`; `sources` are those of its dataset."""

    command: ClassVar[str] = "train"
    soc: SocSummary
    predictors: tuple[PredictorRow, ...]
    train_s: Amount
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SearchResult(PlanSummary, ResultFile):
    command: ClassVar[str] = "search"
    soc: SocSummary


@dataclass(frozen=True)
class FailedSearch:
    model: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SearchesResult(ResultFile):
    command: ClassVar[str] = "search"
    soc: SocSummary
    plans: tuple[PlanSummary, ...]
    failed: tuple[FailedSearch, ...] = ()

    @property
    def results(self) -> tuple[SearchResult, ...]:
        """Each plan as the result of a search for its model alone."""
        common = {about.name: getattr(self, about.name) for about in fields(ResultFile)}
        return tuple(SearchResult(soc=self.soc, **common, **vars(plan)) for plan in self.plans)


@dataclass(frozen=True, kw_only=True)
class CollectResult(ResultFile):
    """Result of `codl collect`: counts of rows, and seconds."""

    command: ClassVar[str] = "collect"
    rows: Count
    failed: Count
    seconds: Amount
    files: tuple[str, ...]
    soc: SocSummary | None = None
    source: AnySource = NOT_RECORDED
    stopped: str = ""
    skipped: Count = 0
    left: Count = 0
    again: Count = 0
    paused_s: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class RunResult(ResultFile):
    """Result of `codl run`: one measured plan."""

    command: ClassVar[str] = "run"
    model: str
    latency_ms: Latency
    soc: SocSummary | None = None
    strategy: str = ""
    data_sharing_ms: Amount | None = None
    predicted_ms: Amount | None = None
    source: AnySource = NOT_RECORDED
    spans: tuple[TimeSpan, ...] = ()

    @property
    def profile(self) -> InferenceProfile:
        return InferenceProfile(self.model, self.strategy, self.spans, self.source)


@dataclass(frozen=True, kw_only=True)
class PackageResult(ResultFile):
    """Result of `codl package`: a bundle, and the time of a new process to its first output."""

    command: ClassVar[str] = "package"
    model: str
    soc: SocSummary
    strategy: str
    bytes: Count
    cold_start_ms: Amount
    import_ms: Amount
    load_ms: Amount
    first_run_ms: Amount


@dataclass(frozen=True, kw_only=True)
class ExplainResult(ResultFile):
    """Result of `codl explain`: a waterfall of one plan, predicted or also measured."""

    command: ClassVar[str] = "explain"
    model: str
    soc: SocSummary
    strategy: str
    bound_ms: Amount
    side_by_side_ms: Amount
    terms: tuple[WaterfallTerm, ...]
    predicted_ms: Amount
    chains: tuple[ChainTerms, ...]
    measured_ms: Amount | None = None
    latency_ms: Latency | None = None
    slowdown: Mapping[str, Amount] | None = None
    predictor: str = ""
    source: AnySource = NOT_RECORDED
    not_counted: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    whole: tuple[WholeOp, ...] = ()

    def __post_init__(self) -> None:
        names = [term.name for term in self.terms]
        for at, chain in enumerate(self.chains):
            if [term.name for term in chain.terms] != names:
                raise ValueError(
                    f"chains[{at}].terms must be those of the model, {', '.join(names)}"
                )


@dataclass(frozen=True, kw_only=True)
class PluginResult(ResultFile):
    """Result of a plugin's command, listed in `codl.registry.RESULTS`."""

    @property
    def heading(self) -> str:
        """The heading of its section in a report."""
        raise NotImplementedError

    def tables(self) -> tuple[TextTable, ...]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BenchedKernel:
    """A kernel variant on an op; a variant that refuses it or fails has only a `reason`."""

    op: str
    variant: str
    processor: Processor
    latency_ms: Amount | None = None
    gflops: Amount | None = None
    p20_ms: Amount | None = None
    p80_ms: Amount | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class BenchResult(ResultFile):
    command: ClassVar[str] = "bench"
    soc: SocSummary
    ops: tuple[BenchedKernel, ...]
    refused: tuple[BenchedKernel, ...] = ()
    elsewhere: Count = 0
    source: AnySource = NOT_RECORDED


Result = (
    EvalResult
    | TrainResult
    | SearchResult
    | SearchesResult
    | CollectResult
    | RunResult
    | PackageResult
    | ExplainResult
    | ValidateResult
    | PluginResult
    | BenchResult
)
#: Result types by command; `codl search` also writes `SearchesResult`.
COMMANDS: Mapping[str, type[Result]] = {
    kind.command: kind for kind in get_args(Result) if kind not in (SearchesResult, PluginResult)
}


VERSION = 1
HOW = "A result file is what a command writes with `-o FILE`."
T = TypeVar("T", bound=ResultFile)


def load_result(path: Path) -> Result:
    """Read a result file; raises `InvalidFileError` with the invalid key and value."""
    return parse_result(files.read_json(path, fix=HOW), path)


def parse_result(content: Any, path: str | Path = "result") -> Result:
    """Check a result's content; errors name it by `path`."""
    if not isinstance(content, dict):
        raise InvalidFileError(path, f"must hold a mapping, got {content!r:.60}.", fix=HOW)
    if "command" not in content and {"digest", "chains"} <= set(content):
        return parse_as(SearchResult, content, path)  # a plan file
    if "command" not in content:
        raise InvalidFileError(path, "the key 'command' is missing.", where="top", fix=HOW)
    command = content["command"]
    known = {*COMMANDS, *RESULTS}
    if not isinstance(command, str) or command not in known:
        problem = str(UnknownNameError("command", str(command), known))
        raise InvalidFileError(path, problem, where="command")
    if command == "search" and "plans" in content:
        return parse_as(SearchesResult, content, path)
    kind: type[Result] = COMMANDS.get(command) or RESULTS[command]
    return parse_as(kind, content, path)


def parse_as(kind: type[T], content: Mapping[str, Any], path: str | Path = "result") -> T:
    """Check content as one kind of result, also before it is written; raises `InvalidFileError`."""
    if content.get("version", VERSION) != VERSION:
        problem = (
            f"must be {VERSION}, the version that this codl reads, got {content['version']!r}."
        )
        raise InvalidFileError(path, problem, where="version")
    checked = {**_plain(dict(content), "", path), "path": str(path)}
    if isinstance(checked.get("soc"), str):
        checked["soc"] = {"name": checked["soc"]}
    try:
        return msgspec.convert(checked, kind)
    except msgspec.ValidationError as error:
        raise explained(str(error), checked, kind, path) from error


def _plain(value: Any, where: str, path: str | Path) -> Any:
    """A value with finite numbers only, and text without control characters of terminals or XML."""
    if isinstance(value, dict):
        return {printable(k): _plain(v, f"{where}.{k}", path) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{at}]", path) for at, item in enumerate(value)]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        value = float(value)  # also for numbers of NumPy
    if isinstance(value, (int, float)) and not (abs(value) < 2**63 and isfinite(value)):
        problem = f"must be a finite number, got {value!r:.60}."
        raise InvalidFileError(path, problem, where=where.lstrip("."))
    return value
