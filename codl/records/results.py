"""Results as data: what commands measure, print and write, and what reports read back.

Plain frozen dataclasses: `dataclasses.asdict` makes JSON of them, `msgspec.convert` reads it again.
A value that breaks the rule of a class is a `ValueError`, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from codl.ir.plan import OpFallback
from codl.ir.types import PROCESSORS, Processor
from codl.records.gpu_limits import UNLIMITED, GpuLimits, LimitedGpu
from codl.records.statistic import level

#: A finite number of at least 0, and a whole one.
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
#: Where a latency comes from; `computed` is made of measured ones.
Source = Literal["measured", "computed", "replayed", "simulated"]
Status = Literal["ok", "failed"]
#: How rows are held out: single rows, or all rows of an op shape together.
Split = Literal["row", "shape"]
#: What a processor does: it computes (net, kernel), shares data, or waits (sync).
SpanKind = Literal["net", "layer", "kernel", "copy", "map", "unmap", "transform", "sync"]


@dataclass(frozen=True)
class Latency:
    """Milliseconds: the median of the samples, their 20th and 80th percentile, and their number.

    `level` is what is added up and compared.

    A latency that was computed has no samples: `runs` is 0 and all three are the same.
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
        """By the one statistic, `codl.records.statistic`, which is the 20th percentile."""
        return self.p20


#: One processor alone, in its best or a given storage: speedups are over the fastest of these.
SINGLES = ("cpu", "gpu", "gpu-buffer", "gpu-image")


def times_faster(bases: Iterable[Latency | None], latency: Latency | None) -> float | None:
    """The least of some latencies over another one; None where either is not known."""
    least = min((base.level for base in bases if base), default=None)
    return least / latency.level if least is not None and latency and latency.level else None


#: Runs that are spread wider than this, as p80 over p20, are of a machine that was disturbed.
WIDE = 1.2
#: So much faster a first run may be by chance.
BY_CHANCE = 0.05
#: No plan is that far from its prediction but for something that no prediction knows.
FAR_OFF = 10.0


def doubts(
    warm: Latency,
    cold: Latency | None = None,
    *,
    predicted_ms: float | None = None,
    quota_periods: int | None = None,
) -> tuple[str, ...]:
    """Why a latency may not be what a quiet machine takes, as sentences without their full stop.

    `cold` is that of first runs, which find the caches as others left them; `quota_periods` as in
    `Conditions`, of the while in which it was measured.
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
    """What one processor did, in milliseconds since the start of the inference."""

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

    Both plans were timed in turns. `gpu_ratios` are those of the new plan's chains.
    """

    runs: Count
    before_ms: Amount
    after_ms: Amount
    gpu_ratios: tuple[float, ...]


@dataclass(frozen=True)
class Adaptation:
    """How an engine adapted: the inferences that were watched, and the last changes of the plan."""

    runs: Count
    changes: tuple[PlanChange, ...]


@dataclass(frozen=True)
class Fallback:
    """A kernel variant that a device could not build or run, and what took its place."""

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
    """A plan's outputs beside those of a reference, before the first result is handed out.

    `reference` is empty where nothing was compared, for the `reason`. With a `reason` beside it,
    it is not ONNX Runtime with the model as it is. The comparison took `ms`; 0 where its result was
    known already. With the `fallbacks` the plan is right, and not without. An error of up to
    `limit` counted as right; rounding or chance decides the outputs `ignored`.
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
    """How another library was run: its version, its threads, the cores on which they were seen at
    work, and how many cores they kept busy in the mean.
    """

    version: str
    threads: Count
    observed_cores: tuple[Count, ...]
    busy_cores: Amount


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """How a machine was while it measured; None or nothing where it does not tell.

    `temperature_c` is that of the hottest sensor of a processor, in degrees Celsius; `cpu_mhz` the
    fastest clock of the CPU side's cores, `gpu_mhz` that of the OpenCL device. `throttled` are the
    processors whose clocks were held down, by heat as a rule. `governors` are what chooses clocks,
    by cluster of cores (the kernel's name of it) and for the GPU. `quota_periods` are the periods
    in which a CPU quota stopped the process; a single reading counts them since the first one.
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
        """Those of a while, of readings in order: the hottest, clocks in the median, the last rest.

        A processor that was throttled once was throttled.
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
    """One strategy, or another library (`peer`), on one model.

    `latency_ms` is that of runs right behind each other, None where it failed, and `reason` says
    why; `cold_ms` is that of the first run after others had the caches, where that was kept apart.
    `speedup` is over the better single processor of the same run, `of_ideal` the ideal latency over
    this one. `fallbacks` are kernel variants that failed and were replaced. `gpu_storage` is how
    the GPU's tensors lie; `precision` what its tensors are stored, computed and accumulated in.
    `slowdown` is how many times slower each processor was than when the dataset was measured, which
    predictions do not know: it is divided out of `predicted_over_measured`. Where the model was
    profiled, predictions are those with the profile, and `unprofiled_ms` is without.
    `energy_mj` is that of one inference, None without a sensor. `memory_bytes` are those of tensors
    and weights on either side. `same_as` names the strategy before whose plan became the very same
    executable: it was timed for both. `conditions` are of the run in which all took turns. `plan`
    is the fingerprint of the plan that ran, `limited` how it kept the GPU's limits, where there are
    any. `doubts` say why the latency may be that of a disturbed machine.
    """

    model: str
    strategy: str
    latency_ms: Latency | None
    predicted_ms: Amount | None
    source: Source
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
    """What an evaluation is of: models, strategies and peers by the names that were given.

    `batch` is None where models have their own, and `precision` where it is the SoC's. Everybody
    has turns for at least `seconds`, on a GPU that keeps `limits`.
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
    """What results rest on: the dataset and the kernels' tuning, empty where there is none,
    structure and weights of each model by name, and plans by what they are of.
    """

    dataset: str = ""
    tuning: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    plans: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PredictorRow:
    """The accuracy of one predictor of one target under one hold-out, in percent.

    `acc10` and `acc5` are rows predicted within 10 and 5 %, `coverage90` those inside the 90 %
    interval, `acc10_typical` as `acc10` without the terms of runs; None where nothing could be held
    out. `bytes` is what the target takes of the stored file. A prediction's time is that in a
    batch, with its features and without.
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
    acc10_typical: Amount | None = None
    coverage90: Amount | None = None
    bytes: Count
    us_per_prediction: Amount
    us_without_features: Amount | None = None
