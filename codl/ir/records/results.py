"""Result records: measured by commands, printed, written to files and read back by reports.

Plain frozen dataclasses: `dataclasses.asdict` turns them into JSON values, `msgspec.convert` reads
these. A value that violates a class's rule raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from codl.ir.plan import OpFallback
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.ir.records.statistic import level
from codl.ir.types import PROCESSORS, Processor

#: A finite number of at least 0, and an integer of at least 0.
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
#: Origin of a latency; `computed` is derived from measured latencies.
Source = Literal["measured", "computed", "replayed", "simulated"]
Status = Literal["ok", "failed"]
#: Unit of hold-out: single rows, or all rows of an op shape together.
Split = Literal["row", "shape"]
#: Kind of activity: computing (net, kernel), sharing data (copy, map), or waiting (sync).
SpanKind = Literal["net", "layer", "kernel", "copy", "map", "unmap", "transform", "sync"]


@dataclass(frozen=True)
class Latency:
    """Milliseconds: median, 20th and 80th percentile, and number of samples.

    `level` is the value for sums and comparisons. A computed latency has equal values and 0 runs.
    """

    median: Amount
    p20: Amount
    p80: Amount
    runs: Count

    def __post_init__(self) -> None:
        slack = 1e-9 * self.median  # percentiles of equal samples may differ in the last bit
        if not self.p20 - slack <= self.median <= self.p80 + slack:
            raise ValueError(
                f"must be p20 <= median <= p80, got {self.p20!r}, {self.median!r}, {self.p80!r}"
            )

    @classmethod
    def of(cls, samples_s: Sequence[float]) -> Latency:
        """The latency of samples in seconds."""
        median, p80 = 1e3 * np.percentile(samples_s, (50, 80))
        return cls(float(median), 1e3 * level(samples_s), float(p80), len(samples_s))

    @property
    def level(self) -> float:
        """The 20th percentile in milliseconds (see `codl.ir.records.statistic`)."""
        return self.p20


#: Strategies on one processor, in its best or a given storage; speedups are over the fastest one.
SINGLES = ("cpu", "gpu", "gpu-buffer", "gpu-image")


def times_faster(bases: Iterable[Latency | None], latency: Latency | None) -> float | None:
    """Speedup of `latency` over the fastest of `bases`; None if either is unknown."""
    least = min((base.level for base in bases if base), default=None)
    return least / latency.level if least is not None and latency and latency.level else None


#: Ratio of p80 or median to p20 above which a machine counts as disturbed.
WIDE = 1.2
#: Share by which a first run may be faster by chance.
BY_CHANCE = 0.05
#: Ratio of measured to predicted latency that only an effect unknown to predictors explains.
FAR_OFF = 10.0


def doubts(
    warm: Latency,
    cold: Latency | None = None,
    *,
    predicted_ms: float | None = None,
    quota_periods: int | None = None,
) -> tuple[str, ...]:
    """Reasons to suspect a disturbed machine, as sentences without their full stop.

    `cold` is the latency of first runs, with caches filled by other work. `quota_periods` counts
    the periods of this measurement in which a CPU quota stopped the process (see `Conditions`).
    """
    reasons = []
    if quota_periods:
        reasons.append(f"a CPU quota stopped the process in {quota_periods} periods")
    if predicted_ms and warm.level > FAR_OFF * predicted_ms:
        reasons.append(
            f"it took {warm.level / predicted_ms:.0f} times what was predicted, as with weights "
            "below 1e-38"
        )
    if warm.median > WIDE * warm.p20:
        reasons.append(f"the median is {warm.median / warm.p20:.2f} times p20")
    if warm.p80 > WIDE * warm.p20:
        reasons.append(f"p80 is {warm.p80 / warm.p20:.2f} times p20")
    if cold is not None and cold.level < (1 - BY_CHANCE) * warm.level:
        reasons.append(
            f"first runs took {cold.level:.3g} ms, those behind them {warm.level:.3g} ms"
        )
    return tuple(reasons)


@dataclass(frozen=True)
class TimeSpan:
    """Activity of one processor, in milliseconds since the start of the inference."""

    processor: Processor
    kind: SpanKind
    label: str
    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        return self.end_ms - self.start_ms


@dataclass(frozen=True)
class PlanChange:
    """A change to a faster plan after `runs` inferences.

    Both plans were timed in turns. `gpu_ratios` are the ratios of the new plan's chains.
    """

    runs: Count
    before_ms: Amount
    after_ms: Amount
    gpu_ratios: tuple[float, ...]


@dataclass(frozen=True)
class Adaptation:
    """Adaptation of an engine: number of watched inferences, and the last changes of its plan."""

    runs: Count
    changes: tuple[PlanChange, ...]


@dataclass(frozen=True)
class Fallback:
    """A kernel variant that a device could not build or run, and its replacement."""

    layer: str
    variant: str
    reason: str
    instead: str

    def __str__(self) -> str:
        return (
            f"{self.layer!r} runs in {self.instead} and not in {self.variant}, which fails here: "
            f"{self.reason}"
        )


@dataclass(frozen=True)
class Checked:
    """Comparison of a plan's outputs with a reference, made before the first result is returned.

    `reference` is empty if nothing was compared; `reason` says why. With both set, the reference is
    not ONNX Runtime on the unchanged model. `ms` is the duration of the comparison, 0 if its result
    was known. The plan is right only with `fallbacks`. Errors up to `limit` pass; the outputs in
    `ignored` depend on rounding or chance.
    """

    reference: str
    cosine: float = 1.0
    max_rel_err: float = 0.0
    reason: str = ""
    fallbacks: tuple[OpFallback, ...] = ()
    limit: float = 0.0
    ignored: tuple[str, ...] = ()
    ms: float = 0.0


@dataclass(frozen=True)
class PeerRun:
    """Run of another library: version, threads, and the mean number of busy cores."""

    version: str
    threads: Count
    busy_cores: Amount


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The state of a machine during a measurement; None or empty if not readable.

    `temperature_c` is the hottest processor sensor in degrees Celsius. `cpu_mhz` is the fastest
    clock among the CPU side's cores, `gpu_mhz` the OpenCL device's. `throttled` are processors with
    reduced clocks. `governors` are by core cluster (the kernel's name) and for the GPU.
    `quota_periods` counts the periods in which a CPU quota stopped the process, from the first
    reading.
    """

    temperature_c: float | None = None
    cpu_mhz: Amount | None = None
    gpu_mhz: Amount | None = None
    battery_percent: Amount | None = None
    is_charging: bool | None = None
    throttled: tuple[Processor, ...] = ()
    governors: Mapping[str, str] = field(default_factory=dict)
    quota_periods: Count | None = None

    @classmethod
    def over(cls, readings: Sequence[Conditions]) -> Conditions:
        """Summary of ordered readings: highest temperature, median clocks, else the last value.

        `throttled` has every processor throttled in any reading; `quota_periods` is the increase.
        """
        if not readings:
            return cls()
        last, held = readings[-1], {side for reading in readings for side in reading.throttled}
        temperatures = [r.temperature_c for r in readings if r.temperature_c is not None]
        return replace(
            last,
            temperature_c=max(temperatures, default=None),
            cpu_mhz=_median([r.cpu_mhz for r in readings]),
            gpu_mhz=_median([r.gpu_mhz for r in readings]),
            throttled=tuple(side for side in PROCESSORS if side in held),
            quota_periods=None
            if last.quota_periods is None or readings[0].quota_periods is None
            else max(0, last.quota_periods - readings[0].quota_periods),
        )


def _median(values: Sequence[float | None]) -> float | None:
    readings = [value for value in values if value is not None]
    return median(readings) if readings else None


@dataclass(frozen=True)
class EvalRow:
    """Result of one strategy, or another library (`peer`), on one model.

    `latency_ms` is of consecutive runs, None after a failure with `reason`; `cold_ms` is of first
    runs, with caches filled by other work. `speedup` is over the better single processor of the
    same evaluation, `of_ideal` the ideal latency divided by this one. `fallbacks` are replaced
    kernel variants. `gpu_storage` is the memory type of the GPU's tensors, `precision` their
    stored, computed and accumulated types. `slowdown` of each processor since the dataset was
    measured is divided out of `predicted_over_measured`. Predictions include the profile if there
    is one; `unprofiled_ms` excludes it. `energy_mj` is per inference, `memory_bytes` tensors and
    weights by side. `same_as` names an earlier strategy with the same executable, timed once for
    both. `plan` is the plan's digest, `limited` the effect of GPU limits, `doubts` reasons to
    suspect a disturbed machine.
    """

    model: str
    strategy: str
    latency_ms: Latency | None = None
    predicted_ms: Amount | None = None
    source: Source = "measured"
    cosine: float | None = None
    max_rel_err: Amount | None = None
    speedup: Amount | None = None
    of_ideal: Amount | None = None
    status: Status = "ok"
    reason: str = ""
    fallbacks: tuple[Fallback, ...] = ()
    gpu_storage: tuple[str, ...] = ()
    precision: Mapping[str, str] | None = None
    slowdown: Mapping[str, Amount] | None = None
    energy_mj: Amount | None = None
    memory_bytes: Mapping[str, int] | None = None
    peer: PeerRun | None = None
    same_as: str = ""
    conditions: Conditions | None = None
    cold_ms: Latency | None = None
    predicted_over_measured: Amount | None = None
    plan: str = ""
    limited: LimitedGpu | None = None
    doubts: tuple[str, ...] = ()
    unprofiled_ms: Amount | None = None
    unprofiled_over_measured: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """The models, strategies and peers of an evaluation, by the names in the command.

    `batch` is None for the models' own, `precision` None for the SoC's. Each strategy and peer runs
    for at least `seconds`, on a GPU that keeps `limits`.
    """

    models: tuple[str, ...]
    strategies: tuple[str, ...]
    peers: tuple[str, ...] = ()
    batch: Count | None = None
    precision: str | None = None
    seconds: Amount
    limits: GpuLimits = UNLIMITED


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Digests of a result's inputs: dataset and tuning (empty if none), models, plans by name."""

    dataset: str = ""
    tuning: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PredictorRow:
    """Accuracy of one predictor for one target under one hold-out, in percent.

    `acc10` and `acc5` are the rows predicted within 10 and 5 %; None without held-out rows. `bytes`
    is the target's share of the file. Predictions are timed in a batch.
    """

    name: str
    target: str
    processor: str | None
    n_train: Count
    n_test: Count
    split: Split
    acc10: Amount | None
    acc5: Amount | None
    mape: Amount | None
    bytes: Count
    us_per_prediction: Amount
