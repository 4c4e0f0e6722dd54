"""Result files as data: what each command writes with `-o FILE`, as far as a report needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import fsum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

from codl.ir.environment import Environment
from codl.ir.plan import Chain, OpFallback
from codl.ir.types import Processor
from codl.records.results import SINGLES as SINGLES
from codl.records.results import (
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
    doubts,
    times_faster,
)
from codl.records.waterfall import BOUND, ChainTerms, WaterfallTerm, WholeOp

if TYPE_CHECKING:
    from codl.report.text_table import TextTable


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """Origin of a result file; empty where not recorded.

    `path` is where it was read, `environment` where and how it was measured.
    """

    #: What wrote it.
    command: ClassVar[str] = ""
    path: str = "result"
    codl: str = ""
    commit: str = ""
    created: str = ""
    environment: Environment | None = None

    @property
    def file(self) -> str:
        """The file's name alone: a page travels, its writer's folders need not."""
        return PurePath(self.path).name


@dataclass(frozen=True)
class ProcessorSummary:
    """One side of a SoC. `cores` are host cores, empty for a real GPU."""

    name: str
    cores: tuple[Count, ...] = ()
    platform: str = ""
    driver: str = ""
    type: str = ""


@dataclass(frozen=True)
class SocSummary:
    """The SoC of a result; `cpu` and `gpu` are None where the file only names it."""

    name: str
    description: str = ""
    cpu: ProcessorSummary | None = None
    gpu: ProcessorSummary | None = None

    @property
    def is_one_cpu(self) -> bool:
        """Whether the OpenCL device is a CPU, so that both sides are one, divided."""
        return self.gpu is not None and self.gpu.type == "cpu"


@dataclass(frozen=True, kw_only=True)
class CheckedOp:
    """One part of an op; one that was not reached has no figures, and nobody knows if it is ok."""

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
    """What `codl validate` wrote of one plan."""

    command: ClassVar[str] = "validate"
    model: str
    soc: SocSummary
    ok: bool
    diagnosis: str
    ops: tuple[CheckedOp, ...]
    strategy: str = ""
    cosine: float | None = None
    max_rel_err: Amount | None = None
    fallback: tuple[OpFallback, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ValidatedModel:
    """A model's ops on one processor of a SoC, and the whole of it, in a line.

    `parts` and `variants` count what was checked; `wrong` are those that are not ok and `left`
    those that were not reached. `op_cosine` is the lowest of a part, `op_err` the largest error of
    one over what is rounding in its variant. `reason` says why there is nothing but that.
    """

    model: str
    processor: Processor
    stored: str
    parts: Count = 0
    variants: Count = 0
    wrong: tuple[str, ...] = ()
    left: Count = 0
    op_cosine: float | None = None
    op_err: Amount | None = None
    cosine: float | None = None
    max_rel_err: Amount | None = None
    ok: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ValidationsResult(ResultFile):
    """What `scripts/validate_models.py` wrote of many models on one device."""

    command: ClassVar[str] = "validations"
    soc: SocSummary
    gpu: str
    driver: str
    rows: tuple[ValidatedModel, ...]


#: Sources of which a reader must be warned: codl did not measure these numbers for this report.
UNMEASURED = ("replayed", "simulated")
#: Where a file does not say where its numbers come from.
NOT_RECORDED: Literal["not recorded"] = "not recorded"
AnySource: TypeAlias = Source | Literal["not recorded"]

#: What a span of a timeline can be, in three classes.
COMPUTING: tuple[SpanKind, ...] = ("net", "kernel")
SHARING: tuple[SpanKind, ...] = ("copy", "map", "unmap", "transform")
WAITING: tuple[SpanKind, ...] = ("sync",)

IDEAL = "ideal"
#: Bound and terms of a waterfall may differ from its last total by this part.
ADDS_UP = 1e-6


def _check_spans(spans: Iterable[TimeSpan], key: str = "spans") -> None:
    for at, span in enumerate(spans):
        if span.end_ms < span.start_ms:
            raise ValueError(
                f"{key}[{at}].end_ms must be at least start_ms, {span.start_ms!r}, "
                f"got {span.end_ms!r}"
            )


@dataclass(frozen=True)
class InferenceProfile:
    """One profiled inference.

    `source` is that of its latency, `predicted` the predicted timeline, if kept.
    """

    model: str
    strategy: str
    spans: tuple[TimeSpan, ...]
    source: str = NOT_RECORDED
    predicted: tuple[TimeSpan, ...] = ()

    def __post_init__(self) -> None:
        _check_spans(self.spans)
        _check_spans(self.predicted, "predicted")

    def ms(self, kinds: Iterable[SpanKind], processor: Processor | None = None) -> float:
        """The summed length of the spans of some kinds, on one processor or on both."""
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
class EvalResult(ResultFile):
    """Result of `codl eval`: rows, and a profile for each strategy that ran.

    `asked`, `digests` and `plans`, by digest, let `--repro` repeat it.
    """

    command: ClassVar[str] = "eval"
    soc: SocSummary
    rows: tuple[EvalRow, ...]
    timelines: tuple[InferenceProfile, ...] = ()
    serial: str = ""
    asked: EvalRequest | None = None
    digests: Digests | None = None
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: What was not measured where the evaluation was ended early.
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
        """Over the better single processor of the same run; what files hold may be of medians."""
        singles = [single for single in self.of(row.model) if single.strategy in SINGLES]
        same = [single.latency_ms for single in singles if single.source == row.source]
        return times_faster(same, row.latency_ms)

    def of_ideal(self, row: EvalRow) -> float | None:
        """The ideal latency over this one's."""
        ideal = [other.latency_ms for other in self.of(row.model) if other.strategy == IDEAL]
        return None if row.source in UNMEASURED else times_faster(ideal, row.latency_ms)

    def doubts(self, row: EvalRow) -> tuple[str, ...]:
        """Why a latency may be that of a disturbed machine; files of before do not say it."""
        latency = row.latency_ms
        if row.doubts or latency is None or row.source != "measured":
            return row.doubts
        return doubts(latency, row.cold_ms)

    def profiles(self, model: str) -> tuple[InferenceProfile, ...]:
        """The profiles of a model, with the sources of the latencies beside them."""
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
class PlanSummary:
    """The plan of one model; its latency is a prediction."""

    model: str
    strategy: str
    chains: tuple[Chain, ...]
    predictor: str = ""
    predicted_ms: Amount | None = None
    search_ms: Amount | None = None
    source: str = ""
    not_counted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for at, chain in enumerate(self.chains):
            if not chain.ops:
                raise ValueError(f"chains[{at}].ops must be a list of at least one op, got []")
            if not 0 <= chain.gpu_ratio <= 1:
                raise ValueError(
                    f"chains[{at}].gpu_ratio must be 0 (CPU only) ... 1 (GPU only), "
                    f"got {chain.gpu_ratio!r}"
                )


@dataclass(frozen=True, kw_only=True)
class SearchResult(PlanSummary, ResultFile):
    """What `codl search` wrote of one model."""

    command: ClassVar[str] = "search"
    soc: SocSummary


@dataclass(frozen=True)
class FailedSearch:
    """A model without a plan, and why."""

    model: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SearchesResult(ResultFile):
    """What `codl search` wrote of several models."""

    command: ClassVar[str] = "search"
    soc: SocSummary
    plans: tuple[PlanSummary, ...]
    failed: tuple[FailedSearch, ...] = ()

    @property
    def results(self) -> tuple[SearchResult, ...]:
        """Each plan as if its model had been searched alone."""
        common = {about.name: getattr(self, about.name) for about in fields(ResultFile)}
        return tuple(SearchResult(soc=self.soc, **common, **vars(plan)) for plan in self.plans)


@dataclass(frozen=True, kw_only=True)
class CollectResult(ResultFile):
    """What `codl collect` wrote: counts of rows, and seconds."""

    command: ClassVar[str] = "collect"
    rows: Count
    failed: Count
    seconds: Amount
    files: tuple[str, ...]
    soc: SocSummary | None = None
    source: AnySource = NOT_RECORDED


@dataclass(frozen=True, kw_only=True)
class RunResult(ResultFile):
    """Result of `codl run`: one measured plan."""

    command: ClassVar[str] = "run"
    model: str
    latency_ms: Latency
    soc: SocSummary | None = None
    strategy: str = ""
    data_sharing_ms: Amount | None = None
    source: AnySource = NOT_RECORDED
    spans: tuple[TimeSpan, ...] = ()

    def __post_init__(self) -> None:
        _check_spans(self.spans)

    @property
    def profile(self) -> InferenceProfile:
        return InferenceProfile(self.model, self.strategy, self.spans, self.source)


@dataclass(frozen=True, kw_only=True)
class PackageResult(ResultFile):
    """What `codl package` said: a bundle, and what a new process took to its first output."""

    command: ClassVar[str] = "package"
    model: str
    soc: SocSummary
    strategy: str
    bytes: Count
    cold_start_ms: Amount
    import_ms: Amount
    load_ms: Amount
    first_run_ms: Amount


@dataclass(frozen=True)
class WaterfallRow:
    """One step of a waterfall: the bound, or a term."""

    model: str
    strategy: str
    name: str
    ms: float
    source: AnySource


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
        parts = [("", self)] + [(f"chains[{at}].", chain) for at, chain in enumerate(self.chains)]
        for where, part in parts:
            last_ms = part.predicted_ms if part.measured_ms is None else part.measured_ms
            total_ms = part.bound_ms + fsum(term.ms for term in part.terms)
            if abs(total_ms - last_ms) > ADDS_UP * max(abs(last_ms), self.bound_ms):
                raise ValueError(
                    f"{where}terms must add up with bound_ms to {last_ms!r}, got {total_ms!r}"
                )
            if [term.name for term in part.terms] != names:
                raise ValueError(f"{where}terms must be those of the model, {', '.join(names)}")

    @property
    def rows(self) -> tuple[WaterfallRow, ...]:
        """The bound and all terms."""
        steps = (WaterfallTerm(BOUND, self.bound_ms), *self.terms)
        about = self.model, self.strategy
        return tuple(WaterfallRow(*about, step.name, step.ms, self.source) for step in steps)


@dataclass(frozen=True, kw_only=True)
class PluginResult(ResultFile):
    """A result of a plugin's command, which is in `codl.plugins.RESULTS`."""

    @property
    def heading(self) -> str:
        """The heading of its section in a report."""
        raise NotImplementedError

    def tables(self) -> tuple[TextTable, ...]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BenchedKernel:
    """One kernel variant on one op; `p80_ms` is 0 where a file does not say it."""

    op: str
    variant: str
    processor: Processor
    latency_ms: Amount
    gflops: Amount
    p20_ms: Amount = 0.0
    p80_ms: Amount = 0.0


@dataclass(frozen=True, kw_only=True)
class BenchResult(ResultFile):
    """What `codl bench` wrote of ops."""

    command: ClassVar[str] = "bench"
    soc: SocSummary
    ops: tuple[BenchedKernel, ...]
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
    | ValidationsResult
    | PluginResult
    | BenchResult
)
#: Every command whose results can be reported; `codl search` has `SearchesResult` too.
COMMANDS: Mapping[str, type[Result]] = {
    kind.command: kind for kind in get_args(Result) if kind not in (SearchesResult, PluginResult)
}
