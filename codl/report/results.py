"""What the commands found, as their result files say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

#: Where a latency may come from.
SOURCES = ("measured", "computed", "replayed", "simulated")
#: Of these a reader must be warned: nobody measured them for this report.
UNMEASURED = ("replayed", "simulated")
#: A file that does not say where its numbers come from gets this instead of a source.
NOT_RECORDED = "not recorded"

#: What a span of a timeline can be, in three classes.
COMPUTING = ("net", "kernel")
SHARING = ("copy", "map", "unmap", "transform")
WAITING = ("sync",)
SPAN_KINDS = (*COMPUTING, *SHARING, *WAITING)

PROCESSORS = ("cpu", "gpu")
IDEAL = "ideal"


@dataclass(frozen=True)
class Origin:
    """Which file, and which codl wrote it when; empty where the file does not say."""

    path: str
    codl: str = ""
    commit: str = ""
    created: str = ""

    @property
    def file(self) -> str:
        """The file's name alone: a page travels, its writer's folders need not."""
        return PurePath(self.path).name


@dataclass(frozen=True)
class Processor:
    """One side of a SoC. `cores` are host cores, empty for a real GPU."""

    name: str
    cores: tuple[int, ...]
    platform: str = ""
    driver: str = ""
    type: str = ""


@dataclass(frozen=True)
class Soc:
    """The SoC of a result; `cpu` and `gpu` are None where the file only names it."""

    name: str
    description: str = ""
    cpu: Processor | None = None
    gpu: Processor | None = None

    @property
    def is_one_cpu(self) -> bool:
        """Whether the OpenCL device is a CPU, so that both sides are halves of one."""
        return self.gpu is not None and self.gpu.type == "cpu"


@dataclass(frozen=True)
class Latency:
    """Milliseconds; an ideal latency has no spread and no runs."""

    median: float
    p20: float | None = None
    p80: float | None = None
    runs: int | None = None


@dataclass(frozen=True)
class PeerRun:
    """How another library was run; `busy_cores` is how many cores it kept busy in the mean."""

    version: str
    threads: int
    observed_cores: tuple[int, ...]
    busy_cores: float


@dataclass(frozen=True)
class EvalRow:
    """One strategy, or another library, on one model. `latency_ms` is None exactly where it failed.

    `slowdown` is how many times slower each processor was than when the dataset was measured.
    """

    model: str
    strategy: str
    latency_ms: Latency | None
    predicted_ms: float | None
    source: str
    cosine: float | None = None
    max_rel_err: float | None = None
    speedup: float | None = None
    of_ideal: float | None = None
    reason: str = ""
    slowdown: Mapping[str, float] = field(default_factory=dict)
    peer: PeerRun | None = None


@dataclass(frozen=True)
class Span:
    """What one processor did, in milliseconds since the start of the inference."""

    processor: str
    kind: str
    label: str
    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        return self.end_ms - self.start_ms


@dataclass(frozen=True)
class Timeline:
    """One profiled inference; `source` is that of the latency beside it."""

    model: str
    strategy: str
    source: str
    spans: tuple[Span, ...]

    def ms(self, kinds: Iterable[str], processor: str | None = None) -> float:
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


@dataclass(frozen=True)
class EvalResult:
    """What `codl eval` wrote."""

    origin: Origin
    soc: Soc
    rows: tuple[EvalRow, ...]
    timelines: tuple[Timeline, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.model for row in self.rows))

    def of(self, model: str) -> tuple[EvalRow, ...]:
        return tuple(row for row in self.rows if row.model == model)


@dataclass(frozen=True)
class PredictorRow:
    """A predictor's accuracy in percent on one split; None where nothing could be held out."""

    name: str
    target: str
    processor: str | None
    n_train: int
    n_test: int
    split: str
    acc10: float | None
    acc5: float | None
    mape: float | None
    bytes: int
    us_per_prediction: float
    coverage90: float | None = None


@dataclass(frozen=True)
class TrainResult:
    """`sources` are those of the dataset that the predictors were fitted on."""

    origin: Origin
    soc: Soc
    predictors: tuple[PredictorRow, ...]
    train_s: float
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chain:
    """Ops run at one dimension and ratio; `variants`: op -> processor -> kernel variant."""

    ops: tuple[str, ...]
    dim: str
    gpu_ratio: float
    variants: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class SearchResult:
    """A plan; its latency is a prediction."""

    origin: Origin
    soc: Soc
    model: str
    strategy: str
    predictor: str
    predicted_ms: float | None
    search_ms: float | None
    chains: tuple[Chain, ...]
    source: str = ""
    not_counted: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectResult:
    """What `codl collect` wrote: counts of rows, and seconds."""

    origin: Origin
    soc: Soc | None
    rows: int
    failed: int
    seconds: float
    files: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class RunResult:
    """What `codl run` wrote: one plan, measured."""

    origin: Origin
    soc: Soc | None
    model: str
    strategy: str
    latency_ms: Latency
    data_sharing_ms: float | None
    source: str
    timeline: Timeline | None


@dataclass(frozen=True)
class ConformanceResult:
    """What `codl conformance` wrote: counts of ONNX's cases, and why some were refused."""

    origin: Origin
    gpu: str
    driver: str
    onnx: str
    cases: int
    passed: int
    failed: int
    refused: int
    converted: int
    renamings: int
    seconds: float
    refusals: Mapping[str, int]


@dataclass(frozen=True)
class PackageResult:
    """What `codl package` said: a bundle, and what a new process took to its first output."""

    origin: Origin
    model: str
    soc: str
    strategy: str
    bytes: int
    cold_start_ms: float
    import_ms: float
    load_ms: float
    first_run_ms: float


Result = (
    EvalResult
    | TrainResult
    | SearchResult
    | CollectResult
    | RunResult
    | ConformanceResult
    | PackageResult
)
