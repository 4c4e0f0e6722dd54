"""Interface of a loaded executable, here or behind an agent, and the spans of a profile: what each
processor did when, of one inference.
"""

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
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import SpanKind, TimeSpan

if TYPE_CHECKING:
    import pyopencl as cl


#: Called with the number of a step before its kernels are built or run for the first time, and with
#: -1 after the last one.
StepCallback: TypeAlias = Callable[[int], object]


def no_callback(step: int) -> None:
    """The default: steps are not reported."""


@dataclass(frozen=True)
class Binary:
    """A compiled program: the `.cl` file, a digest of its text, the options, the driver's bytes."""

    name: str
    source: str
    options: str
    blob: bytes = field(repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.source, self.options


@dataclass(frozen=True)
class Offer:
    """Binaries, and the `Programs.identity` that they were compiled for."""

    identity: Mapping[str, str]
    binaries: tuple[Binary, ...]

    def fits(self, identity: Mapping[str, str]) -> bool:
        return dict(self.identity) == dict(identity)


@dataclass(frozen=True)
class Footprint:
    """Bytes on either side: tensors, and weights as they are handed to kernels and libraries.

    How ncnn arranges weights it does not tell.
    """

    cpu_bytes: int
    gpu_bytes: int
    cpu_weight_bytes: int
    gpu_weight_bytes: int

    @property
    def weight_bytes(self) -> int:
        return self.cpu_weight_bytes + self.gpu_weight_bytes

    @property
    def total(self) -> int:
        return self.cpu_bytes + self.gpu_bytes + self.weight_bytes


class RefusedError(DeviceError):
    """A device does not run some of an executable's kernels; `refusals` says which."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(f"{refusal.label!r}: {refusal}" for refusal in refusals))
        self.refusals = tuple(refusals)


class Loaded(Protocol):
    """An executable that is allocated, built and bound.

    Fill the arrays of `inputs`, `run`, and read those of `outputs` before the next run.
    """

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
        """How the GPU's limits are kept; None without any."""
        ...

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by whatever runs something on the same processors."""
        ...

    def run(self) -> None: ...
    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """What each processor did when in one inference; with the `layers` of nets, too, where a
        library computes them one by one.
        """
        ...

    def close(self) -> None: ...


@dataclass
class Timeline:
    """Collects spans while a profiled inference runs, of a net's `layers` too where they are asked
    for.
    """

    layers: bool = False
    _origin: float = field(default_factory=perf_counter)
    _cpu: list[TimeSpan] = field(default_factory=list)
    _gpu: list[tuple[SpanKind, str, float, cl.Event, cl.Event]] = field(default_factory=list)

    def cpu(self, kind: SpanKind, label: str, start: float, end: float) -> None:
        """A span on the CPU, in seconds of `perf_counter`."""
        self._cpu.append(TimeSpan("cpu", kind, label, self._ms(start), self._ms(end)))

    def gpu(
        self, kind: SpanKind, label: str, event: cl.Event, last: cl.Event | None = None
    ) -> None:
        """A kernel that was just enqueued on a queue that profiles; in pieces up to the `last`."""
        self._gpu.append((kind, label, perf_counter(), event, event if last is None else last))

    def spans(self) -> list[TimeSpan]:
        """All spans by start; waits for nothing, so the queue must be finished.

        The device's clock is laid over the host's at the enqueue that took the least: a driver
        notes when it began, and the host when it was over.
        """
        spans = list(self._cpu)
        if self._gpu:
            shift = min(host - 1e-9 * first.profile.queued for _, _, host, first, _ in self._gpu)
            for kind, label, _, event, last in self._gpu:
                start, end = (1e-9 * t + shift for t in (event.profile.start, last.profile.end))
                spans.append(TimeSpan("gpu", kind, label, self._ms(start), self._ms(end)))
        return sorted(spans, key=lambda span: span.start_ms)

    def gpu_s(self) -> float:
        """Seconds from the first kernel's start to the last one's end, by the device's clock."""
        spans = [span for span in self.spans() if span.processor == "gpu"]
        return 1e-3 * (max(s.end_ms for s in spans) - min(s.start_ms for s in spans))

    def _ms(self, seconds: float) -> float:
        return 1e3 * (seconds - self._origin)


def totals_ms(spans: Iterable[TimeSpan]) -> dict[tuple[str, str], float]:
    """Milliseconds in a profile by kind and label: of a net, or of all kernels of an op."""
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for span in spans:
        totals[span.kind, span.label] += span.end_ms - span.start_ms
    return dict(totals)


def sharing_ms(spans: list[TimeSpan]) -> float:
    """Milliseconds of data sharing in a profile: copies, maps, unmaps and transform kernels.

    Waiting (sync) is left out: it is mostly the imbalance of the two processors.
    """
    kinds = ("copy", "map", "unmap", "transform")
    return sum(span.end_ms - span.start_ms for span in spans if span.kind in kinds)
