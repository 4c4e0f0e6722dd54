"""Interface of a loaded executable, local or remote, and collection of a profile's spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from codl.errors import DeviceError
from codl.ir import Array
from codl.ir.executable import Executable, Refusal
from codl.ir.records.gpu_limits import LimitedGpu
from codl.ir.records.results import SpanKind, TimeSpan

if TYPE_CHECKING:
    import pyopencl as cl


#: Receives the number of each step before its kernels are built or first run, and -1 at the end.
StepCallback: TypeAlias = Callable[[int], object]


def no_callback(step: int) -> None:
    """Default: report no steps."""


@dataclass(frozen=True)
class Binary:
    """A compiled program: name of the `.cl` file, digest of its text, options, driver's binary."""

    name: str
    source: str
    options: str
    blob: bytes = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.source, self.options


@dataclass(frozen=True)
class Offer:
    """Binaries, with the `Programs.identity` that they were compiled for."""

    identity: Mapping[str, str]
    binaries: tuple[Binary, ...]


@dataclass(frozen=True)
class Footprint:
    """Bytes of tensors and weights on each side, without libraries' own copies of weights."""

    cpu_bytes: int
    gpu_bytes: int
    cpu_weight_bytes: int
    gpu_weight_bytes: int

    @property
    def total(self) -> int:
        weights = self.cpu_weight_bytes + self.gpu_weight_bytes
        return self.cpu_bytes + self.gpu_bytes + weights


class RefusedError(DeviceError):
    """A device refuses some of an executable's kernels, listed in `refusals`."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(f"{refusal.label!r}: {refusal}" for refusal in refusals))
        self.refusals = tuple(refusals)


class Loaded(Protocol):
    """A loaded executable: fill `inputs`, call `run`, read `outputs` before the next run."""

    @property
    def executable(self) -> Executable: ...
    @property
    def inputs(self) -> Mapping[str, Array]: ...
    @property
    def outputs(self) -> Mapping[str, Array]: ...
    @property
    def footprint(self) -> Footprint: ...

    @property
    def limited(self) -> LimitedGpu | None:
        """Effect of the GPU's limits; None without limits."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held during any work on the same processors."""
        ...

    def run(self) -> None: ...
    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """The spans of one inference; with `layers` also spans of nets' layers."""
        ...

    def close(self) -> None: ...


@dataclass
class Timeline:
    """Collects the spans of a profiled inference; with `layers` also spans of nets' layers."""

    layers: bool = False
    _origin: float = field(default_factory=perf_counter)
    _cpu: list[TimeSpan] = field(default_factory=list)
    _gpu: list[tuple[SpanKind, str, float, cl.Event, cl.Event]] = field(default_factory=list)

    def cpu(self, kind: SpanKind, label: str, start: float, end: float) -> None:
        """Add a span of the CPU, with times in seconds of `perf_counter`."""
        self._cpu.append(TimeSpan("cpu", kind, label, self._ms(start), self._ms(end)))

    def gpu(
        self, kind: SpanKind, label: str, event: cl.Event, last: cl.Event | None = None
    ) -> None:
        """Add a kernel just enqueued on a profiling queue, with pieces up to `last`."""
        self._gpu.append((kind, label, perf_counter(), event, event if last is None else last))

    def spans(self) -> list[TimeSpan]:
        """All spans by start; the queue must be finished.

        Aligns the device's clock with the host's by the fastest enqueueing, whose start the driver
        records and whose end the host does.
        """
        spans = list(self._cpu)
        if self._gpu:
            shift = min(host - 1e-9 * first.profile.queued for _, _, host, first, _ in self._gpu)
            for kind, label, _, event, last in self._gpu:
                start, end = (1e-9 * t + shift for t in (event.profile.start, last.profile.end))
                spans.append(TimeSpan("gpu", kind, label, self._ms(start), self._ms(end)))
        return sorted(spans, key=lambda span: span.start_ms)

    def _ms(self, seconds: float) -> float:
        return 1e3 * (seconds - self._origin)


def totals_ms(spans: Iterable[TimeSpan]) -> dict[tuple[str, str], float]:
    """Milliseconds in a profile by kind and label."""
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for span in spans:
        totals[span.kind, span.label] += span.end_ms - span.start_ms
    return dict(totals)


def sharing_ms(spans: list[TimeSpan]) -> float:
    """Milliseconds of data sharing in a profile: copies, maps, unmaps and transform kernels.

    Excludes waits (sync), which are mostly imbalance of the two processors.
    """
    kinds = ("copy", "map", "unmap", "transform")
    return sum(span.end_ms - span.start_ms for span in spans if span.kind in kinds)
